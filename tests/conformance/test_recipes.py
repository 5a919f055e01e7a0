"""Recipes of a toy framework and of SkyRL: how they are read, and the answers."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.contract import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.recipe import (
    MASKED_END,
    MASKED_SAMPLE,
    UNEVEN_BATCH,
    UNEVEN_GROUPS,
    Recipe,
    Typed,
)
from adapters.skyrl import ENGINES
from conformance import cli
from conformance.comparing.expectations import Expectations, KnownMistake
from conformance.explain.conditions.facts import OF_JOBS, OF_STEPS
from conformance.findings.cause import Severity
from conformance.findings.errors import InvalidRecipeError
from conformance.recipes import scaling, words
from conformance.recipes.answer import answer, answered
from conformance.recipes.matching import match
from conformance.recipes.running import MOST_RANKS, Run, read, run
from reference.aggregation import DEFAULT_CONVENTIONS, Mode
from tests import reading
from tests.reading import TOY, Objecting, Reading
from tests.waiting import wait_for


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read recipes of the toy in a thread, as only frameworks need a separate process."""
    monkeypatch.setattr(
        "conformance.recipes.running.ProcessPoolExecutor",
        lambda workers, **_: ThreadPoolExecutor(workers),
    )


PATIENT = 600.0
"""A budget that no toy exceeds on any machine."""


def of_words(*typed: str) -> Recipe:
    return reading.read(Reading(), Typed(words=typed))


@pytest.fixture(scope="module")
def right_run() -> Run:
    """The complete run of a right recipe."""
    return run(
        "tests.reading:Reading",
        Typed(words=("bonus=0.01",)),
        most_ranks=MOST_RANKS,
        budget=PATIENT,
    )


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status of `recipe`, its output, and its error output."""
    status = cli.main(["recipe", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_right_recipe_is_acquitted_in_the_first_sentence(right_run: Run) -> None:
    found = answer(right_run)

    assert found.sentence == (
        "None of the 6 numbers in your log that were looked at is wrong; your gradient is right."
    )
    assert found.is_right
    assert not found.reached
    assert found.chosen == {"bonus": "0.01"}
    assert found.defaults["reduction"] == "tokens"
    assert {"clip_fraction", "entropy"} <= {
        one.name for one in found.logged if one.state == "right"
    }
    assert "on dp2-cp1-mb2-bshd" in found.ran
    assert {"trl:dapo", "verl:token-mean", "skyrl:token_mean"} <= {*found.elsewhere}
    assert "trl:grpo" not in found.elsewhere


@pytest.mark.usefixtures("read_here")
def test_mistake_that_reaches_a_recipe_is_named_with_its_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, said, _ = told(capsys, "--adapter=tests.reading:Miscounting", f"--budget={PATIENT}")

    first, *_ = said.splitlines()
    assert status == 1
    assert first.endswith("your gradient is wrong in 1 way.")
    assert "each micro-batch is normalised by its own count" in " ".join(said.split())
    assert "At your batch size: direction off by up to" in " ".join(said.split())


@pytest.mark.usefixtures("read_here")
def test_wrong_number_leaves_the_gradient_right() -> None:
    found = answered("tests.reading:Mislogging", Typed(), budget=PATIENT)

    assert found.sentence == "1 number in your log is wrong; your gradient is right."
    assert not found.is_right
    [wrong] = [one.name for one in found.logged if one.state == "WRONG"]
    assert wrong == "clip_fraction"


@pytest.mark.usefixtures("read_here")
def test_recipe_that_cannot_be_trained_is_not_acquitted() -> None:
    found = answered("tests.reading:Crashing", Typed(), budget=5.0)

    assert found.sentence.startswith("Your gradient was not seen: nothing of this recipe could be")
    assert not found.is_right


def knows(
    monkeypatch: pytest.MonkeyPatch, *mistakes: tuple[str, str], needs: tuple[str, ...] = ()
) -> None:
    """Make mistakes with these names and reasons the only known mistakes of the toy."""
    of_all = {"line": "toy.py:1", "needs": needs}
    entries = [
        KnownMistake.model_validate({"name": name, "reason": reason, **of_all})
        for name, reason in mistakes
    ]
    found = Expectations(Path("known.toml"), "toy", ("torch",), tuple(entries), ())
    monkeypatch.setattr("conformance.recipes.answer.known", lambda *_: found)


@pytest.mark.usefixtures("read_here")
def test_mistake_that_only_a_law_shows_is_known_and_its_rewards_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One example is NeMo-RL, whose standard deviation of rewards loses digits by cancelling."""
    knows(monkeypatch, ("difference_of_squares", "A variance cancels."))
    found = answered("tests.reading:Squaring", Typed(), budget=PATIENT)

    [one] = [one for one in found.reached if one.severity is Severity.GRADIENT]
    assert one.is_known
    assert one.says == "A variance cancels."
    assert found.sentence.endswith(
        "your gradient is wrong in 1 way, only where all rewards are larger by 1024."
    )
    assert not found.not_tested


