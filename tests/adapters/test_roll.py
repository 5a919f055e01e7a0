"""ROLL's real pipeline and workers, where a clone is given: what they are handed, and read."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Description, Job
from adapters.contract.conventions import conventions_of
from adapters.contract.objective import ADVANTAGE_CONSTANTS, Metric, Objective
from adapters.contract.probed_batch import PADDING_VALUE, ProbedBatch
from adapters.roll.adapter import CONVENTIONS
from adapters.roll.fsdp import RollFsdpAdapter
from adapters.roll.megatron import RollMegatronAdapter
from adapters.toolkit.source import resolve
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_combined, judge_off_policy
from conformance.judging.metrics import judge_logged
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

pytestmark = [
    pytest.mark.roll,
    pytest.mark.skipif(
        command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
    ),
    pytest.mark.skipif(find_spec("dacite") is None, reason="the extra roll is not installed"),
]

COMMIT = "8eb27cc2dc34c4d1310b169d9b86d339004d811a"

CLONE = Path(os.environ.get(command.SOURCES, "")) / "roll"

ONE, TWO = "dp1-cp1-mb2-bshd", "dp2-cp1-mb2-bshd"
OF_POLICY_GRADIENTS = f"{TWO}+policy_gradient_worker"

weights_error = partial(steps.weights_error, conventions=conventions_of(CONVENTIONS))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    adapter = RollFsdpAdapter()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    pytest.importorskip("megatron.core", reason="the extra megatron is not installed")
    adapter = RollMegatronAdapter()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.SAMPLE_MEAN,
    layout: str = TWO,
    objective: Objective = Objective.POLICY,
) -> Job:
    """By default in the mode that is ROLL's."""
    return steps.job(case, mode, layout, objective)


def description() -> Description:
    """What the judge knows of ROLL here: its conventions."""
    return Description(declared=CONVENTIONS)


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN])
@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-mb1-bshd",
        TWO,
        "dp2-cp1-mbtokens-bshd",
        "dp2-cp2-mb2-bshd",
        "dp4-cp1-mb2-bshd+hybrid_sharding",
        "dp2-cp1-mb2-bshd+two_epochs",
        OF_POLICY_GRADIENTS,
    ],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_weights_are_those_of_the_mode(pool: RankPool, case: str, layout: str, mode: Mode) -> None:
    given = job(case, mode, layout)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN])
@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-mb1-bshd",
        TWO,
        "dp2-cp1-mbtokens-bshd",
        "dp1-cp4-mb2-bshd",
        "dp2-cp2-mb2-bshd+distributed_optimizer",
        "dp2-cp2-mb2-bshd+overlap_grad_reduce",
        "dp2-cp2-mb2-bshd+two_epochs",
        "dp1-cp2-pp2-mb2-bshd",
        "dp1-cp1-pp2-mb2-bshd+interleaved",
    ],
)
def test_weights_on_megatron_are_those_of_the_mode(
    megatron: RankPool, layout: str, mode: Mode
) -> None:
    given = job(mode=mode, layout=layout)

    assert weights_error(megatron.run(given), given) <= weight_bound("float32")


def test_divisors_on_megatron_are_the_widths_of_micro_batches(megatron: RankPool) -> None:
    """By tokens, rows are cut to the longest of each: 11, 14 and 19 tokens, less one."""
    given = job("short_responses", Mode.CONSTANT, "dp2-cp1-mbtokens-bshd")
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    [step], sample = given.steps, ProbedBatch(given.steps).sample
    divisors = np.array([10, 18, 10, 13, 10, 18, 10, 13])[sample]
    [weights] = outcome.observations[0].token_weights
    assert weights == pytest.approx(step.mask / divisors)


def test_sums_of_samples_are_averaged_without_a_divisor(pool: RankPool) -> None:
    """`seq-mean-token-sum` is the mode of L = 1; of eight samples seven have an active token."""
    given = replace(job(), aggregation=Aggregation(Mode.CONSTANT, 1.0))
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0].max() == pytest.approx(1 / 7)


def test_sums_of_samples_are_not_averaged_with_a_divisor(pool: RankPool) -> None:
    """`seq-mean-token-sum-norm` divides by the 40 positions of a row alone."""
    outcome = pool.run(job("uneven_lengths", Mode.CONSTANT))

    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0].max() == pytest.approx(1 / 40)


@pytest.mark.parametrize("objective", [Objective.ENTROPY, Objective.KL])
@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN])
@pytest.mark.parametrize("engine", ["pool", "megatron"])
def test_other_terms_are_aggregated_as_the_policy_loss_is(
    objective: Objective, mode: Mode, engine: str, request: pytest.FixtureRequest
) -> None:
    given = job(MASKED.name, mode, "dp2-cp2-mb2-bshd", objective)
    outcome = request.getfixturevalue(engine).run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")


