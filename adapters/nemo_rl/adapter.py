"""The adapter of NeMo-RL, from a batch of rollouts to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.conventions import Assumed, Documented, conventions_of
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.engines.shells import OnFsdp
from adapters.nemo_rl import departures, importing
from adapters.toolkit.calls import Candidates, places
from adapters.toolkit.worlds import set_what_ray_sets
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    DivergenceEstimator,
    EmptyUnits,
    EstimatorConventions,
    LoggedMean,
    Mode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.adapter import Rank
    from adapters.contract.conventions import Convention
    from adapters.nemo_rl.configuration import Settings

NORMALIZATION = "docs/guides/grpo.md, Loss Normalization"

CONVENTIONS: Mapping[str, Convention] = {
    "empty_units": Documented(EmptyUnits.EXCLUDED, NORMALIZATION),
    "denominator_mask": Documented(DenominatorMask.ORIGINAL, NORMALIZATION),
    "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, NORMALIZATION),
    "diagnostics": Documented(
        AuxiliaryAggregation.TOKEN_MEAN, "docs/guides/grpo.md, How metrics are normalized"
    ),
    "of_groups": Assumed(EstimatorConventions(lost_degrees_of_freedom=0)),
    "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
    "kl_estimator": Assumed(DivergenceEstimator.K3_BY_RATIO),
}
"""What the modes leave open. Samples whose multiplier of the loss is 0 are invalid, and N is the
number of valid ones; denominators count all unmasked tokens, and what truncated importance sampling
filters has a weight of 0 (docs/guides/prorlv2.md, Filtering Strategies). Assumptions were read
off `algorithms/advantage_estimator.py`, whose variance has the divisor n, and off
``ClippedPGLossFn``, whose k3 has a gradient through the sampling probability."""

OBJECTIVES = frozenset(
    {
        Objective.POLICY,
        Objective.OFF_POLICY,
        Objective.DUAL_CLIP,
        Objective.GSPO,
        Objective.CISPO,
        Objective.GPG,
        Objective.KL,
        Objective.TIS_TOKEN,
        Objective.REJECTION,
        Objective.SEQUENCE_MASKED,
        Objective.GROUP_NORMALISED,
        Objective.GROUP_CENTRED,
        Objective.LEAVE_ONE_OUT,
        Objective.REINFORCE_PP_BASELINE,
        Objective.SFT,
    }
)


class NemoRLAdapter(OnFsdp):
    """Drives NVIDIA-NeMo/RL; ``settings`` choose the engine in its configuration."""

    name = "nemo_rl"
    package = "nemo_rl"
    versions = "commits since 24 May 2026"
    tree = ("nemo_rl", "examples/configs")
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies: ClassVar[tuple[str, ...]] = ("transformers",)
    mode_names: ClassVar[Mapping[str, str]] = {
        "token_level_loss=true": "token_mean",
        "token_level_loss=false": "sample_mean",
    }
    settings: ClassVar[Settings]
    options: ClassVar[frozenset[Option]] = frozenset()

    def layouts(self) -> list[Layout]:
        """Data and context parallelism on up to 4 ranks.

        Rows of micro-batches are padded, in micro-batches of equal size or cut by tokens (dynamic
        batching), or packed, which NeMo-RL does without context parallelism alone.
        """
        padded = [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches)
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
            for micro_batches in (1, 2, "tokens")
        ]
        packed = [
            Layout(dp=dp, micro_batches=micro_batches, format="thd")
            for dp in (1, 2, 4)
            for micro_batches in (1, "tokens")
        ]
        return sorted([*padded, *packed], key=lambda layout: layout.world_size)

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and its worker."""
        importing.import_nemo_rl(source)

    def describe(self) -> Description:
        """Describe NeMo-RL."""
        from adapters.nemo_rl import configuration, trainer

        return Description(
            modes=frozenset(configuration.TOKEN_LEVEL),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=OBJECTIVES,
            metrics=frozenset({*trainer.NAMES, *trainer.NAMES_OF_ROLLOUTS}),
            options=self.options,
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=places(_candidates()),
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch by NeMo-RL's trainer."""
        from adapters.nemo_rl.trainer import Training

        set_what_ray_sets(rank)
        batch = ProbedBatch.under(conventions_of(CONVENTIONS), job.steps, job.objective)
        with rank.framework():
            training = Training(batch, job, self.settings, rank)
        return Observation(
            token_weights=batch.weights_of_steps(training.gradients),
            reported=training.reported,
            forward_passes=batch.forward_passes(training.passes),
            rows=batch.rows(training.passes),
        )


class DTensorV1Adapter(NemoRLAdapter):
    """The first version of the worker, which shards models itself."""

    engine = "dtensor_v1"
    settings: ClassVar[Settings] = {"policy.dtensor_cfg._v2": False}


class DTensorV2Adapter(NemoRLAdapter):
    """The second version of the worker, which builds on Automodel."""

    engine = "dtensor_v2"
    dependencies = ("nemo_automodel", "transformers")
    settings: ClassVar[Settings] = {"policy.dtensor_cfg._v2": True}
    options = frozenset({Option.HYBRID_SHARDING})

    def layouts(self) -> list[Layout]:
        """The same, and copies of a sharded model (dp_replicate_size)."""
        return [
            *super().layouts(),
            Layout(dp=4, micro_batches="tokens", format="thd", options=(Option.HYBRID_SHARDING,)),
        ]

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and both workers."""
        super().load(source)
        importing.import_second_worker()


def _candidates() -> Candidates:
    """Where NeMo-RL counts tokens, divides by them, logs, and deals samples to ranks."""
    worker = importing.module("models.policy.workers.dtensor_policy_worker")
    batches = importing.module("distributed.batched_data_dict").BatchedDataDict
    return {
        CodeLocation.TOKEN_COUNT: ((worker.DTensorPolicyWorkerImpl, "train"),),
        CodeLocation.TOKEN_DIVISION: ((importing.module("algorithms.utils"), "masked_mean"),),
        CodeLocation.LOG: ((importing.module("algorithms.grpo"), "grpo_train"),),
        CodeLocation.SHARDING: ((batches, "shard_by_batch_size"),),
    }
