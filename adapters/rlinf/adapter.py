"""The adapters of RLinf, from results of rollouts to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import Metric
from adapters.engines.shells import RANKS, OnFsdp, cuts
from adapters.rlinf import importing
from adapters.rlinf.framework import FSDP2, RLINF
from adapters.toolkit.worlds import cached, observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Observation, Rank
    from adapters.contract.framework import Framework


class RlinfFsdpAdapter(OnFsdp):
    """RLinf with FSDP1, the strategy of its example configurations."""

    name = "rlinf"
    engine = "fsdp"
    package = "rlinf"
    distribution = "rlinf"
    versions = "RLinf 0.3.0, main, and commits since November 2025"
    tree = ("rlinf",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("ray", "transformers")
    recipes = "adapters.rlinf.recipe:read"
    framework: ClassVar[Framework] = RLINF

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, with padded (bshd) or packed (thd) rows."""
        balanced = Layout(dp=2, micro_batches=2, options=(Option.BALANCE_DATA,))
        return [*cuts(RANKS, "bshd", "thd"), balanced]

    def load(self, source: Path | None) -> None:
        """Import RLinf's actor."""
        from adapters.engines import fsdp1

        importing.import_rlinf(source)
        fsdp1.initialise_on_cpu()

    def describe(self) -> Description:
        """Describe RLinf."""
        return self.framework.description(
            importing.offers, importing.option_names(), importing.default
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch as the mini-batches of one call of the actor."""
        from adapters.rlinf.driving import RlinfActor, RlinfRollouts
        from adapters.rlinf.model import SEAM
        from adapters.toolkit.probe import probe_capacity

        set_what_ray_sets(rank)
        batch = ProbedBatch.of(job, conventions_of(self.framework.conventions))
        SEAM.start(batch)
        settings, capacity = self.framework.settings(job), probe_capacity(batch.probe_size)
        with rank.framework():
            config = importing.configured(settings)
            key = self.engine, capacity
            actor = cached(rank, key, lambda: RlinfActor(config, capacity, rank))
            actor.configure(config)
            results = RlinfRollouts(batch, job, config).results_of_rank(rank.index)
            of_rollouts, of_steps = actor.train([*results])
        gradients, passes = actor.gradients.drain(), actor.passes.drain()
        reported = self.framework.reported([of_rollouts]) | self.framework.reported(of_steps)
        if not settings["algorithm.calculate_entropy"]:
            reported.pop(Metric.ENTROPY, None)  # which is 0 then, of any step
        return observation(batch, gradients, passes, reported)

    def leave_world(self) -> None:
        """Take the models apart, and clear torch's cache of their meshes."""
        from adapters.engines import fsdp1

        super().leave_world()
        fsdp1.take_models_apart()


class RlinfFsdp2Adapter(RlinfFsdpAdapter):
    """RLinf with FSDP2."""

    engine: ClassVar[str] = "fsdp2"
    framework = FSDP2
