"""open-instruct's real trainer, where a clone is given: how it is driven, and what it does."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Job, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.open_instruct.adapter import OpenInstructAdapter
from adapters.open_instruct.framework import OPEN_INSTRUCT
from adapters.open_instruct.packing import packing_of
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.pools import pool_of, trained, trained_alone

if TYPE_CHECKING:
    pass

needs_open_instruct = steps.marks("open_instruct")

COMMIT = "e6c3044aa6201c8bfa4573c1b03142af599e730d"

CLONE = Path(os.environ.get(command.SOURCES, "")) / "open_instruct"

ONE, TWO, SHARED = "dp1-cp1-mb2-thd", "dp2-cp1-mb2-thd", "dp1-cp2-mb2-thd"

weights_error = partial(steps.weights_error, conventions=conventions_of(OPEN_INSTRUCT.conventions))


job = partial(steps.job, layout=TWO)


pool = pool_of(OpenInstructAdapter, 4, COMMIT)


def test_constant_is_one_number_for_all_samples_of_a_step() -> None:
    given = replace(job(), aggregation=Aggregation(Mode.CONSTANT, 40.0))

    assert OPEN_INSTRUCT.settings(given)["loss_denominator"] == "320.0"


@pytest.mark.parametrize("layout", [ONE, TWO, f"{ONE}+shared_generation"])
def test_rows_have_the_samples_of_one_step(layout: str) -> None:
    generations = packing_of(job(layout=layout, case="two_steps")).generations

    assert sorted(sample for one in generations for sample in one) == [*range(16)]
    assert len(generations) == (1 if "shared" in layout else 2)


def test_a_step_that_no_length_of_rows_cuts_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="no pack_length cuts the samples into"):
        OPEN_INSTRUCT.settings(job(layout="dp4-cp1-mb2-thd", case="uneven_lengths"))


class Cispo(OpenInstructAdapter):
    """Trains every job with CISPO, the framework's other policy loss."""

    framework = replace(OPEN_INSTRUCT, always={**OPEN_INSTRUCT.always, "loss_fn": "cispo"})


class MaskingSequences(OpenInstructAdapter):
    """Has the option by which whole sequences are dropped."""

    framework = replace(
        OPEN_INSTRUCT,
        objectives={
            Objective.SEQUENCE_MASKED: {
                **OPEN_INSTRUCT.objectives[Objective.ICEPOP],
                "rho_mask_sequence_level": True,
                "rho_mask_upper_bound": CONSTANTS.kept_high,
            }
        },
    )


class TestReal:
    pytestmark = needs_open_instruct

    @pytest.mark.parametrize("layout", [ONE, TWO, f"{TWO}+zero_3", "dp4-cp1-mb1-bshd"])
    @pytest.mark.parametrize("mode", [Mode.TOKEN_MEAN, Mode.CONSTANT])
    def test_modes_have_their_documented_weights(
        self, pool: RankPool, mode: Mode, layout: str
    ) -> None:
        given = job(layout=layout, mode=mode)

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    @pytest.mark.parametrize("option", ["shared_generation", "two_epochs"])
    def test_each_step_of_a_batch_has_its_own_count(self, pool: RankPool, option: str) -> None:
        given = job(layout=f"{TWO}+{option}", case="two_steps")

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    def test_cispo_has_its_documented_derivative(self) -> None:
        given = job(objective=Objective.OFF_POLICY)
        outcome = trained_alone(Cispo(), given, COMMIT)

        expected = steps.documented_gradient("cispo", given)
        for rank in outcome.observations:
            [weights] = rank.token_weights
            assert steps.gradient(given, weights) == pytest.approx(expected, rel=1e-5)

    def test_ranks_that_share_rows_lose_the_first_token_of_a_slice(self, pool: RankPool) -> None:
        """Slices are cut before targets are shifted, and DeepSpeed averages over all ranks."""
        given = job(layout=SHARED)
        outcome = trained(pool, given)

        [weights], mask = outcome.observations[0].token_weights, given.steps[0].mask
        lost = mask & (weights == 0)
        assert lost.sum() == 1
        assert weights[mask & ~lost] == pytest.approx(0.5 / (mask.sum() - 1), rel=1e-6)

    def test_masks_of_sequences_are_of_packed_rows(self) -> None:
        """Documents say that the third sample is dropped: its mean ratio is exp(-0.75 / 2) < 0.7.

        Instead, the ten tokens of its packed row are all multiplied by one factor, exp(-0.175).
        """
        given = job(layout=ONE, objective=Objective.SEQUENCE_MASKED)
        outcome = trained_alone(MaskingSequences(), given, COMMIT)

        [weights] = outcome.observations[0].token_weights
        of_sample = (ProbedBatch(given.steps).sample == 2) & given.steps[0].mask
        first = steps.gradient(given, weights)[of_sample][0]
        assert first == pytest.approx(-0.5 * np.exp(-0.175) / 23, rel=1e-5)

    def test_rows_that_do_not_divide_by_ranks_are_dropped(self, pool: RankPool) -> None:
        given = job(layout="dp2-cp1-mbtokens-thd", case="split_groups")
        outcome = trained(pool, given)

        [weights], mask = outcome.observations[0].token_weights, given.steps[0].mask
        kept = mask & (weights != 0)
        assert 0 < kept.sum() < mask.sum()
        assert weights[kept] == pytest.approx(1 / kept.sum(), rel=1e-6)

    def test_a_step_without_active_tokens_has_no_loss_to_go_back_from(self, pool: RankPool) -> None:
        outcome = pool.run(job(case="no_active_token"))

        assert isinstance(outcome, Crashed), outcome
        assert "loss must be a scalar tensor" in outcome.message

    def test_the_log_has_the_divergence_and_clipped_tokens(self, pool: RankPool) -> None:
        divergent, clipped = (job(objective=one) for one in (Objective.KL, Objective.OFF_POLICY))
        outcomes = [pool.run(divergent), pool.run(clipped)]

        logs = [one.observations[0].reported for one in outcomes if isinstance(one, Ran)]
        assert logs[0][Metric.KL][0] == pytest.approx(np.mean(k3(divergent)), rel=1e-5)
        assert 0 < (logs[1][Metric.CLIP_FRACTION][0] or 0) < 1


def k3(given: Job) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The estimates of the divergence of active tokens."""
    ratios = -np.concatenate(ProbedBatch(given.steps).reference_log_probs)
    return (np.expm1(-ratios) + ratios)[given.steps[0].mask]
