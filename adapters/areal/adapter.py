"""The adapter of AReaL, from trajectories to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.areal import departures, importing
from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Layout
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.calls import Candidates, places
from adapters.toolkit.launching import set_what_ray_sets
from reference.aggregation import AuxiliaryAggregation, Conventions, DenominatorMask, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONVENTIONS = Conventions(
    denominator_mask=DenominatorMask.ORIGINAL,
    diagnostics=AuxiliaryAggregation.TOKEN_MEAN,
)
"""The conventions that AReaL documents. A loss is divided by the tokens of the mask before
rejection sampling (comment in `utils/functional/functional.py`, ``ppo_actor_loss_fn``). Metrics are
averages over the tokens of a mask, of all data-parallel ranks (`docs/en/reference/
metrics_tracking.md`, Batch Metrics)."""

OBJECTIVES = frozenset(
    {
        Objective.POLICY,
        Objective.OFF_POLICY,
        Objective.REJECTION,
        Objective.TIS_TOKEN,
        Objective.DUAL_CLIP,
        Objective.GSPO,
        Objective.SAPO,
        Objective.SEQUENCE_MASKED,
        Objective.VALUE,
    }
)


class ArealAdapter(Adapter):
    """Drives inclusionAI/AReaL."""

    name = "areal"
    engine = "fsdp2"
    package = "areal"
    distribution = "areal"
    tree = ("areal",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("transformers",)
    mode_names: ClassVar[Mapping[str, str]] = {"default": "token_mean"}

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks and Ulysses of 2; AReaL packs rows (thd)."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="thd")
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
            for micro_batches in (1, 2, "tokens")
        ]

    def load(self, source: Path | None) -> None:
        """Import AReaL's FSDP engine and its actor."""
        importing.import_areal(source)

    def describe(self) -> Description:
        """Describe AReaL."""
        from adapters.areal import trainer

        return Description(
            modes=frozenset({Mode.TOKEN_MEAN}),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=OBJECTIVES,
            metrics=frozenset(trainer.NAMES),
            records_forward_passes=True,
            conventions=CONVENTIONS,
            places=places(_candidates()),
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch, each by an update of AReaL's engine."""
        from adapters.areal.trainer import Training

        set_what_ray_sets(rank)
        batch = ProbedBatch(job.steps, job.objective)
        with rank.framework():
            training = Training(batch, job, rank)
        return Observation(
            token_weights=batch.weights_of_steps(training.gradients),
            reported=training.reported,
            forward_passes=batch.forward_passes(training.passes),
            rows=batch.rows(training.passes),
        )


def _candidates() -> Candidates:
    """Where AReaL counts tokens, divides by them, logs, and deals samples to ranks."""
    actor, engine = importing.module("trainer.ppo.actor"), importing.module("engine.core")
    controller = importing.module("infra.controller.train_controller")
    fsdp = importing.module("engine.fsdp_engine").FSDPEngine
    tracker = importing.module("utils.stats_tracker").DistributedStatsTracker
    return {
        CodeLocation.TOKEN_COUNT: ((engine, "compute_total_loss_weight"),),
        CodeLocation.TOKEN_DIVISION: (
            (fsdp, "_compute_logprobs_and_loss"),
            (actor, "grpo_loss_fn"),
        ),
        CodeLocation.LOG: ((tracker, "_aggregate"),),
        CodeLocation.SHARDING: ((controller, "_dispatch_tensors"),),
    }
