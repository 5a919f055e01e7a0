"""The adapter that AReaL's engines share, from trajectories to the gradient of the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.areal import departures, importing
from adapters.areal.configuration import engine_configuration, has_critic
from adapters.contract.adapter import Adapter, Rank
from adapters.contract.conventions import Assumed, Documented
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.calls import Candidates, places
from adapters.toolkit.worlds import set_what_ray_sets
from reference.aggregation import AuxiliaryAggregation, DenominatorMask, EstimatorConventions, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.conventions import Convention
CONVENTIONS: Mapping[str, Convention] = {
    "denominator_mask": Assumed(DenominatorMask.ORIGINAL),
    "diagnostics": Documented(
        AuxiliaryAggregation.TOKEN_MEAN, "docs/en/reference/metrics_tracking.md, Batch Metrics"
    ),
    "rejected": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "of_returns": Documented(
        EstimatorConventions(std_epsilon=1e-5), "docs/en/cli_reference.md, NormConfig"
    ),
}
"""What the modes leave open. Metrics of batches are averages over the tokens of a mask, of all
data-parallel ranks. The fraction of rejected tokens is logged as a single number, and no page says
how it is averaged. That a loss is divided by the tokens of the mask before rejection sampling was
read off ``ppo_actor_loss_fn`` in `utils/functional/functional.py`."""

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
        Objective.GROUP_NORMALISED,
        Objective.GROUP_CENTRED,
        Objective.LEAVE_ONE_OUT,
    }
)


class ArealAdapter(Adapter):
    """Drives inclusionAI/AReaL."""

    name = "areal"
    package = "areal"
    versions = "AReaL 1.0.3, 1.0.4 and commits since April 2026"
    distribution = "areal"
    tree = ("areal",)
    devices = ("cpu",)
    dtypes = ("float32",)
    mode_names: ClassVar[Mapping[str, str]] = {"default": "token_mean"}
    engine_module: ClassVar[str]
    """AReaL's module of the engine."""
    family: ClassVar[str]
    """What the names of the classes in it begin with."""

    @abstractmethod
    def settings(self, job: Job) -> dict[str, object]:
        """The engine's own settings in AReaL's configuration."""

    @abstractmethod
    def make(self, job: Job, rank: Rank, capacity: int) -> Any:
        """AReaL's engine around our model, configured for the job.

        It collects gradients in ``gradients`` and what its model is given in ``passes``.
        """

    def load(self, source: Path | None) -> None:
        """Import AReaL's engine and its actor."""
        importing.import_areal(source, self.engine_module)

    def describe(self) -> Description:
        """Describe AReaL."""
        from adapters.areal import configuration, trainer

        missing = set() if configuration.rejects() else {*configuration.REJECTIONS}
        return Description(
            modes=frozenset({Mode.TOKEN_MEAN}),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=OBJECTIVES - missing,
            metrics=trainer.logged(),
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=places(_candidates(self.class_of("Engine"))),
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch, each by an update of AReaL's engine."""
        from adapters.areal.trainer import Training

        set_what_ray_sets(rank)
        batch = ProbedBatch(job.steps, job.objective)
        with rank.framework():
            training = Training(batch, job, self._trained(job, rank, batch.probe_size))
        return Observation(
            token_weights=batch.weights_of_steps(training.gradients),
            reported=training.reported,
            forward_passes=batch.forward_passes(training.passes),
            rows=batch.rows(training.passes),
        )

    def initialized(self, job: Job) -> Any:
        """AReaL's engine of an actor or a critic, with its process groups and its model."""
        trained = "PPOCritic" if has_critic(job) else "PPOActor"
        engine = self.class_of(trained)(engine_configuration(job, **self.settings(job)))
        api = importing.module("api")
        engine.create_process_group(api.ModelAllocation.from_str(engine.config.backend).parallel)
        engine.initialize(None, api.FinetuneSpec(1, 1, 1))
        return engine

    def class_of(self, kind: str) -> Any:
        """The engine's class of a kind, such as ``Engine`` or ``PPOActor``."""
        return getattr(importing.module(self.engine_module), f"{self.family}{kind}")

    def _trained(self, job: Job, rank: Rank, size: int) -> Any:
        """AReaL's engine for the job; the jobs of a world share those that fit them."""
        from adapters.toolkit.probe import probe_capacity

        layout, capacity = job.layout, probe_capacity(size)
        key = self.engine, has_critic(job), layout.cp, layout.options, capacity
        if key not in rank.cache:
            rank.cache[key] = self.make(job, rank, capacity)
        engine = rank.cache[key]
        engine.config = engine_configuration(job, **self.settings(job))
        for recorded in (engine.gradients, engine.passes):
            recorded.drain()
        return engine


def _candidates(engine_class: Any) -> Candidates:
    """Where AReaL counts tokens, divides by them, logs, and deals samples to ranks."""
    actor, engine = importing.module("trainer.ppo.actor"), importing.module("engine.core")
    controller = importing.module("infra.controller.train_controller")
    tracker = importing.module("utils.stats_tracker").DistributedStatsTracker
    return {
        CodeLocation.TOKEN_COUNT: ((engine, "compute_total_loss_weight"),),
        CodeLocation.TOKEN_DIVISION: (
            (engine_class, "_compute_logprobs_and_loss"),
            (actor, "grpo_loss_fn"),
        ),
        CodeLocation.LOG: ((tracker, "_aggregate"),),
        CodeLocation.SHARDING: ((controller, "_dispatch_tensors"),),
    }
