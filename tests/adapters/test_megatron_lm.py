"""Megatron-LM's real trainer, where a clone is given: how it is driven, and what it does."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from adapters.contract import Job, Unsupported
from adapters.contract.description import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.contract.recipe import Typed
from adapters.megatron_lm.adapter import MegatronLmAdapter
from adapters.megatron_lm.framework import MEGATRON_LM, PER_TOKEN
from adapters.megatron_lm.importing import partitioned
from conformance.findings.errors import InvalidRecipeError
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from conformance.recipes.matching import match
from conformance.recipes.running import read
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests.adapters import steps
from tests.pools import pool_of, trained, version_of

if TYPE_CHECKING:
    pass

needs_megatron_lm = steps.marks("megatron_lm")

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"

ROWS, PACKED = "dp2-cp1-mb2-bshd", "dp2-cp1-mbtokens-thd"
ONE_BY_ONE = "dp2-cp1-mbtokens-bshd"

weights_error = partial(steps.weights_error, conventions=conventions_of(MEGATRON_LM.conventions))


job = partial(steps.job, case="uneven_lengths", layout=ROWS)


pool = pool_of(MegatronLmAdapter, 4, COMMIT)


def weights(pool: RankPool, given: Job) -> np.ndarray:
    outcome = trained(pool, given)
    weighed: np.ndarray = outcome.observations[-1].token_weights[0]
    return weighed


def test_a_step_is_filled_up_with_failed_episodes() -> None:
    settings = MEGATRON_LM.settings(job(layout="dp4-cp1-mb2-bshd", case="nine_samples"))

    assert settings["--global-batch-size"] % (4 * settings["--micro-batch-size"]) == 0


def test_samples_of_a_micro_batch_have_a_mode_with_the_loss_per_token_alone() -> None:
    with pytest.raises(Unsupported, match="mean of their tokens, which is none of the modes"):
        MEGATRON_LM.settings(job(mode=Mode.SAMPLE_MEAN))

    assert (
        MEGATRON_LM.settings(job(layout=ONE_BY_ONE, mode=Mode.SAMPLE_MEAN))["--micro-batch-size"]
        == 1
    )


def test_context_parallel_ranks_hold_chunks_from_both_ends() -> None:
    starts = torch.tensor([0, 8, 12, 12])

    held = [partitioned(starts, 12, 2, part).tolist() for part in (0, 1)]

    assert held == [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]


def words_of(given: Job) -> tuple[str, ...]:
    """The command-line words of a recipe that asks for a job."""
    from adapters.megatron_lm.driving import words  # imports transformers

    return tuple(words(MEGATRON_LM.settings(given)))


def own_losses(pool: RankPool, given: Job) -> list[float]:
    """The coefficients of a router's losses, divided by the configured ones."""
    outcome = trained(pool, replace(given, objective=Objective.ROUTER))
    return [one for [one] in outcome.observations[0].own_losses.values()]


class UnscaledExperts(MegatronLmAdapter):
    """Divides the gradients of all parameters except experts by the tokens of a step."""

    def load(self, source: Path | None) -> None:
        super().load(source)
        kind = importlib.import_module("megatron.core.distributed").DistributedDataParallel
        kind.scale_gradients = lambda chunk, factor: [
            buffer.scale_gradients(factor) for buffer in chunk.buffers
        ]


class MicroBatchMeans(MegatronLmAdapter):
    """Trains micro-batches of several samples without the loss per token."""

    framework = replace(MEGATRON_LM, modes={"default": (Mode.TOKEN_MEAN, {})})


