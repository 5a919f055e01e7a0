"""The reported policy loss is compared with the reference, and its mistakes are named."""

from dataclasses import dataclass

import numpy as np
import pytest

from adapters.contract import Description, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric, Objective
from conformance.expected.loss_terms import COMBINED, quantities
from conformance.findings.verdict import Verdict
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Judgement, Trained
from reference.aggregation import Aggregation, Mode
from reference.rounding import TERM_OPERATIONS, reported_bound
from reference.step import Step
from reference.weights import token_weights
from tests.jobs import job_of, step_of

STEP = step_of([1, 1, 1], [1, 1, 0], [1, 1], [1, 0], prompts=[1, 1, 2, 1], groups=[0, 0, 1, 2])
"""A step whose response tokens have the ids 2 to 4, 6 to 8, 11 to 12 and 14 to 15; 0 is padding.
By id, advantages cycle through 1, -1/2, 2, -1, 1/2, -2, -4, and a loss is minus an advantage: -2,
1, -1/2; 4, -1, (1/2); -1/2, 2; -1, (1/2). The samples' sums of active losses are -3/2, 3, 3/2 and
-1: 2 in all, of 8 active tokens. The absolute values of these losses sum to 12.
"""

EXPECTED = 2 / 8
MAGNITUDE = 12 / 8

ONE_RANK = Layout()
CUT = Layout(dp=2, micro_batches="uneven")
PASSES = (
    np.array([0, 0, 0, 1, 1, 1, -1, -1, -1, -1]),
    np.array([-1, -1, -1, -1, -1, -1, 0, 0, 0, 0]),
)
"""The first rank has two micro-batches of one sample; the second has one, of two samples."""


@dataclass(frozen=True)
class Judge:
    """Judges numbers as if ranks had logged them as policy losses."""

    layout: Layout = ONE_RANK
    mode: Mode = Mode.TOKEN_MEAN
    steps: tuple[Step, ...] = (STEP,)
    passes: tuple[np.ndarray, ...] = ()
    """In which forward pass each rank held each token of the first step."""

    def __call__(self, *of_ranks: float | None) -> Judgement | None:
        return self.of_steps(*((reported,) for reported in of_ranks))

    def of_steps(self, *of_ranks: tuple[float | None, ...]) -> Judgement | None:
        job = job_of(
            *self.steps,
            aggregation=Aggregation(self.mode, 10 if self.mode is Mode.CONSTANT else None),
            layout=self.layout,
        )
        passes = [(held,) for held in self.passes] or [()] * len(of_ranks)
        observations = [
            Observation(
                token_weights=(), reported={Metric.POLICY_LOSS: reported}, forward_passes=held
            )
            for reported, held in zip(of_ranks, passes, strict=True)
        ]
        return judge_logged(Trained(job, observations, Description()))


def said(judgement: Judgement | None) -> tuple[str, str, dict[str, float], list[str]]:
    assert judgement.verdict is Verdict.MISMATCH
    diagnosis = judgement.diagnosis
    return diagnosis.name, diagnosis.explanation, diagnosis.numbers, diagnosis.also


def test_reported_mean_of_all_ranks_conforms() -> None:
    judgement = Judge()(EXPECTED, EXPECTED)

    assert (judgement.verdict, judgement.error) == (Verdict.CONFORMS, 0.0)
    assert judgement.tolerance == reported_bound(8, "float32")
    assert judgement.expected == (
        ("policy_loss in policy_loss of policy, step 0, token_mean", EXPECTED),
    )


def test_error_is_relative_to_the_losses_without_their_signs_and_the_largest_is_kept() -> None:
    """The sum is a sixth of the sum of absolute values, so the bound on its error is six-fold."""
    bound = reported_bound(8, "float32")
    offs = [0.5, 0.9, -0.3]
    judgement = Judge()(*(EXPECTED + off * bound * MAGNITUDE for off in offs))
    alone = Judge()(EXPECTED + 0.5 * bound * MAGNITUDE)
    beyond = Judge()(EXPECTED, EXPECTED + 1.1 * bound * MAGNITUDE)

    assert judgement.verdict is Verdict.CONFORMS
    assert judgement.error == pytest.approx(0.9 * bound)
    assert judgement.tolerance == bound
    assert alone.error == pytest.approx(0.5 * bound)
    assert beyond.verdict is Verdict.MISMATCH
    assert beyond.error == pytest.approx(1.1 * bound)
    assert beyond.tolerance == bound
    assert beyond.logged.expected == EXPECTED
    assert beyond.logged.reported == EXPECTED + 1.1 * bound * MAGNITUDE


def name_of(judgement: Judgement) -> str:
    return judgement.diagnosis.name


def test_one_rank_that_reports_is_enough_and_no_token_needs_none() -> None:
    assert name_of(Judge()(None, None)) == "not_logged"
    assert name_of(Judge().of_steps((), ())) == "not_logged"
    for judgement in (Judge()(None, EXPECTED), Judge(steps=(step_of([0]),))(None)):
        assert judgement.verdict is Verdict.CONFORMS


def test_every_step_is_judged_by_its_own_losses() -> None:
    """Only token 17 is active in the second step; its advantage is -1."""
    second = step_of([1, 0])
    judge = Judge(steps=(STEP, second))
    right = judge.of_steps((EXPECTED, 1.0))
    off = judge.of_steps((EXPECTED, 1 + 1e-6), (EXPECTED * (1 + 1e-7), 1.0))
    wrong = judge.of_steps((EXPECTED, 0.5))

    assert (right.verdict, right.error) == (Verdict.CONFORMS, 0.0)
    assert right.tolerance == reported_bound(8, "float32")
    assert off.error == pytest.approx(1e-6)
    assert said(wrong)[1].startswith("0.5 is reported instead of 1: ")


