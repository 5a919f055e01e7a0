"""The adapters of slime and miles, end to end on toys of the two: right, older and broken ones."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.contract.objective import CORRECTIONS, POLICY_LOSSES, Objective
from conformance.findings.finding import Finding
from tests import command
from tests.toys import TOYS, Edit, checkout

TELLING_CASES = "fully_masked_sample or short_responses or unequal_groups or two_steps"
"""Empty samples and slices, groups over several ranks, rollouts of several samples, two steps."""

WITHOUT_FACTORS = (
    Edit("lineage.py", "grid.dp.size * grid.cp.size * num_microbatches / rollouts", "1 / rollouts"),
    Edit("lineage.py", "return loss * grid.cp.size, num_tokens", "return loss, num_tokens"),
)

POLICY_LOSS = "[weights/ or [metric/"
"""Its weights, and itself as it is logged."""

REFUSAL = '    raise ValueError("not on a Sunday")'


FACTORS = {"dp2-cp1-mb1-thd": "dp", "dp1-cp2-mb1-thd": "cp", "dp1-cp1-mb2-thd": "micro_batches"}


def find(
    folder: Path,
    toy: str,
    source: Path,
    layouts: list[str],
    cases: str,
    *options: str,
    subjects: str = POLICY_LOSS,
) -> list[Finding]:
    """What a run of the adapter on a checkout finds.

    It is without laws, which SkyRL's are enough for, and without lines, which tests of traces are.
    """
    chosen = [f"--layout={layout}" for layout in layouts]
    selected = ("-k", f"({subjects}) and ({cases}) and not laws")
    result = command.run(
        folder, toy, f"--source={source}", "--no-trace", *chosen, *selected, *options
    )
    assert result.report.complete, result.output
    found: list[Finding] = result.report.findings
    assert found, result.output
    return found


def verdicts(found: list[Finding]) -> set[str]:
    return {finding.verdict for finding in found}


def layout_of(finding: Finding) -> str:
    return str(finding.id.rpartition("/")[2])


def reasons(found: list[Finding]) -> set[tuple[str, str]]:
    """What of each layout was not run, and why."""
    return {(layout_of(f), f.message) for f in found if f.verdict == "unsupported"}


def test_slime_conforms_where_options_meet_modes(tmp_path: Path) -> None:
    average, gather = "dp2-cp2-mb2-thd+average_in_collective", "dp1-cp2-mb1-thd+allgather_cp"
    layouts = ["dp1-cp1-mb2-bshd", "dp2-cp1-mbtokens-thd+balance_data", average, gather]
    found = find(tmp_path, "slime", checkout(tmp_path / "slime", "slime"), layouts, TELLING_CASES)

    assert verdicts(found) == {"conforms", "unsupported"}
    assert reasons(found) == {
        ("dp1-cp1-mb2-bshd", "no format bshd"),
        (gather, "no option allgather_cp"),
        (average, "Megatron-Core: Cannot average in collective when calculating per-token loss!"),
    }
    assert {f.mode for f in found if layout_of(f) == average and f.verdict == "unsupported"} == {
        "token_mean"
    }


@pytest.mark.thorough
def test_slime_conforms_on_ranks_of_every_kind(tmp_path: Path) -> None:
    layouts = [
        "dp2-cp1-mbtokens-thd",
        "dp1-cp2-tp2-mb1-thd",
        "dp1-cp2-pp2-mb2-thd",
        "dp2-cp2-mb2-thd+distributed_optimizer",
        "dp2-cp2-mb2-thd+overlap_grad_reduce",
    ]
    found = find(tmp_path, "slime", checkout(tmp_path / "slime", "slime"), layouts, TELLING_CASES)

    assert verdicts(found) == {"conforms"}


@pytest.mark.thorough
def test_miles_conforms_in_both_formats(tmp_path: Path) -> None:
    layouts = [
        "dp1-cp1-mb1-thd",
        "dp1-cp2-mb2-bshd",
        "dp1-cp1-pp2-mb2-bshd",
        "dp2-cp1-mbtokens-thd+balance_data",
        "dp2-cp2-mb2-thd+distributed_optimizer",
        "dp2-cp2-mb1-bshd",
    ]
    found = find(tmp_path, "miles", checkout(tmp_path / "miles", "miles"), layouts, TELLING_CASES)

    assert verdicts(found) == {"conforms", "unsupported", "advice"}
    assert reasons(found) == {(layout, "no rollouts of several samples") for layout in layouts}
    assert {f.case for f in found if f.verdict != "conforms"} == {"unequal_groups"}
    advice = {f.diagnosis.name for f in found if f.verdict == "advice"}
    assert advice == {"sample_unit_sample"}, "every sample counts, where rollouts are unknown"


@pytest.mark.parametrize("depth", ["loss", "step"])
def test_miles_conforms_on_its_other_engine(tmp_path: Path, depth: str) -> None:
    layouts = ["dp2-cp1-mb2-thd", "dp2-cp1-mbtokens-thd+balance_data", "dp1-cp2-mb1-thd"]
    cases, options = "fully_masked or split or two_steps", ("--engine=fsdp", f"--depth={depth}")
    source = checkout(tmp_path / "miles", "miles")
    found = find(tmp_path, "miles", source, layouts, cases, *options)

    assert verdicts(found) == {"conforms", "unsupported"}
    assert reasons(found) == {
        ("dp1-cp2-mb1-thd", "ValueError: FSDP here is for whole packed samples")
    }


OF_EARLIER_STAGES = Edit(
    "lineage.py",
    "    config.finalize_model_grads_func = finalize_model_grads\n",
    """
    def finalize(chunks: Sequence[Any], *rest: Any, **named: Any) -> None:
        finalize_model_grads(chunks, *rest, **named)
        if not mpu.is_pipeline_last_stage():
            chunks[0].scale_gradients(2.0)

    config.finalize_model_grads_func = finalize
