"""RLinf's real actor, from PyPI: its inputs, its results, and what it declines."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.framework import nested
from adapters.contract.job import Unsupported
from adapters.contract.objective import Objective
from adapters.contract.recipe import Typed
from adapters.frameworks import LISTED
from adapters.rlinf import importing
from adapters.rlinf.adapter import RlinfFsdp2Adapter, RlinfFsdpAdapter
from adapters.rlinf.framework import RLINF
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from conformance.recipes.matching import match
from conformance.recipes.running import read
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests.adapters import steps
from tests.pools import NEEDS_CLONES, pool_of, released, trained, version_of

if TYPE_CHECKING:
    from adapters.contract import Job

RELEASE = LISTED["rlinf"].source

needs_rlinf = steps.marks("rlinf")

weights_error = partial(steps.weights_error, conventions=conventions_of(RLINF.conventions))


pool = pool_of(RlinfFsdpAdapter, 2, RELEASE)


def summed(case: str, layout: str, objective: Objective = Objective.POLICY) -> Job:
    """A job of `seq-mean-token-sum`, whose weights do not depend on how a step is cut."""
    given = steps.job(case, Mode.SAMPLE_MEAN, layout, objective)
    return replace(given, aggregation=Aggregation(Mode.CONSTANT, 1.0))


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ('cfg.algorithm.get("clip_ratio_c", 3.0)', ("algorithm", "clip_ratio_c", 3.0)),
        ('self.cfg.algorithm.get("clip_ratio_low")', ("algorithm", "clip_ratio_low", None)),
        ("self.cfg.algorithm.kl_beta", ("algorithm", "kl_beta", None)),
    ],
)
def test_an_option_is_what_code_reads_of_a_section(
    expression: str, read: tuple[str, str, object]
) -> None:
    [statement] = ast.parse(expression).body

    assert isinstance(statement, ast.Expr)
    assert [*importing._read_by(statement.value)] == [read]


def test_prompts_that_ranks_cannot_share_are_unsupported() -> None:
    given = steps.job("rejected_siblings", Mode.TOKEN_MEAN, "dp4-cp1-mb1-thd")

    with pytest.raises(Unsupported, match="prompts cannot be split evenly over 4 ranks"):
        RLINF.settings(replace(given, objective=Objective.GROUP_NORMALISED))


class TestRealActor:
    pytestmark = needs_rlinf

    @pytest.mark.parametrize(
        ("case", "layout"),
        [
            ("fully_masked_sample", "dp2-cp1-mb1-thd"),
            ("two_steps", "dp2-cp1-mb2-bshd"),
            ("uneven_lengths", "dp2-cp1-mb2-bshd+balance_data"),
        ],
    )
    def test_sums_of_samples_are_averaged_however_a_step_is_cut(
        self, pool: RankPool, case: str, layout: str
    ) -> None:
        given = summed(case, layout)

        assert weights_error(pool.run(given), given) <= weight_bound("float32")

    def test_samples_are_dealt_by_rlinfs_balancing(self, pool: RankPool) -> None:
        """Samples are dealt by length: four of eight to each rank, not the first four to rank 0."""
        outcome = trained(pool, given := summed("uneven_lengths", "dp2-cp1-mb2-bshd+balance_data"))

        dealt = steps.dealt(outcome, given)
        assert [len(one) for one in dealt] == [4, 4]
        assert dealt[0].tolist() != [0, 1, 2, 3]

    @pytest.mark.usefixtures("forked_readers")
    def test_recipe_is_what_rlinf_makes_of_a_file_and_words(self, tmp_path: Path) -> None:
        conf = pytest.importorskip("omegaconf").OmegaConf
        given = steps.job("uneven_lengths", Mode.TOKEN_MEAN, "dp2-cp1-mb2-thd")
        (file := tmp_path / "recipe.yaml").write_text(
            conf.to_yaml(conf.create(nested(RLINF.settings(given))))
        )
        typed = Typed(file=file, words=("algorithm.kl_beta=0.1",), ranks=2)

        recipe = read(adapter := RlinfFsdpAdapter(), released(adapter, RELEASE), typed)

        assert (recipe.engine, recipe.layout, recipe.samples) == ("fsdp", given.layout, 8)
        assert recipe.values["actor.global_batch_size"] == 8, "validation has made it"
        found = match(RLINF, recipe)
        assert (found.reduction, found.terms) == ("token-mean", (Objective.KL,))

    @pytest.mark.parametrize("layout", ["dp2-cp1-mb1-bshd", "dp2-cp1-mb2-bshd"])
    def test_policy_and_value_head_share_a_gradient(self, pool: RankPool, layout: str) -> None:
        """The gradient is w · (-A) + w / 2 · 2 (0 - R), with w = 1 / (N · M_i), for any cut."""
        given = steps.job("unequal_shards", Mode.SAMPLE_MEAN, layout, Objective.WITH_VALUE)

        [weights] = trained(pool, given).observations[0].token_weights

        batch, [step] = ProbedBatch.of(given), given.steps
        advantages, returns = map(np.concatenate, (batch.advantages, batch.returns))
        lengths = step.response_lengths
        expected = (-advantages - returns) / np.repeat(len(lengths) * lengths, lengths)
        assert np.allclose(weights * -advantages, expected, rtol=1e-6, atol=0)

    def test_masks_that_no_environment_makes_are_unsupported(self, pool: RankPool) -> None:
        given = steps.job(
            "uneven_lengths", Mode.SAMPLE_MEAN, "dp2-cp1-mb1-bshd", Objective.WITH_VALUE
        )
        outcome = pool.run(given)

        assert isinstance(outcome, Declined), outcome
        assert outcome.verdict == "unsupported"

    def test_samples_that_ranks_cannot_share_are_refused(self, pool: RankPool) -> None:
        outcome = pool.run(summed("nine_samples", "dp2-cp1-mb1-bshd"))

        assert isinstance(outcome, Declined), outcome
        assert outcome.verdict == "refused"
        assert "must be divisible by" in outcome.message


sharded = pool_of(RlinfFsdp2Adapter, 2, RELEASE)


class TestFsdp2:
    pytestmark = needs_rlinf

    def test_sums_of_samples_are_averaged(self, sharded: RankPool) -> None:
        given = summed("two_steps", "dp2-cp1-mb2-bshd")

        assert weights_error(sharded.run(given), given) <= weight_bound("float32")

    def test_norm_of_a_gradient_is_that_of_each_ranks_own_shard(
        self, pool: RankPool, sharded: RankPool
    ) -> None:
        """All ids of the case are in the first half of the probe, so rank 1's shard is 0."""
        given = summed("uneven_lengths", "dp2-cp1-mb1-bshd")

        assert norms(sharded, given)[1] == 0.0
        assert norms(sharded, given)[0] == pytest.approx(norms(pool, given)[0], rel=1e-6)
        assert norms(pool, given)[0] == norms(pool, given)[1] > 0


def norms(pool: RankPool, given: Job) -> list[float | None]:
    """The gradient norm that each rank logs for a step, and uses for clipping."""
    outcome = trained(pool, given)
    return [rank.logged["actor/grad_norm"][0] for rank in outcome.observations]


@NEEDS_CLONES
class TestMended:
    """Commits that fixed RLinf's actor, and the commits before them."""

    pytestmark = needs_rlinf

    @pytest.mark.parametrize(("ref", "is_right"), [("bbfb17923^", False), ("bbfb17923", True)])
    def test_a_correction_is_truncated_from_above(
        self, other_release: None, ref: str, is_right: bool
    ) -> None:
        """Before, corrections were truncated from below, and ratios were to the rollout policy."""
        adapter = RlinfFsdpAdapter()
        source = version_of(adapter, ref)
        given = summed("uneven_lengths", "dp1-cp1-mb1-bshd", Objective.TIS_TOKEN)
        with RankPool(adapter, source, 1) as pool:
            outcome = trained(pool, given)

        [weights] = outcome.observations[0].token_weights
        assert np.allclose(weights[weights != 0], 1 / 8) is is_right