class TestReal:
    pytestmark = needs_megatron_lm

    @pytest.mark.parametrize(
        ("layout", "mode"),
        [
            (ROWS, Mode.TOKEN_MEAN),
            ("dp2-cp2-mb2-bshd", Mode.TOKEN_MEAN),
            ("dp1-cp2-mbtokens-thd", Mode.TOKEN_MEAN),
            ("dp2-cp1-tp2-mb2-bshd", Mode.TOKEN_MEAN),
            ("dp2-cp1-pp2-mb2-bshd", Mode.TOKEN_MEAN),
            (ONE_BY_ONE, Mode.SAMPLE_MEAN),
            ("dp4-cp1-mb2-bshd+expert_parallel", Mode.TOKEN_MEAN),
            ("dp2-cp2-mbtokens-thd+expert_parallel", Mode.TOKEN_MEAN),
            (f"{ONE_BY_ONE}+expert_parallel", Mode.SAMPLE_MEAN),
        ],
    )
    def test_modes_have_their_weights(self, pool: RankPool, layout: str, mode: Mode) -> None:
        given = job(layout=layout, mode=mode)

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    def test_bins_without_active_tokens_count_as_one_token(self, pool: RankPool) -> None:
        """The 23 tokens of the case are divided by 25: one bin is masked, and one is padding."""
        given = job(layout=PACKED, case="fully_masked_sample")

        mask = given.steps[0].mask
        assert mask.sum() == 23
        assert weights(pool, given)[mask] == pytest.approx(1 / 25, rel=1e-6)

    def test_without_the_loss_per_token_micro_batches_are_averaged(self) -> None:
        path = version_of(MegatronLmAdapter(), COMMIT)
        given = job(layout="dp1-cp1-mb2-bshd")
        with RankPool(MicroBatchMeans(), path, 1) as other:
            outcome = trained(other, given)

        [rank] = outcome.observations
        mask, part = given.steps[0].mask, rank.forward_passes[0]
        tokens = np.bincount(part[mask])
        assert len(set(tokens)) == 2
        assert rank.token_weights[0][mask] == pytest.approx(0.5 / tokens[part[mask]], rel=1e-6)

    def test_gradients_of_experts_that_are_not_scaled_with_the_others_are_seen(self) -> None:
        path = version_of(MegatronLmAdapter(), COMMIT)
        given = job(layout="dp2-cp1-mb2-bshd+expert_parallel")
        with RankPool(UnscaledExperts(), path, 2) as other:
            weighed = weights(other, given)

        assert weighed[given.steps[0].mask] == pytest.approx(1.0, rel=1e-6)

    @pytest.mark.parametrize("option", ["", "+expert_parallel"])
    def test_losses_of_a_router_have_their_coefficients_whoever_has_the_experts(
        self, pool: RankPool, option: str
    ) -> None:
        """With a loss per token, Megatron-Core also counts prompts and padding: 144, not 35 tokens.

        Jobs of the policy loss run before and after; their models have no router.
        """
        policy = job(layout=ONE_BY_ONE + option, mode=Mode.SAMPLE_MEAN)
        before = weights(pool, policy)
        per_sample = own_losses(pool, job(layout=ONE_BY_ONE + option, mode=Mode.SAMPLE_MEAN))
        per_token = own_losses(pool, job(layout=ONE_BY_ONE + option, mode=Mode.TOKEN_MEAN))

        assert per_sample == pytest.approx([1.0, 1.0], rel=1e-6)
        assert per_token == pytest.approx([144 / 35, 144 / 35], rel=1e-6)
        assert np.array_equal(weights(pool, policy), before)

    def test_logged_numbers_are_means_over_tokens_of_the_step(self, pool: RankPool) -> None:
        outcome = trained(pool, job(objective=Objective.OFF_POLICY))

        logs = [one.reported for one in outcome.observations]
        assert logs[0] == {}, "the last rank alone writes"
        [ratio] = logs[1][Metric.RATIO]
        assert ratio is not None
        assert 1 < ratio < np.exp(1.25)

    @pytest.mark.parametrize(
        ("layout", "mode"), [(PACKED, Mode.TOKEN_MEAN), (ONE_BY_ONE, Mode.SAMPLE_MEAN)]
    )
    def test_recipe_is_what_megatron_makes_of_words(self, layout: str, mode: Mode) -> None:
        given = job(layout=layout, mode=mode)
        typed = Typed(words=words_of(given), ranks=2)
        path = version_of(MegatronLmAdapter(), COMMIT)

        recipe = read(MegatronLmAdapter(), path, typed)

        assert (recipe.layout, recipe.samples, recipe.steps) == (given.layout, 8, 1)
        assert match(MEGATRON_LM, recipe).aggregation == given.aggregation

    def test_recipe_without_a_mode_is_refused(self) -> None:
        packed = words_of(job(layout=PACKED))
        typed = Typed(words=tuple(one for one in packed if one != PER_TOKEN), ranks=2)
        path = version_of(MegatronLmAdapter(), COMMIT)

        with pytest.raises(InvalidRecipeError, match="have no mode without"):
            read(MegatronLmAdapter(), path, typed)

    def test_options_of_reinforcement_learning_are_known(self, pool: RankPool) -> None:
        assert pool.description.new_options == ()
        assert "--rl-use-sequence-packing" in str(pool.description.chosen_by["mbtokens-thd"])


class TestRelease:
    """The newest release, which lacks the main branch's placeholders for failed rollouts."""

    pytestmark = needs_megatron_lm

    def test_only_versions_with_placeholders_are_given_missing_rollouts(
        self, other_release: None
    ) -> None:
        one_by_one = partial(job, layout=ONE_BY_ONE, mode=Mode.SAMPLE_MEAN)
        path = version_of(MegatronLmAdapter(), "core_v0.19.0")
        with RankPool(MegatronLmAdapter(), path, 2) as of_release:
            whole, short = map(of_release.run, (one_by_one(), one_by_one(case="nine_samples")))

        assert isinstance(whole, Ran)
        assert isinstance(short, Declined)
        assert "no missing rollouts" in short.message


@pytest.mark.parametrize(("ref", "factor"), [("34c3741f56^", 2), ("34c3741f56", 1)])
class TestMended:
    """A commit that fixed Megatron-LM's loss, and the commit before it."""

    pytestmark = needs_megatron_lm

    def test_a_loss_was_multiplied_by_context_parallel_ranks(
        self, other_release: None, ref: str, factor: int
    ) -> None:
        given = job(layout="dp1-cp2-mb2-bshd")
        path = version_of(MegatronLmAdapter(), ref)
        with RankPool(MegatronLmAdapter(), path, 2) as of_ref:
            weighed = weights(of_ref, given)

        mask = given.steps[0].mask
        assert weighed[mask] == pytest.approx(factor / mask.sum(), rel=1e-6)