""",
)


@pytest.mark.parametrize(
    ("toy", "depth"),
    [
        ("slime", "loss"),
        ("miles", "reducer"),
        pytest.param("miles", "loss", marks=pytest.mark.thorough),
    ],
)
def test_depths_below_the_step_conform(tmp_path: Path, toy: str, depth: str) -> None:
    source = checkout(tmp_path / toy, toy)
    layouts = ["dp2-cp2-mb2-thd", "dp1-cp2-tp2-mb1-thd"]
    options = ("fully_masked or split_groups or two_steps", f"--depth={depth}")
    found = find(tmp_path, toy, source, layouts, *options)

    assert verdicts(found) == {"conforms"}
    assert {finding.depth for finding in found} == {depth}


def moved(package: Path, old: str, new: str) -> None:
    """Move a module of a toy, and change all imports of it."""
    (package / new).parent.mkdir(exist_ok=True)
    (package / old).rename(package / new)
    names = [path.removesuffix(".py").replace("/", ".") for path in (old, new)]
    for file in package.rglob("*.py"):
        file.write_text(file.read_text().replace(*names))


def test_miles_of_may_2026_is_driven_where_it_kept_its_modules(tmp_path: Path) -> None:
    package = checkout(tmp_path / "miles", "miles") / "miles"
    hub = "backends/training_utils/loss_hub"
    moved(package, f"{hub}/logit_processors.py", f"{hub}/logits.py")
    shutil.rmtree(package / "ray/rollout")
    of_slime = (TOYS / "slime/ray/rollout.py").read_text()
    of_miles = of_slime.replace("slime", "miles").replace("rollout_id", "index")
    (package / "ray/rollout.py").write_text(of_miles)
    layouts = ["dp2-cp2-mb2-thd"]
    found = find(tmp_path, "miles", package.parent, layouts, "uneven_lengths or fully_masked")

    assert verdicts(found) == {"conforms"}


ACTOR, CP_UTILS = (f"backends/megatron_utils/{name}.py" for name in ("actor", "cp_utils"))
LENGTHS = "total_length: int, response_length: int"

OF_JANUARY = (
    Edit(
        ACTOR,
        "class MegatronTrainRayActor:",
        """
def get_rollout_data(args: Namespace, references: list[Any], state: Any) -> lineage.Data:
    return lineage.to_device(fetch(references, megatron_grid().dp.rank))


class MegatronTrainRayActor:
    parallel_state: Any
""",
    ),
    Edit(ACTOR, "def _get_rollout_data", "def _of_later_versions"),
    Edit(
        ACTOR,
        "self._get_rollout_data(rollout_data_ref)",
        "get_rollout_data(self.args, rollout_data_ref, self.parallel_state)",
    ),
    Edit(ACTOR, "(args: Namespace, rollout_data:", "(args: Namespace, state: Any, rollout_data:"),
    Edit(ACTOR, "returns(self.args, data)", "returns(self.args, self.parallel_state, data)"),
    *(
        Edit(CP_UTILS, old, new)
        for old, new in (
            (
                f"log_prob: torch.Tensor, {LENGTHS}",
                f"log_prob: torch.Tensor, {LENGTHS}, parallel_state: object",
            ),
            (
                f"    tensor: torch.Tensor, {LENGTHS}",
                f"    tensor: torch.Tensor, {LENGTHS}, parallel_state: object",
            ),
            ("(log_prob, lineage.megatron_grid().cp)", "(log_prob, parallel_state.cp)"),
            ("response_length, lineage.megatron_grid().cp", "response_length, parallel_state.cp"),
        )
    ),
)
"""slime's pull request 1373, which 1442 took back: functions are given the state of parallelism."""

