"""tunix's real learner, from PyPI: its inputs, and the results of its devices."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from adapters.contract import Job
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.job import Unsupported
from adapters.contract.objective import Metric, Objective
from adapters.tunix.adapter import TunixAdapter
from adapters.tunix.framework import TUNIX
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests.adapters import steps
from tests.pools import pool_of, trained

needs_tunix = steps.marks("tunix")

CONVENTIONS = conventions_of(TUNIX.conventions)
ONE, TWO, FOUR = (f"dp{devices}-cp1-mb1-bshd" for devices in (1, 2, 4))

weights_error = partial(steps.weights_error, conventions=CONVENTIONS)


pool = pool_of(TunixAdapter, 4)


job = partial(steps.job, layout=TWO, mode=Mode.SAMPLE_MEAN)


def with_divisor(layout: str, divisor: float) -> Job:
    return replace(job(layout=layout), aggregation=Aggregation(Mode.CONSTANT, divisor))


def test_prompts_of_micro_batches_are_whole() -> None:
    """The 8 samples of a step are 4 prompts of 2, dealt over micro-batches."""
    settings = TUNIX.settings(job(layout="dp2-cp1-mb2-bshd"))

    assert settings["num_generations"] == 2
    assert (settings["mini_batch_size"], settings["train_micro_batch_size"]) == (4, 2)


def test_a_step_has_one_micro_batch_unless_a_user_says_so() -> None:
    assert "train_micro_batch_size" not in TUNIX.settings(job(layout=TWO))
    assert (
        "train_micro_batch_size" in TUNIX.description(lambda _: True, ()).chosen_by["accumulated"]
    )


def test_a_prompt_has_two_samples_at_least() -> None:
    with pytest.raises(Unsupported, match="no num_generations of 1"):
        TUNIX.settings(job(layout="dp1-cp1-mb8-bshd"))


def test_no_response_is_longer_than_the_width_that_sums_are_divided_by() -> None:
    with pytest.raises(Unsupported, match="with max_tokens_to_generate=2"):
        TUNIX.settings(with_divisor(ONE, 2.0))


class OtherMode(TunixAdapter):
    """Trains jobs of `constant` with L = 1 in the other mode that has these weights."""

    framework = replace(
        TUNIX, modes={"constant": ("constant:1", {"loss_agg_mode": "sequence-mean-token-sum-norm"})}
    )


class TestReal:
    pytestmark = needs_tunix

    @pytest.mark.parametrize("layout", [ONE, TWO, FOUR])
    @pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT])
    def test_modes_have_their_documented_weights(
        self, pool: RankPool, mode: Mode, layout: str
    ) -> None:
        given = job(mode=mode, layout=layout)

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    def test_sums_of_tokens_are_averaged_over_samples(self, pool: RankPool) -> None:
        given = with_divisor(TWO, 1.0)

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    def test_divisor_that_no_option_sets_is_the_number_of_samples(self) -> None:
        """By default, `sequence-mean-token-sum-norm` divides by the samples with active tokens."""
        given = with_divisor(TWO, 1.0)
        with RankPool(OtherMode(), None, 2) as other:
            outcome = other.run(given)

        assert weights_error(outcome, given) <= weight_bound("float32")

    def test_each_device_holds_its_own_rows(self, pool: RankPool) -> None:
        outcome = trained(pool, job(layout=FOUR))

        held = np.array([rank.forward_passes[0] for rank in outcome.observations]) >= 0
        assert (held.sum(axis=0) == 1).all()
        assert held.any(axis=1).all()

    def test_gradient_of_micro_batches_is_the_mean_of_their_means(self, pool: RankPool) -> None:
        """0.1.7 averages the gradients of micro-batches, in `token-mean` too."""
        given = job(mode=Mode.TOKEN_MEAN, layout="dp1-cp1-mb2-bshd")
        outcome = trained(pool, given)

        [rank] = outcome.observations
        mask, part = given.steps[0].mask, rank.forward_passes[0]
        tokens = np.bincount(part[mask])
        assert len(set(tokens)) == 2
        assert rank.token_weights[0][mask] == pytest.approx(0.5 / tokens[part[mask]], rel=1e-6)

    def test_a_log_has_the_divergence_and_clipped_tokens(self, pool: RankPool) -> None:
        divergent, clipped = (job(objective=one) for one in (Objective.KL, Objective.OFF_POLICY))
        outcomes = [pool.run(divergent), pool.run(clipped)]

        logs = [one.observations[0].reported for one in outcomes if isinstance(one, Ran)]
        mask = divergent.steps[0].mask
        divergences = np.concatenate(ProbedBatch(divergent.steps).reference_log_probs)
        assert logs[0][Metric.KL] == (pytest.approx(-divergences[mask].mean()),)
        assert 0 < (logs[1][Metric.CLIP_FRACTION][0] or 0) < 1
