"""The adapters of slime and miles, end to end on toys of the two: right, older and broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.contract.objective import CORRECTIONS, POLICY_LOSSES, Objective
from conformance.findings.finding import Finding
from tests import command
from tests.toys import Edit, checkout

TELLING_CASES = (
    "uneven_lengths or fully_masked or short_responses or split_groups or unequal_groups"
    " or two_steps"
)
"""Empty samples and slices, groups over several ranks, rollouts of several samples, two steps."""

WITHOUT_FACTORS = (
    Edit("lineage.py", "grid.dp.size * grid.cp.size * num_microbatches / rollouts", "1 / rollouts"),
    Edit("lineage.py", "return loss * grid.cp.size, num_tokens", "return loss, num_tokens"),
)

POLICY_LOSS = "[weights/ or [metric/"
"""Its weights, and itself as it is logged."""

REFUSAL = '    raise ValueError("not on a Sunday")'
CRASH = 'raise RuntimeError("no kernel")'

MODES = {"sample_mean", "prompt_mean", "token_mean", "constant"}

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
    """What a run of the adapter on a checkout finds."""
    chosen = [f"--layout={layout}" for layout in layouts]
    selected = ("-k", f"({subjects}) and ({cases})")
    result = command.run(folder, toy, f"--source={source}", *chosen, *selected, *options)
    assert result.report.complete, result.output
    found: list[Finding] = result.report.findings
    assert found, result.output
    return found


def verdicts(found: list[Finding]) -> set[str]:
    return {finding.verdict for finding in found}


def of_mode(found: list[Finding], mode: str) -> list[Finding]:
    return [finding for finding in found if finding.mode == mode]


def of_check(found: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in found if finding.check == check]


def layout_of(finding: Finding) -> str:
    return str(finding.id.rpartition("/")[2])


def reasons(found: list[Finding]) -> set[tuple[str, str]]:
    """What of each layout was not run, and why."""
    return {(layout_of(f), f.message) for f in found if f.verdict == "unsupported"}


def test_slime_conforms_with_every_option_it_has(tmp_path: Path) -> None:
    average, gather = "dp2-cp2-mb2-thd+average_in_collective", "dp1-cp2-mb1-thd+allgather_cp"
    layouts = [
        "dp1-cp1-mb2-bshd",
        "dp2-cp1-mbtokens-thd",
        "dp2-cp1-mbtokens-thd+balance_data",
        "dp1-cp2-tp2-mb1-thd",
        "dp1-cp2-pp2-mb2-thd",
        "dp2-cp2-mb2-thd+distributed_optimizer",
        "dp2-cp2-mb2-thd+overlap_grad_reduce",
        average,
        gather,
    ]
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


@pytest.mark.parametrize("depth", ["reducer", "step"])
def test_newer_signatures_of_miles_know_rollouts_and_conform(tmp_path: Path, depth: str) -> None:
    source = checkout(tmp_path / "miles", "miles", layers=("miles_newer",))
    layouts = ["dp1-cp1-mb1-thd", "dp2-cp1-mbtokens-thd+balance_data", "dp1-cp2-mb2-thd"]
    found = find(tmp_path, "miles", source, layouts, TELLING_CASES, f"--depth={depth}")

    assert verdicts(found) == {"conforms"}


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


def test_gradients_of_earlier_stages_are_judged(tmp_path: Path) -> None:
    source = checkout(tmp_path / "slime", "slime", OF_EARLIER_STAGES)
    layouts = ["dp1-cp1-pp2-mb1-thd"]
    found = find(tmp_path, "slime", source, layouts, "odd_groups", "--modes=sample_mean")

    assert verdicts(of_check(found, "metric")) == {"conforms"}
    [wrong] = of_check(found, "weights")
    assert wrong.diagnosis.name == "multiplied_by_pp"


def test_dropped_factor_shows_in_the_gradient_alone_on_the_other_engine(tmp_path: Path) -> None:
    edit = Edit("backends/fsdp_utils/actor.py", "loss * dp.size / count", "loss / count")
    source = checkout(tmp_path / "miles", "miles", edit)
    case = ("odd_groups", "--engine=fsdp")
    found = find(tmp_path, "miles", source, ["dp2-cp1-mb1-thd"], *case)

    assert verdicts(of_check(found, "metric")) == {"conforms"}
    assert len(of_check(found, "weights")) == len(MODES)
    for finding in of_check(found, "weights"):
        assert finding.error == pytest.approx(0.5, rel=1e-6)
        assert finding.diagnosis.name == "divided_by_dp"


@pytest.mark.parametrize(
    ("toy", "layout", "edit", "engine"),
    [
        (
            "slime",
            "dp1-cp2-mb1-thd",
            Edit("lineage.py", "tokens = num_tokens / grid.cp.size", "tokens = num_tokens"),
            "megatron",
        ),
        (
            "miles",
            "dp2-cp1-mb1-thd",
            Edit("lineage.py", "value / count if count", "value / count / 2 if count"),
            "megatron",
        ),
        (
            "miles",
            "dp2-cp1-mb1-thd",
            Edit("backends/fsdp_utils/actor.py", "count / dp.size / len", "count / len"),
            "fsdp",
        ),
    ],
)
def test_wrong_number_in_the_log_shows_there_alone(
    tmp_path: Path, toy: str, layout: str, edit: Edit, engine: str
) -> None:
    source = checkout(tmp_path / toy, toy, edit)
    selection = ("odd_groups or two_steps", "--modes=token_mean")
    options = (f"--engine={engine}",) if toy == "miles" else ()
    found = find(tmp_path, toy, source, [layout], *selection, *options)

    assert verdicts(of_check(found, "weights")) == {"conforms"}
    logged = of_check(found, "metric")
    assert {finding.case for finding in logged} == {"odd_groups", "two_steps"}
    for finding in logged:
        assert finding.verdict == "mismatch"
        assert finding.diagnosis.name.startswith("divided_by_")


@pytest.mark.parametrize(
    ("toy", "depth"), [("slime", "loss"), ("miles", "reducer"), ("miles", "loss")]
)
def test_depths_below_the_step_conform(tmp_path: Path, toy: str, depth: str) -> None:
    source = checkout(tmp_path / toy, toy)
    layouts = ["dp2-cp2-mb2-thd", "dp1-cp2-tp2-mb1-thd"]
    options = ("fully_masked or split_groups or two_steps", f"--depth={depth}")
    found = find(tmp_path, toy, source, layouts, *options)

    assert verdicts(found) == {"conforms"}
    assert {finding.depth for finding in found} == {depth}


@pytest.mark.parametrize("depth", ["loss", "step"])
def test_dropped_factors_show_where_the_loss_is_scaled(tmp_path: Path, depth: str) -> None:
    source = checkout(tmp_path / "slime", "slime", *WITHOUT_FACTORS)
    case = ("odd_groups", f"--depth={depth}")
    found = find(tmp_path, "slime", source, [*FACTORS], *case)

    assert verdicts(of_check(found, "metric")) <= {"conforms"}, "logged before they are scaled"
    for finding in of_check(found, "weights"):
        factor = FACTORS[layout_of(finding)]
        if finding.mode == "token_mean" and factor != "cp":
            assert finding.verdict == "conforms", "Megatron divides by the tokens of all"
            continue
        assert finding.verdict == "mismatch"
        assert finding.error == pytest.approx(0.5, rel=1e-6)
        assert finding.diagnosis.name == f"divided_by_{factor}"
        assert finding.diagnosis.numbers[factor] == 2


def test_dropped_factors_do_not_show_in_the_reducer(tmp_path: Path) -> None:
    source = checkout(tmp_path / "slime", "slime", *WITHOUT_FACTORS)
    layouts = [*FACTORS, "dp2-cp2-mb2-thd"]
    found = find(tmp_path, "slime", source, layouts, TELLING_CASES, "--depth=reducer")

    assert verdicts(found) == {"conforms"}


def test_empty_sample_counted_as_a_token_is_named(tmp_path: Path) -> None:
    edit = Edit("lineage.py", "torch.stack([mask.sum() for", "torch.stack([mask.sum().clamp(1) for")
    source = checkout(tmp_path / "slime", "slime", edit)
    found = find(tmp_path, "slime", source, ["dp1-cp1-mb1-thd"], "fully_masked_sample")

    [logged] = of_mode(of_check(found, "metric"), "token_mean")
    assert logged.verdict == "mismatch", "it is divided by the same"
    [finding] = of_mode(of_check(found, "weights"), "token_mean")
    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name == "empty_samples_counted"
    numbers = finding.diagnosis.numbers
    assert numbers["denominator"] == pytest.approx(24, rel=1e-6)
    assert numbers["expected_denominator"] == 23
    found.remove(finding)
    found.remove(logged)
    assert verdicts(found) == {"conforms"}


def test_denominators_of_a_micro_batch_alone_are_named(tmp_path: Path) -> None:
    own = 'unit_tokens(batch["groups"], masks)'
    edit = Edit("lineage.py", 'tokens = batch["prompt_mask_sums"]', f"tokens = {own}")
    source = checkout(tmp_path / "slime", "slime", edit)
    found = find(tmp_path, "slime", source, ["dp1-cp1-mb2-thd"], "split_groups")

    [logged] = of_mode(of_check(found, "metric"), "prompt_mean")
    assert logged.verdict == "mismatch", "it is divided by the same"
    [finding] = of_mode(of_check(found, "weights"), "prompt_mean")
    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name == "tokens_counted_per_micro_batch"
    numbers = finding.diagnosis.numbers
    assert numbers["expected_denominator"] == pytest.approx(3 * 37)
    assert numbers["denominator"] == pytest.approx(3 * 17, rel=1e-6)
    found.remove(finding)
    found.remove(logged)
    assert verdicts(found) == {"conforms"}


@pytest.mark.parametrize(
    ("toy", "modes", "unit", "on_two_ranks"),
    [
        ("slime", {"sample_mean", "token_mean"}, "sample_unit_rollout", {"conforms", "advice"}),
        ("miles", {"sample_mean", "token_mean", "constant"}, "sample_unit_sample", {"unsupported"}),
    ],
)
def test_older_signatures_have_fewer_modes_and_conform(
    tmp_path: Path, toy: str, modes: set[str], unit: str, on_two_ranks: set[str]
) -> None:
    """What counts where a rollout has several samples is read off their code, and differs."""
    source = checkout(tmp_path / toy, toy, layers=(f"{toy}_older",))
    layouts = ["dp1-cp1-mb1-thd", "dp2-cp1-mbtokens-thd+balance_data"]
    found = find(tmp_path, toy, source, layouts, "uneven_lengths or two_steps or unequal_groups")

    told = [finding for finding in found if finding.message]
    lacking = {(f.mode, f.message) for f in told if f.mode not in modes}
    assert lacking == {(mode, f"no mode {mode}") for mode in MODES - modes}
    known = [finding for finding in found if finding.mode in modes]
    several = [finding for finding in known if finding.case == "unequal_groups"]
    assert verdicts([finding for finding in known if finding not in several]) == {"conforms"}
    assert verdicts([f for f in several if f.layout.dp == 1]) == {"conforms", "advice"}
    assert verdicts([f for f in several if f.layout.dp == 2]) == on_two_ranks
    advice = [finding for finding in several if finding.verdict == "advice"]
    assert {finding.diagnosis.name for finding in advice} == {unit}
    assert {finding.mode for finding in advice} == modes - {"token_mean"}


@pytest.mark.parametrize("toy", ["slime", "miles"])
def test_a_metric_that_is_renamed_is_not_driven(tmp_path: Path, toy: str) -> None:
    source = checkout(tmp_path / toy, toy, Edit("terms.py", '"pg_loss": loss,', '"policy": loss,'))
    found = find(tmp_path, toy, source, ["dp1-cp1-mb1-thd"], "uneven_lengths")

    assert verdicts(of_check(found, "weights")) == {"conforms"}
    assert verdicts(of_check(found, "metric")) == {"not_driven"}


def test_toy_that_declines_an_ordinary_step_is_listed_with_its_words(tmp_path: Path) -> None:
    edits = (
        Edit("utils/arguments.py", "    lineage.validate(args)", REFUSAL),
        Edit("lineage.py", "choices=MODES", "choices=MODES[:3]"),
    )
    source = checkout(tmp_path / "slime", "slime", *edits)
    found = find(tmp_path, "slime", source, ["dp1-cp1-mb1-thd"], "uneven_lengths")

    assert verdicts(found) == {"refused"}
    messages = {f.mode: f.message for f in found}
    assert "argument --loss-aggregation: invalid choice: 'constant'" in messages.pop("constant")
    assert set(messages.values()) == {"ValueError: not on a Sunday"}


def test_toy_that_raises_in_its_loss_crashes(tmp_path: Path) -> None:
    edit = Edit("terms.py", 'gain = torch.cat(batch["advantages"])', CRASH)
    source = checkout(tmp_path / "slime", "slime", edit)
    found = find(tmp_path, "slime", source, ["dp1-cp1-mb1-thd"], "uneven_lengths and token_mean")

    assert verdicts(found) == {"crashed"}
    message = found[0].message
    assert message.strip().endswith("RuntimeError: no kernel")
    assert 'File "slime/lineage.py", line ' in message
    assert str(tmp_path) not in message


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
    assert 'File "' + toy + '/lineage.py"' in found[0].message
    assert "in rollout_metrics" in found[0].message


OBJECTIVES = "off_policy or auxiliary or rejection or other_losses or [metric."

LACKING = {*POLICY_LOSSES, *CORRECTIONS} - {Objective.DUAL_CLIP, Objective.CISPO}
"""Policy losses that the toys have not."""

INDEPENDENT_OF_CUTS = {
    f"by its conventions the {term} term does not depend on micro-batches"
    for term in ("entropy", "kl")
}
"""Said of terms that are documented to be aggregated over the whole step."""


@pytest.mark.parametrize(
    ("toy", "layers", "layouts", "assumed"),
    [
        ("slime", (), ["dp2-cp2-mb2-thd"], {"denominator_mask_original"}),
        ("miles", (), ["dp1-cp2-mb1-bshd", "dp2-cp1-mb2-thd"], set()),
        ("miles", ("miles_newer",), ["dp2-cp2-mb2-thd"], {"denominator_mask_original"}),
    ],
)
def test_all_that_can_be_trained_conforms(
    tmp_path: Path, toy: str, layers: tuple[str, ...], layouts: list[str], assumed: set[str]
) -> None:
    """What is assumed of denominators is advice where tokens are rejected."""
    source = checkout(tmp_path / toy, toy, layers=layers)
    cases = "fully_masked_sample or rejected_tokens or rejected_group"
    found = find(tmp_path, toy, source, layouts, cases, subjects=OBJECTIVES)

    advice = [finding for finding in found if finding.verdict == "advice"]
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
        *INDEPENDENT_OF_CUTS,
    }


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
        *(f"no objective {name}" for name in LACKING | {"value"}),
        *INDEPENDENT_OF_CUTS,
    }


@pytest.mark.parametrize(
    ("toy", "edit", "subject", "name"),
    [
        (
            "slime",
            Edit("terms.py", '"entropy_loss": reduce(', '"entropy_loss": 2 * reduce('),
            "[auxiliary.entropy/",
            "multiplied_by_",
        ),
        (
            "miles",
            Edit(
                "terms.py",
                "reduce = make_reducer(masks",
                "masks = batch['loss_masks']; reduce = make_reducer(masks",
            ),
            "[rejection/",
            "rejection_left_out",
        ),
        (
            "slime",
            Edit("terms.py", "name: before(value)", "name: reduce(value)"),
            "rejection.metric",
            "nothing_reported",
        ),
        (
            "miles",
            Edit("terms.py", "-reduce(torch", "-0.5 * reduce(torch"),
            "other_losses.sft",
            "divided_by_",
        ),
    ],
)
def test_wrong_term_shows_where_it_is(
    tmp_path: Path, toy: str, edit: Edit, subject: str, name: str
) -> None:
    source = checkout(tmp_path / toy, toy, edit)
    cases = "fully_masked_sample or rejected_tokens"
    options = ("--modes=sample_mean",)
    found = find(tmp_path, toy, source, ["dp2-cp1-mb2-thd"], cases, *options, subjects=subject)

    [finding] = found
    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name.startswith(name)