STATE = """
from typing import Any

from slime.lineage import megatron_grid


class MegatronParallelState:
    def __init__(self, model: Any = None) -> None:
        self.cp = megatron_grid().cp
"""


def test_slime_of_january_2026_is_given_its_state_of_parallelism(tmp_path: Path) -> None:
    package = checkout(tmp_path / "slime", "slime", *OF_JANUARY) / "slime"
    for name in ("loss", "cp_utils"):
        moved(package, f"backends/megatron_utils/{name}.py", f"backends/training_utils/{name}.py")
    (package / "backends/training_utils/log_utils.py").write_text(
        "from slime.utils import logging_utils\n"
    )
    (package / "backends/megatron_utils/parallel.py").write_text(STATE)
    subjects = "[weights/ or [rejection/ or [metric/"
    cases, layouts = "fully_masked or rejected_tokens", ["dp1-cp2-mb2-thd"]
    found = find(tmp_path, "slime", package.parent, layouts, cases, subjects=subjects)

    assert verdicts(found) - {"refused", "advice"} == {"conforms"}
    assert {f.check for f in found if f.verdict == "conforms"} >= {"weights", "metric"}


def test_toy_that_declines_an_ordinary_step_is_listed_with_its_words(tmp_path: Path) -> None:
    edits = (
        Edit("utils/arguments.py", "    lineage.validate(args)", REFUSAL),
        Edit("lineage.py", "choices=MODES", "choices=MODES[:3]"),
    )
    source = checkout(tmp_path / "slime", "slime", *edits)
    found = find(tmp_path, "slime", source, ["dp1-cp1-mb1-thd"], "uneven_lengths")

    assert {(f.verdict, f.message) for f in found if f.mode != "constant"} == {
        ("refused", "ValueError: not on a Sunday")
    }
    assert {(f.verdict, f.message) for f in found if f.mode == "constant"} == {
        ("unsupported", "no mode constant")
    }, "a choice that the option does not have"


@pytest.mark.parametrize(
    ("toy", "engine"), [("slime", "megatron"), ("miles", "megatron"), ("miles", "fsdp")]
)
def test_toy_that_raises_before_its_train_step_crashes(
    tmp_path: Path, toy: str, engine: str
) -> None:
    """As it does for a user, whose trainer calls the actor: here at its log of the rollouts."""
    rollout_metrics = 'names = ("advantages", "log_probs", "returns")'
    edit = Edit("lineage.py", rollout_metrics, "names = (torch.cat(data['groups']),)")
    source = checkout(tmp_path / toy, toy, edit)
    options = ("--modes=token_mean", f"--engine={engine}")
    found = find(tmp_path, toy, source, ["dp1-cp1-mb1-thd"], "uneven_lengths", *options)

    assert verdicts(found) == {"crashed"}
    message = found[0].message
    assert 'File "' + toy + '/lineage.py"' in message
    assert "in rollout_metrics" in message
    assert str(tmp_path) not in message


OBJECTIVES = "off_policy or auxiliary or rejection or other_losses or [metric."

LACKING = {
    *({*POLICY_LOSSES, *CORRECTIONS} - {Objective.DUAL_CLIP, Objective.CISPO}),
    Objective.ADAPTIVE_KL,
    Objective.VALUE_CLIPPED,
    Objective.TEACHER,
    Objective.TEACHER_REWARD,
}
"""Losses that the toys have not."""

NOT_LOGGED = {"no metric ratio"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("toy", "layouts", "assumed"),
    [
        ("slime", ["dp2-cp2-mb2-thd"], {"denominator_mask_original"}),
        ("miles", ["dp1-cp2-mb1-bshd", "dp2-cp1-mb2-thd"], set()),
    ],
)
def test_all_that_can_be_trained_conforms(
    tmp_path: Path, toy: str, layouts: list[str], assumed: set[str]
) -> None:
    """An assumption about denominators is advice if tokens are rejected."""
    source = checkout(tmp_path / toy, toy)
    cases = "fully_masked_sample or rejected_tokens or rejected_group"
    found = find(tmp_path, toy, source, layouts, cases, subjects=OBJECTIVES)

    advice = [one for one in found if one.verdict == "advice"]
    assert verdicts(found) - {"advice"} == {"conforms", "refused", "unsupported"}
    assert {finding.diagnosis.name for finding in advice} == assumed
    assert {finding.check for finding in advice} <= {"rejection"}
    refused = {(f.check, f.mode) for f in found if f.verdict == "refused"}
    assert refused == {
        ("auxiliary", "token_mean"),
        ("metric", "token_mean"),
        ("rejection", "prompt_mean"),
        ("rejection", "token_mean"),
    }
    assert {reason for _, reason in reasons(found)} == {
        *(f"no objective {name}" for name in LACKING),
        *NOT_LOGGED,
    }