def test_terms_of_a_loss_are_added_up(pool: RankPool) -> None:
    given = job(objective=Objective.COMBINED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_combined(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


@pytest.mark.parametrize(
    "objective",
    [
        Objective.OFF_POLICY,
        Objective.DUAL_CLIP,
        Objective.GSPO,
        Objective.CISPO,
        Objective.GPG,
        Objective.DRO,
        Objective.TIS_TOKEN,
        Objective.TIS_SEQUENCE,
    ],
)
def test_off_policy_losses_have_the_derivatives_of_the_reference(
    pool: RankPool, objective: Objective
) -> None:
    given = job(layout="dp1-cp2-mb2-bshd", objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_off_policy(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


def test_ppo_of_the_worker_of_policy_gradients_is_clipped_and_logged(pool: RankPool) -> None:
    given = job(layout=OF_POLICY_GRADIENTS, objective=Objective.DUAL_CLIP)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    clipped = judge_off_policy(given, outcome.observations, description())
    assert clipped.verdict is Verdict.CONFORMS, clipped
    logged = judge_logged(given, outcome.observations, description(), Metric.POLICY_KL)
    assert logged.verdict is Verdict.CONFORMS, logged


@pytest.mark.parametrize(
    ("objective", "lacking"),
    [
        (Objective.GSPO, "has ratios of tokens alone"),
        (Objective.OFF_POLICY, "not whether they are"),
    ],
)
def test_worker_of_policy_gradients_is_not_asked_for_what_it_lacks(
    pool: RankPool, objective: Objective, lacking: str
) -> None:
    outcome = pool.run(job(layout=OF_POLICY_GRADIENTS, objective=objective))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == "unsupported"
    assert lacking in outcome.message


def test_filtered_tokens_train_in_a_mean_over_tokens(pool: RankPool) -> None:
    """Nine of 30 active tokens are filtered out; all 30 have a weight, of 1/30."""
    given = job("rejected_tokens", Mode.TOKEN_MEAN, objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [step] = given.steps
    for rank in outcome.observations:
        expected = step.mask_before_rejection / 30
        assert rank.token_weights[0] == pytest.approx(expected, rel=1e-5)


def test_filtered_samples_count_in_a_mean_over_samples(pool: RankPool) -> None:
    """Two of eight samples are filtered out; the others weigh 1/8 each, and not 1/6."""
    given = job("rejected_sample", objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [step], sample = given.steps, ProbedBatch(given.steps).sample
    left = np.bincount(sample, weights=step.mask)
    assert np.count_nonzero(left) == 6
    of_samples = np.bincount(sample, weights=outcome.observations[0].token_weights[0])
    assert of_samples[left > 0] == pytest.approx(1 / 8, rel=1e-5)


def test_share_of_filtered_tokens_is_averaged_over_micro_batches(pool: RankPool) -> None:
    """By hand: each micro-batch's share of its active tokens, by ROLL's own cut."""
    given = job("rejected_tokens", layout=ONE, objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [rank], [step] = outcome.observations, given.steps
    active, [passes] = step.mask_before_rejection, rank.forward_passes
    shares = [
        (active & ~step.mask)[passes == one].sum() / active[passes == one].sum() for one in (0, 1)
    ]
    assert rank.reported[Metric.REJECTED] == pytest.approx((np.mean(shares),))


def test_means_of_a_critics_micro_batches_are_added_up(pool: RankPool) -> None:
    """Each of 4 micro-batches has a mean over 2 samples: a sample weighs 1/2, and not 1/8."""
    given = job("uneven_lengths", objective=Objective.VALUE)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    sample = ProbedBatch(given.steps).sample
    of_samples = np.bincount(sample, weights=outcome.observations[0].token_weights[0])
    assert of_samples == pytest.approx(1 / 2, rel=1e-5)


@pytest.mark.parametrize(
    "objective",
    [
        Objective.GROUP_NORMALISED,
        Objective.GROUP_CENTRED,
        Objective.GROUP_WHITENED,
        Objective.REINFORCE_PP,
        Objective.REINFORCE_PP_BASELINE,
    ],
)
def test_advantages_are_those_of_the_reference(pool: RankPool, objective: Objective) -> None:
    given = job("fully_masked_sample", objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


def test_advantages_of_values_go_on_in_padding(pool: RankPool) -> None:
    given = job("long_prompts", objective=Objective.GAE)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert observed_advantages(given, outcome) == pytest.approx(
        advantages_with_values(given, range(8)), rel=1e-4, abs=1e-5
    )
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "padding_bootstrapped"


def test_advantages_of_values_go_on_in_padding_of_slices(megatron: RankPool) -> None:
    """Four context-parallel ranks have two slices each: 19 tokens are padded to 24."""
    given = job("short_responses", layout="dp1-cp4-mbtokens-bshd", objective=Objective.GAE)
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    assert observed_advantages(given, outcome) == pytest.approx(
        advantages_with_values(given, range(8), slices=8), rel=1e-4, abs=1e-5
    )
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "padding_bootstrapped"


def test_values_are_those_of_other_samples_once_a_batch_is_reordered(pool: RankPool) -> None:
    """On one rank: by length, every other sample first, and then the others backwards."""
    given = job("long_prompts", layout=ONE, objective=Objective.PENALISED_GAE)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    by_length = np.argsort(attended(given), kind="stable")
    reordered = [*by_length[::2], *by_length[1::2][::-1]]
    values_of = [reordered.index(sample) for sample in range(8)]
    assert observed_advantages(given, outcome) == pytest.approx(
        advantages_with_values(given, values_of), rel=1e-4, abs=1e-5
    )
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "values_of_other_samples"


def observed_advantages(given: Job, outcome: Ran) -> NDArray[np.float64]:
    """The advantages of active tokens that a mean over samples was taken of."""
    [step], sample = given.steps, ProbedBatch(given.steps).sample
    active = np.bincount(sample, weights=step.mask)
    weights = outcome.observations[0].token_weights[0]
    return (weights * len(active) * active[sample])[step.mask]


def attended(given: Job) -> NDArray[np.int64]:
    """The tokens of each sample up to its last active one."""
    batch = ProbedBatch(given.steps)
    return np.array(
        [
            len(prompt) + np.flatnonzero(mask)[-1] + 1
            for prompt, mask in zip(batch.prompts, batch.masks, strict=True)
        ]
    )


def advantages_with_values(
    given: Job, values_of: range | list[int], slices: int = 1
) -> NDArray[np.float64]:
    """GAE over whole rows with the values of other samples' rows, whitened by active tokens."""
    batch, constants = ProbedBatch(given.steps, given.objective), ADVANTAGE_CONSTANTS
    penalty = constants.penalty * (given.objective is Objective.PENALISED_GAE)
    rows = [len(p) + len(r) for p, r in zip(batch.prompts, batch.responses, strict=True)]
    width = -(-max(rows) // slices) * slices - 1
    values = np.full((8, width), PADDING_VALUE)
    rewards, masks = np.zeros((8, width)), np.zeros((8, width), np.bool_)
    for index, (prompt, mask) in enumerate(zip(batch.prompts, batch.masks, strict=True)):
        place = slice(len(prompt) - 1, rows[index] - 1)
        values[index, place], masks[index, place] = batch.values[index], mask
        rewards[index, place] = penalty * batch.reference_log_probs[index] * mask
        rewards[index, attended(given)[index] - 2] += batch.rewards[index]
    values, found = values[values_of], np.zeros((8, width + 1))
    for place in range(width - 1, -1, -1):
        following = values[:, place + 1] if place < width - 1 else 0.0
        delta = rewards[:, place] + constants.discount * following - values[:, place]
        found[:, place] = delta + constants.discount * constants.trace * found[:, place + 1]
    raw = found[:, :-1][masks]
    return (raw - raw.mean()) / raw.std(ddof=1)


@pytest.mark.parametrize(
    "metric", [Metric.POLICY_LOSS, Metric.LOSS, Metric.CLIP_FRACTION, Metric.POLICY_KL]
)
@pytest.mark.parametrize("layout", ["dp2-cp2-mb2-bshd", "dp2-cp1-mb2-bshd+two_epochs"])
def test_logged_numbers_are_aggregated_over_micro_batches_and_ranks(
    pool: RankPool, metric: Metric, layout: str
) -> None:
    given = job(layout=layout, objective=Objective.OFF_POLICY)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert all(rank.reported[metric] for rank in outcome.observations)
    judged = judge_logged(given, outcome.observations, description(), metric)
    assert judged.verdict is Verdict.CONFORMS, judged


def test_samples_are_dealt_by_rolls_balancing(pool: RankPool) -> None:
    """By length: of eight samples each rank has four, and those of rank 0 are not the first."""
    outcome = pool.run(given := job("uneven_lengths"))

    assert isinstance(outcome, Ran), outcome
    sample = ProbedBatch(given.steps).sample
    dealt = [np.unique(sample[rank.forward_passes[0] >= 0]) for rank in outcome.observations]
    assert [len(one) for one in dealt] == [4, 4]
    assert not np.intersect1d(*dealt).size
    assert dealt[0].tolist() != [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("case", "layout", "reason"),
    [
        ("nine_samples", TWO, "9 samples is not dealt to 2 ranks"),
        ("ten_samples", TWO, "no 2 micro-batches of a rank's 5 samples"),
        ("no_active_token", TWO, "Current step will be skipped"),
    ],
)
def test_steps_that_roll_does_not_take_are_declined(
    pool: RankPool, case: str, layout: str, reason: str
) -> None:
    outcome = pool.run(job(case, layout=layout))

    assert isinstance(outcome, Declined), outcome
    assert reason in outcome.message
