"""The adapter that verl's engines share, from a batch of rollouts to the optimizer's gradient.

Every rank runs the trainer itself, as `trainer` says. verl's worker builds its engine of our model,
which carries the probe, through verl's own extension points.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.configuration import FaultInjection, Setting
from adapters.contract.description import Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.probe import probe_capacity
from adapters.verl import configuration, departures
from adapters.verl.importing import import_verl
from reference.aggregation import AuxiliaryAggregation, Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.layout import Layout

CONVENTIONS = Conventions(
    entropy=AuxiliaryAggregation.WITH_POLICY_LOSS,
    kl=AuxiliaryAggregation.WITH_POLICY_LOSS,
    diagnostics=AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
)
"""The conventions that verl documents. Entropy and divergence are aggregated by ``loss_agg_mode``
as the policy loss is (`workers/utils/losses.py`, ``ppo_loss``), diagnostics of the policy loss are
said there to be normalised by local tokens, and averaged."""


CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_agg_mode",),
    Setting.DIVISOR: ("loss_scale_factor",),
    Setting.ENTROPY: ("entropy_coeff",),
    Setting.KL: ("use_kl_loss",),
    Setting.BATCH_SIZE: ("mini_batch_size",),
}
"""What configurations may set, and verl's names for it."""

RULES = {
    "default_mode": "verl/trainer/config/actor/actor.yaml (loss_agg_mode)",
    "divisor_by_default": "verl/workers/config/actor.py (ActorConfig: if loss_scale_factor is None,"
    " response_length)",
}
"""Rules of configurations that verl states, by name."""

PERMITTED = {"divisor_missing": RULES["divisor_by_default"]}
"""Rules of other frameworks whose opposite verl states."""


class VerlAdapter(Adapter):
    """Drives volcengine/verl from 0.9.1 on."""

    name = "verl"
    package = "verl"
    distribution = "verl"
    tree = ("verl",)
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")

    @abstractmethod
    def settings(self, job: Job, dtype: str) -> Mapping[str, object]:
        """The engine's settings in verl's configuration, by path."""

    @abstractmethod
    def divisor(self, layout: Layout) -> int:
        """The number of ranks that divides mini-batches, as verl validates."""

    @abstractmethod
    def worker(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker on this rank, with recorders ``gradients`` and ``passes``."""

    def load(self, source: Path | None) -> None:
        """Import verl, its engines and its trainer."""
        import_verl(source)

    def describe(self) -> Description:
        """Describe verl by what its aggregation and its registries know."""
        from adapters.verl.trainer import NAMES

        return Description(
            modes=frozenset(configuration.LOSS_AGG_MODES),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=configuration.objectives(),
            metrics=frozenset(NAMES),
            configurations=CONFIGURATIONS,
            records_forward_passes=True,
            conventions=CONVENTIONS,
            rules=RULES,
            permits=PERMITTED,
            departures=departures.ALL_ENGINES,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one trainer's step."""
        from adapters.verl import trainer

        batch = ProbedBatch(job.steps, job.objective)
        capacity = probe_capacity(batch.probe_size + 1)
        with rank.framework(), refusals_of_configuration(job):
            settings = {f"{configuration.MODEL}.override_config.capacity": capacity}
            config = configuration.configure(
                job, {**settings, **self.settings(job, rank.dtype)}, self.divisor(job.layout)
            )
            worker = self.worker(config, job, capacity, rank)
            worker.passes.drain()
            reported = trainer.train(config, worker, batch, job)
        passes = worker.passes.drain()
        return Observation(
            token_weights=batch.weights_of_steps(worker.gradients.drain()),
            reported=reported,
            forward_passes=batch.forward_passes(passes),
            rows=batch.rows(passes),
        )