@pytest.mark.usefixtures("read_here")
def test_number_that_a_law_moves_is_known_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = "depends_on_cut"
    knows(monkeypatch, (mistake, "`entropy` is another."), (mistake, "`drift` is of a cut."))
    found = answered("tests.reading:Drifting", Typed(), budget=PATIENT)

    assert "`drift` is of a cut." in [one.says for one in found.reached if one.is_known]
    assert "`entropy` is another." in [one.says for one in found.not_tested]


@pytest.mark.parametrize(
    ("needs", "case"),
    [(UNEVEN_GROUPS, "missing_siblings"), ("where a rollout has several samples", None)],
)
def test_mistake_is_excluded_only_by_a_batch_that_would_show_it(
    right_run: Run, monkeypatch: pytest.MonkeyPatch, needs: str, case: str | None
) -> None:
    """One example is slime: it merges prompts only if a batch lacks the configured size."""
    knows(monkeypatch, ("groups_merged", "Groups are merged."), needs=(needs,))
    found = answer(right_run)

    [one] = [*found.not_reached, *found.not_tested]
    assert (one.finding.split("/")[2] if one.finding else None) == case


@pytest.mark.usefixtures("read_here")
def test_mistake_that_nothing_tells_from_a_known_one_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One example is prime-rl on one rank: a mean over its ranks is one over micro-batches."""
    knows(monkeypatch, ("shares_of_all_ranks_averaged", "Shares are averaged."))
    found = answered("tests.reading:Sharing", Typed(words=("ranks=1",)), budget=PATIENT)

    assert [one.says for one in found.reached] == ["Shares are averaged."]


@pytest.mark.usefixtures("read_here")
def test_page_has_the_sentence_first_and_needs_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, said, _ = told(capsys, "--adapter=tests.reading:Miscounting", "--format=html")

    assert status == 1
    assert said.startswith("<!DOCTYPE html>")
    body = said.partition("<body>")[2]
    assert re.search(r"<h1>[^<]*your gradient is wrong in 1 way", body)
    assert "<li>wrong gradient (" in body
    assert not re.search(r"<script|<link|src=|@import|url\((?!#)", said)


@pytest.mark.usefixtures("read_here")
def test_objects_of_a_framework_stay_in_its_process() -> None:
    """One example is ROLL: sections of its recipes are objects that other processes cannot load."""
    assert read(Objecting(), None, Typed()).values["schedule"] == {"of": ["it", 1]}


@pytest.mark.usefixtures("read_here")
def test_what_is_wrong_only_once_is_no_accusation_and_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, said, _ = told(capsys, "--adapter=tests.reading:Unsteady", "--budget=0")

    assert status == 0
    assert "your gradient is right" in " ".join(said.split())
    assert "Wrong once, and right when run again:\n  - weights/token_mean/" in said


@pytest.mark.usefixtures("read_here")
def test_json_has_the_same_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (file := tmp_path / "recipe.yaml").write_text("reduction: samples\n")
    status, said, _ = told(
        capsys, "--adapter=tests.reading:Reading", str(file), "--format=json", "--", "scaled="
    )
    found = json.loads(said)

    assert status == 0
    assert found["is_right"]
    assert found["chosen"] == {"reduction": "samples", "scaled": "False"}
    assert any(line.startswith("A token weighs 1/(N·m)") for line in found["weight"])


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--", "colour=red"], "Toy refuses this recipe: unrecognized arguments: colour"),
        (["nowhere.yaml"], "there is no file nowhere.yaml; name the file of a recipe"),
        (["--max-ranks=0"], "a recipe needs at least one rank, not 0; give 1 or more"),
        (
            ["--", "reduction=primes"],
            "no check knows how Toy reduces losses with longest=100, reduction=primes; Toy is"
            " checked with tokens, samples, fixed",
        ),
        (["--", "accumulated=many"], "Toy refuses this recipe: ValueError: invalid literal"),
    ],
)
def test_bad_input_is_one_line_before_any_rank_starts(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.setattr("conformance.recipes.running.RankPool", None)  # no rank may be started
    status, said, complained = told(capsys, "--adapter=tests.reading:Reading", *arguments)

    assert status == cli.USAGE_ERROR
    assert said == ""
    assert complaint in complained
    assert len(complained.splitlines()) == 1


@pytest.mark.usefixtures("read_here")
def test_file_that_is_no_yaml_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (file := tmp_path / "recipe.yaml").write_text("reduction: [tokens\n")
    status, _, complained = told(capsys, "--adapter=tests.reading:Reading", str(file))

    assert status == cli.USAGE_ERROR
    assert f"Toy refuses this recipe: {file} is no YAML" in complained
    assert len(complained.splitlines()) == 1


def test_loss_that_is_most_like_a_recipe_is_run_and_differences_are_told() -> None:
    found = match(TOY, of_words("level=sequence", "dual=3", "dropped=0.5"))

    assert found.policy is Objective.DUAL_CLIP
    assert found.instead == {"level": ("sequence", "token")}
    assert found.not_looked_at == {"dropped": "tokens that are left out: not checked yet"}
    assert match(TOY, of_words("level=sequence")).policy is Objective.GSPO
    assert match(TOY, of_words("scaled=")).estimator is Objective.GROUP_CENTRED
    assert match(TOY, of_words("bonus=0.1")).terms == (Objective.ENTROPY,)


@pytest.mark.parametrize(
    ("layout", "ranks", "small", "left"),
    [
        (Layout(dp=16, micro_batches=8), 4, "dp2-cp1-mb2-bshd", []),
        (Layout(dp=2, cp=4, tp=2, micro_batches=1), 4, "dp2-cp2-mb1-bshd", ["tp 2"]),
        (Layout(dp=2, cp=4, tp=2, micro_batches=1), 8, "dp2-cp2-tp2-mb1-bshd", []),
        (Layout(cp=8, pp=4, micro_batches="tokens"), 4, "dp1-cp2-pp2-mbtokens-bshd", []),
        (Layout(dp=6, micro_batches=3), 1, "dp1-cp1-mb2-bshd", ["dp 6"]),
        (
            Layout(dp=4, micro_batches=8, options=(Option.ZERO_3,)),
            4,
            "dp2-cp1-mb2-bshd+zero_3",
            [],
        ),
    ],
)
def test_parallelism_is_cut_and_stays_parallel(
    layout: Layout, ranks: int, small: str, left: list[str]
) -> None:
    assert scaling.scaled(layout, ranks) == (Layout.parse(small), left)


def test_batches_that_a_recipe_never_has_are_left_out() -> None:
    description, layout = Reading().describe(), Layout(dp=2, micro_batches=2)
    chosen = match(TOY, of_words())

    def cases(*unlike: str) -> set[str]:
        return {one.case.name for one in scaling.cells(chosen, layout, description, unlike)}

    for fact in (MASKED_END, MASKED_SAMPLE, UNEVEN_BATCH, UNEVEN_GROUPS):
        assert fact in {*OF_STEPS, *OF_JOBS}
    assert cases() - cases(MASKED_SAMPLE) == {"fully_masked_sample"}
    assert "missing_siblings" in cases() - cases(UNEVEN_GROUPS)


def test_rewards_at_masked_tokens_are_of_no_recipe_that_masks_none() -> None:
    """One example is verl, which loses a reward only if a response ends in a tool's output."""
    description, layout = Reading().describe(), Layout(dp=2, micro_batches=2)
    offered = {*description.objectives, Objective.REINFORCE_PP}
    description = replace(description, objectives=frozenset(offered))
    chosen = replace(match(TOY, of_words()), estimator=Objective.REINFORCE_PP)

    def slugs(*unlike: str) -> set[str]:
        return {one.spec.slug for one in scaling.cells(chosen, layout, description, unlike)}

    left_out = slugs() - slugs(MASKED_END)
    assert "laws.masked_token_last_reinforce_pp" in left_out
    assert not any(slug.startswith(("weights", "metric")) for slug in left_out)


