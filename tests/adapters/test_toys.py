"""The adapter of slime, end to end on a toy of it: right and broken.

If there are clones of slime and miles, `test_real_megatron` runs their real code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.contract.objective import CORRECTIONS, POLICY_LOSSES, Objective
from conformance.findings.finding import Finding
from tests.toys import Edit, checkout
from tests.toys.running import find, verdicts

TELLING_CASES = "fully_masked_sample or short_responses or unequal_groups or two_steps"
"""Empty samples and slices, groups over several ranks, rollouts of several samples, two steps."""

WITHOUT_FACTORS = (
    Edit("lineage.py", "grid.dp.size * grid.cp.size * num_microbatches / rollouts", "1 / rollouts"),
    Edit("lineage.py", "return loss * grid.cp.size, num_tokens", "return loss, num_tokens"),
)


REFUSAL = '    raise ValueError("not on a Sunday")'


FACTORS = {"dp2-cp1-mb1-thd": "dp", "dp1-cp2-mb1-thd": "cp", "dp1-cp1-mb2-thd": "micro_batches"}


def layout_of(finding: Finding) -> str:
    return str(finding.id.rpartition("/")[2])


def reasons(found: list[Finding]) -> set[tuple[str, str]]:
    """The layouts of findings that were not run, each with the reason."""
    return {(layout_of(f), f.message) for f in found if f.verdict == "unsupported"}


def test_slime_conforms_where_options_meet_modes(tmp_path: Path) -> None:
    average, gather = "dp2-cp2-mb2-thd+average_in_collective", "dp1-cp2-mb1-thd+allgather_cp"
    layouts = ["dp1-cp1-mb2-bshd", "dp2-cp1-mbtokens-thd+balance_data", average, gather]
    found = find(tmp_path, checkout(tmp_path / "slime"), layouts, TELLING_CASES)

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
    found = find(tmp_path, checkout(tmp_path / "slime"), layouts, TELLING_CASES)

    assert verdicts(found) == {"conforms"}


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


@pytest.mark.parametrize("depth", ["loss", "reducer"])
def test_depths_below_the_step_conform(tmp_path: Path, depth: str) -> None:
    source = checkout(tmp_path / "slime")
    layouts = ["dp2-cp2-mb2-thd", "dp1-cp2-tp2-mb1-thd"]
    options = ("fully_masked or split_groups or two_steps", f"--depth={depth}")
    found = find(tmp_path, source, layouts, *options)

    assert verdicts(found) == {"conforms"}
    assert {finding.depth for finding in found} == {depth}


def test_toy_that_declines_an_ordinary_step_is_listed_with_its_words(tmp_path: Path) -> None:
    edits = (
        Edit("utils/arguments.py", "    lineage.validate(args)", REFUSAL),
        Edit("lineage.py", "choices=MODES", "choices=MODES[:3]"),
    )
    source = checkout(tmp_path / "slime", *edits)
    found = find(tmp_path, source, ["dp1-cp1-mb1-thd"], "uneven_lengths")

    assert {(f.verdict, f.message) for f in found if f.mode != "constant"} == {
        ("refused", "ValueError: not on a Sunday")
    }
    assert {(f.verdict, f.message) for f in found if f.mode == "constant"} == {
        ("unsupported", "no mode constant")
    }, "a choice that the option does not have"


def test_toy_that_raises_before_its_train_step_crashes(tmp_path: Path) -> None:
    """The toy raises while it logs the rollouts, which would crash a user's trainer as well."""
    rollout_metrics = 'names = ("advantages", "log_probs", "returns")'
    edit = Edit("lineage.py", rollout_metrics, "names = (torch.cat(data['groups']),)")
    source = checkout(tmp_path / "slime", edit)
    found = find(tmp_path, source, ["dp1-cp1-mb1-thd"], "uneven_lengths", "--modes=token_mean")

    assert verdicts(found) == {"crashed"}
    message = found[0].message
    assert 'File "slime/lineage.py"' in message
    assert "in rollout_metrics" in message
    assert str(tmp_path) not in message


OBJECTIVES = "off_policy or auxiliary or rejection or other_losses or [metric."

LACKING = {
    *({*POLICY_LOSSES, *CORRECTIONS} - {Objective.DUAL_CLIP, Objective.CISPO}),
    Objective.ADAPTIVE_KL,
    Objective.WITH_VALUE,
    Objective.VALUE_CLIPPED,
    Objective.TEACHER,
    Objective.TEACHER_REWARD,
}
"""Losses that the toy does not have."""


@pytest.mark.thorough
def test_all_that_can_be_trained_conforms(tmp_path: Path) -> None:
    """If tokens are rejected, the assumed mask of denominators gives advice."""
    source, subjects = checkout(tmp_path / "slime"), OBJECTIVES
    cases = "fully_masked_sample or rejected_tokens or rejected_group"
    found = find(tmp_path, source, ["dp2-cp2-mb2-thd"], cases, subjects=subjects)

    advice = [one for one in found if one.verdict == "advice"]
    assert verdicts(found) == {"conforms", "refused", "unsupported", "advice"}
    assert {one.diagnosis.name for one in advice} == {"denominator_mask_original"}
    assert {one.check for one in advice} == {"rejection"}
    refused = {(f.check, f.mode) for f in found if f.verdict == "refused"}
    assert refused == {
        ("auxiliary", "token_mean"),
        ("metric", "token_mean"),
        ("rejection", "prompt_mean"),
        ("rejection", "token_mean"),
    }
    assert {reason for _, reason in reasons(found)} == {
        *(f"no objective {name}" for name in LACKING),
        "no metric ratio",
    }


class Mistake(NamedTuple):
    """Edits of a toy, a finding that they make wrong, and the beginning of the mistake's name."""

    finding: str
    name: str
    layout: str
    edits: Sequence[Edit]


MASKED_BY_THEN = "masks = batch['loss_masks']; reduce = make_reducer(masks"

MISTAKES = (
    *(
        Mistake("weights/sample_mean/odd", f"divided_by_{factor}", layout, WITHOUT_FACTORS)
        for layout, factor in FACTORS.items()
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
    Mistake(
        "metric/token_mean/odd",
        "divided_by_",
        "dp2-cp1-mb1-thd",
        [Edit("lineage.py", "value / count if count", "value / count / 2 if count")],
    ),
    Mistake(
        "auxiliary.entropy/sample_mean/fully_masked_sample",
        "multiplied_by_",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", '"entropy_loss": reduce(', '"entropy_loss": 2 * reduce(')],
    ),
    Mistake(
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
    Mistake(
        "other_losses.sft/sample_mean/fully_masked_sample",
        "divided_by_",
        "dp2-cp1-mb2-thd",
        [Edit("terms.py", "-reduce(torch", "-0.5 * reduce(torch")],
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: f"{one.layout} {one.finding}")
def test_mistake_shows_where_it_is(tmp_path: Path, mistake: Mistake) -> None:
    source = checkout(tmp_path / "slime", *mistake.edits)
    [finding] = find(tmp_path, source, [mistake.layout], f"[{mistake.finding}", subjects="dp")

    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name.startswith(mistake.name)