@pytest.mark.thorough
def test_all_but_a_critic_conforms_on_the_other_engine(tmp_path: Path) -> None:
    source = checkout(tmp_path / "miles", "miles")
    cases = "fully_masked_sample or rejected_sample"
    found = find(
        tmp_path,
        "miles",
        source,
        ["dp2-cp1-mb2-thd"],
        cases,
        "--engine=fsdp",
        "--modes=sample_mean",
        subjects=OBJECTIVES,
    )

    assert verdicts(found) == {"conforms", "unsupported"}
    assert {reason for _, reason in reasons(found)} == {
        *(f"no objective {name}" for name in LACKING - {Objective.ADAPTIVE_KL} | {"value"}),
        *NOT_LOGGED,
    }


LOSS_OF_FSDP = "backends/fsdp_utils/actor.py"


class Mistake(NamedTuple):
    """Edits of a toy, a finding that they make wrong, and the beginning of its name."""

    finding: str
    name: str
    layout: str
    edits: Sequence[Edit]
    toy: str = "slime"
    engine: str = "megatron"


_of_miles = partial(Mistake, toy="miles")
_of_miles_fsdp = partial(_of_miles, layout="dp2-cp1-mb1-thd", engine="fsdp")

MASKED_BY_THEN = "masks = batch['loss_masks']; reduce = make_reducer(masks"

MISTAKES = (
    *(
        Mistake("weights/sample_mean/odd", f"divided_by_{factor}", layout, WITHOUT_FACTORS)
        for layout, factor in FACTORS.items()
    ),
    _of_miles_fsdp(
        "weights/token_mean/odd",
        "divided_by_dp",
        edits=[Edit(LOSS_OF_FSDP, "loss * dp.size / count", "loss / count")],
    ),
    Mistake(
        "weights/sample_mean/odd", "multiplied_by_pp", "dp1-cp1-pp2-mb1-thd", [OF_EARLIER_STAGES]
    ),
    Mistake(
        "metric/token_mean/odd",
        "divided_by_",
        "dp1-cp2-mb1-thd",
        [Edit("lineage.py", "tokens = num_tokens / grid.cp.size", "tokens = num_tokens")],
    ),
    _of_miles(
        "metric/token_mean/odd",
        "divided_by_",
        "dp2-cp1-mb1-thd",
        [Edit("lineage.py", "value / count if count", "value / count / 2 if count")],
    ),
    _of_miles_fsdp(
        "metric/token_mean/odd",
        "divided_by_",
        edits=[Edit(LOSS_OF_FSDP, "count / dp.size / len", "count / len")],
    ),
    Mistake(
        "auxiliary.entropy/sample_mean/fully_masked_sample",
        "multiplied_by_",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", '"entropy_loss": reduce(', '"entropy_loss": 2 * reduce(')],
    ),
    _of_miles(
        "rejection/sample_mean/rejected_tokens",
        "rejection_left_out",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", "reduce = make_reducer(masks", MASKED_BY_THEN)],
    ),
    Mistake(
        "rejection.metric/sample_mean/rejected_tokens",
        "nothing_reported",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", "name: before(value)", "name: reduce(value)")],
    ),
    _of_miles(
        "other_losses.sft/sample_mean/fully_masked_sample",
        "divided_by_",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", "-reduce(torch", "-0.5 * reduce(torch")],
    ),
)


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            one,
            id=f"{one.toy} {one.layout} {one.finding}",
            marks=[] if one.toy == "slime" else [pytest.mark.thorough],
        )
        for one in MISTAKES
    ],
)
def test_mistake_shows_where_it_is(tmp_path: Path, mistake: Mistake) -> None:
    toy = mistake.toy
    source = checkout(tmp_path / toy, toy, *mistake.edits)
    only = (f"[{mistake.finding}", f"--engine={mistake.engine}")
    [finding] = find(tmp_path, toy, source, [mistake.layout], *only, subjects="dp")

    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name.startswith(mistake.name)