def test_critic_is_no_estimator_of_a_recipe_without_one() -> None:
    """One example is AReaL, where advantages may be whitened with or without a critic."""
    switched = {"critic": True}
    record = replace(
        TOY,
        objectives={
            **TOY.objectives,
            Objective.GROUP_NORMALISED: {"scaled": True, "dual": 3, "dropped": 1},
            Objective.GAE: {"scaled": True},
            Objective.VALUE: switched,
        },
    )
    with_critic = replace(of_words(), values={**of_words().values, **switched})

    assert match(record, of_words()).estimator is not Objective.GAE
    assert match(record, with_critic).estimator is Objective.GAE


def test_critic_is_looked_at_in_the_batches_of_its_checks() -> None:
    """Other cases may make a critic's log unreadable: verl's was once called missing."""
    record = replace(TOY, objectives={**TOY.objectives, Objective.VALUE: {"critic": True}})
    with_critic = replace(of_words(), values={**of_words().values, "critic": True})
    layout = Layout(dp=2, micro_batches=2)
    described = Reading().describe()
    description = replace(described, objectives=frozenset({*described.objectives, Objective.VALUE}))
    made = scaling.cells(match(record, with_critic), layout, description)
    of_critic = [cell for cell in made if cell.spec.objective is Objective.VALUE]

    assert of_critic
    assert all(cell.case in cell.spec.cases for cell in of_critic)