def test_step_without_active_tokens_reports_nothing_or_zero() -> None:
    judge = Judge(steps=(step_of([0, 0]),))
    zero, other = judge(0.0), judge(1e-3)

    assert zero.verdict is Verdict.CONFORMS
    assert other.verdict is Verdict.MISMATCH
    assert other.error == 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_number_that_is_not_finite_is_a_mismatch(value: float) -> None:
    judgement = Judge()(value)

    assert said(judgement) == ("not_finite", f"{value} is reported", {}, [])
    assert judgement.error is None
    assert judgement.tolerance == reported_bound(8, "float32")


def test_factor_is_named_with_its_size() -> None:
    judgement = Judge(Layout(dp=5))(5 * EXPECTED)

    assert said(judgement) == (
        "multiplied_by_dp",
        "1.25 is reported instead of 0.25: an extra factor of dp = 5",
        {"reported": 1.25, "expected": 0.25, "dp": 5.0},
        [],
    )
    assert judgement.error == 1 / MAGNITUDE


def test_loss_of_another_mode_is_named() -> None:
    """Means of the samples are -1/2, 3/2, 3/4 and -1."""
    assert said(Judge()(0.75 / 4)) == (
        "weights_of_sample_mean",
        "0.1875 is reported instead of 0.25: reduced as sample_mean",
        {"reported": 0.1875, "expected": 0.25},
        [],
    )


@pytest.mark.parametrize(
    ("reported", "name", "words", "also"),
    [
        (
            1.5 / 8,  # the first rank's share; by chance the mean over samples, too
            "weights_of_sample_mean",
            "reduced as sample_mean",
            ["not_reduced_over_dp", "not_reduced_over_ranks"],
        ),
        (
            0.5 / 8,  # the second rank's share; by chance also a quarter of what is right
            "divided_by_samples",
            "an extra division by samples = 4",
            ["not_reduced_over_dp", "not_reduced_over_ranks", "shares_of_all_ranks_averaged"],
        ),
        (-1 / 8, "micro_batches_lost", "it is that of the first micro-batch of each rank", []),
        (3.5 / 8, "micro_batches_lost", "it is that of the last micro-batch of each rank", []),
        (
            2.0,
            "not_divided",
            "token losses are summed but never normalised",
            ["tokens_per_sample_miscounted"],
        ),
    ],
)
def test_part_of_the_loss_is_named(reported: float, name: str, words: str, also: list[str]) -> None:
    others = f"; or it is {', '.join(also)}" if also else ""
    diagnosis = said(Judge(CUT, passes=PASSES)(EXPECTED, reported))

    assert diagnosis[0] == name
    assert diagnosis[1] == f"{reported:.7g} is reported instead of 0.25: {words}{others}"
    assert diagnosis[2].items() >= {"reported": reported, "expected": 0.25}.items()
    assert diagnosis[3] == also


def test_share_of_a_slice_is_named() -> None:
    """Each of two context-parallel ranks has every other token."""
    even = np.arange(10) % 2 == 0
    passes = tuple(np.where(mine, 0, -1) for mine in (even, ~even))
    share = (-2 - 0.5 - 1 - 0.5 - 1) / 8

    assert said(Judge(Layout(cp=2), passes=passes)(share, EXPECTED)) == (
        "not_reduced_over_cp",
        "-0.625 is reported instead of 0.25: those of other context-parallel ranks were not added;"
        " or it is not_reduced_over_ranks",
        {"reported": -0.625, "expected": 0.25},
        ["not_reduced_over_ranks"],
    )


def test_what_nothing_explains_is_unexplained() -> None:
    assert said(Judge(CUT, passes=PASSES)(EXPECTED, 0.425)) == (
        "unexplained",
        "0.425 is reported instead of 0.25",
        {"reported": 0.425, "expected": 0.25},
        [],
    )


def test_zero_that_no_mistake_predicts_is_called_nothing() -> None:
    assert said(Judge()(0.0)) == (
        "nothing_reported",
        "0 is reported instead of 0.25",
        {"reported": 0.0, "expected": 0.25},
        [],
    )


def test_small_share_of_a_term_may_be_off_by_the_rounding_of_the_whole_sum() -> None:
    """The loss lacks all entropies but the first, and is off by the rounding of all its terms."""
    first = np.arange(10) == 0
    passes = tuple(np.where(mine, 0, -1) for mine in (first, ~first))
    aggregation = Aggregation(Mode.TOKEN_MEAN)
    job = job_of(STEP, aggregation=aggregation, layout=Layout(cp=2), objective=Objective.COMBINED)
    weights = token_weights(STEP, aggregation)
    batch = ProbedBatch(job.steps, job.objective)
    policy, entropy, kl = (
        coefficient * weights * quantities(metric, batch)
        for metric, coefficient in COMBINED.items()
    )
    magnitude = np.abs(policy).sum() + np.abs(kl).sum()
    off = 0.9 * reported_bound(8, "float32", TERM_OPERATIONS) * magnitude
    reported = policy.sum() + entropy[0] + kl.sum() + off
    observations = [
        Observation(token_weights=(), reported={Metric.LOSS: (reported,)}, forward_passes=(held,))
        for held in passes
    ]

    name, explanation, _, _ = said(
        judge_logged(Trained(job, observations, Description()), metric=Metric.LOSS)
    )
    assert name == "not_reduced_over_cp"
    assert explanation.startswith("entropy: ")