def test_laws_are_looked_at_without_a_batch_that_comes_before() -> None:
    layout = Layout(dp=2, micro_batches=2, options=(Option.SHORT_BATCH,))
    description = replace(Reading().describe(), options=frozenset(Option))
    made = scaling.cells(match(TOY, of_words()), layout, description)

    assert {cell.layout.options for cell in made if cell.spec.law} == {()}
    assert {cell.layout for cell in made if not cell.spec.law} == {layout}


def test_weight_of_a_token_has_the_numbers_of_the_recipe() -> None:
    recipe = of_words("longest=2048", "ranks=16")
    said = " ".join(words.weight(recipe, match(TOY, recipe), TOY))

    assert "An optimizer step has 256 samples of 64 prompts, on dp 16, in 8 micro-batches" in said
    assert "If a response has 1,024 active tokens on average, that is about 1/262,144." in said
    fixed = of_words("reduction=fixed", "longest=100")
    assert "Here that is 1/6,400." in " ".join(words.weight(fixed, match(TOY, fixed), TOY))


def test_advantages_and_terms_are_said_in_words() -> None:
    found = match(TOY, of_words("bonus=0.1"))

    assert [*words.losses(found, DEFAULT_CONVENTIONS)] == [
        "Policy loss: PPO's clipped loss.",
        "Advantage: the sample's reward minus the mean of its prompt's rewards, divided by their"
        " standard deviation (with divisor n - 1) plus 1e-06.",
        "Besides: entropy term.",
    ]


@pytest.mark.usefixtures("forked_readers")
def test_recipe_of_skyrl_is_read_by_skyrl() -> None:
    sizes = ("train_batch_size=1024", "policy_mini_batch_size=256", "update_epochs_per_batch=1")
    typed = (
        *(f"trainer.{one}" for one in sizes),
        "trainer.placement.policy_num_gpus_per_node=4",
        "trainer.placement.ref_num_gpus_per_node=4",
        "generator.inference_engine.num_engines=4",
        "generator.n_samples_per_prompt=5",
        "trainer.micro_train_batch_size_per_gpu=64",
        "trainer.algorithm.policy_loss_type=gspo",
        "trainer.algorithm.loss_reduction=sequence_mean",
    )
    adapter = ENGINES[0]()
    recipe = read(adapter, None, Typed(words=typed))
    assert adapter.framework is not None
    found = match(adapter.framework, recipe)

    assert recipe.layout == Layout(dp=4, micro_batches=5, format="thd")
    assert (recipe.samples, recipe.per_prompt, recipe.steps) == (1280, 5, 4)
    assert found.aggregation.mode is Mode.SAMPLE_MEAN
    assert (found.policy, found.estimator) == (Objective.GSPO, Objective.GROUP_NORMALISED)
    assert found.terms == (Objective.KL,)
    assert found.instead == {"kl_estimator_type": ("k3", "k1")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("word", "refusal"),
    [
        ("nonsense=1", r"SkyRL refuses this recipe: .*nonsense"),
        ("loss_reduction=seq_mean_token_sum_norm", "max_seq_len` must be set explicitly"),
    ],
)
def test_what_skyrl_refuses_is_refused_in_its_words(word: str, refusal: str) -> None:
    with pytest.raises(InvalidRecipeError, match=refusal):
        read(ENGINES[0](), None, Typed(words=(f"trainer.algorithm.{word}",)))


def test_reduction_is_that_which_options_choose_and_not_one_that_a_job_decides() -> None:
    """One example is verl, where a job decides which option chooses a mode with a divisor."""
    of_job = {"reduction": lambda _: "fixed"}
    record = replace(TOY, modes={**TOY.modes, "fixed": (Mode.CONSTANT, of_job)})

    assert match(record, of_words("reduction=tokens")).reduction == "tokens"
    assert match(record, of_words("reduction=samples")).reduction == "samples"
    assert match(record, of_words("reduction=fixed")).reduction == "fixed"


@pytest.mark.processes
def test_a_killed_command_leaves_no_process_that_reads(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    words = ("recipe", "--adapter=tests.reading:Waiting", "--", str(noted))
    process = subprocess.Popen([sys.executable, "-m", "conformance.cli", *words])
    wait_for(lambda: noted.exists() and bool(noted.read_text()), seconds=120)
    reading = Path("/proc", noted.read_text())
    process.kill()
    process.wait()

    wait_for(lambda: not reading.exists(), seconds=5)
