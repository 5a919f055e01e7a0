"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Description, Job, Layout, Option, Rank
from adapters.engines.shells import ON_FOUR, OnFsdp, cuts
from adapters.toolkit.settings import has_critic
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import CRITIC_MODEL, MODEL
from adapters.verl.objectives import ACTOR
from adapters.verl.sizes import CRITIC, critics_micro_batches
from adapters.verl.worker import made_engine, new_worker

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from adapters.toolkit.probe import Recorder

WRAPPED: list[Any] = []
"""The models of this process's world, as FSDP wraps them."""

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in verl


class VerlFsdpAdapter(OnFsdp, VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows.

        The layout options need packed rows.
        """
        hybrid, legacy = (Option.HYBRID_SHARDING,), (Option.LEGACY_TRAINER,)
        epochs = (Option.TWO_EPOCHS,)
        plain = [
            layout
            for layout in cuts(ON_FOUR, "bshd", "thd")
            if layout.cp == 1 or layout.format == "thd"
        ]
        return [
            *plain,
            Layout(dp=4, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, cp=2, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, micro_batches=2, format="thd", options=(Option.NOT_SHARDED,)),
            Layout(dp=2, micro_batches=2, format="thd", options=epochs),
            Layout(dp=2, micro_batches=2, format="thd", options=legacy),
            Layout(cp=2, micro_batches="tokens", format="thd", options=legacy),
        ]

    def describe(self) -> Description:
        """Add the ways to shard a model."""
        found = super().describe()
        sharding = {Option.HYBRID_SHARDING, Option.NOT_SHARDED}
        return replace(found, options=found.options | sharding)

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of the engines, with parameters in the dtype of the run."""
        settings = self._of_model(ACTOR, f"{ACTOR}.fsdp_config", MODEL, job, dtype)
        if has_critic(job):
            engine = f"{CRITIC}.fsdp"
            settings |= self._of_model(CRITIC, engine, CRITIC_MODEL, job, dtype)
            settings |= critics_micro_batches(job, self.divisor(job.layout), engine)
        return settings

    def _of_model(
        self, role: str, engine: str, model: str, job: Job, dtype: str
    ) -> dict[str, object]:
        precision = PRECISIONS[dtype]
        precisions = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        return {
            f"{role}.strategy": self.engine,
            f"{model}.use_remove_padding": job.layout.format == "thd",
            f"{engine}.ulysses_sequence_parallel_size": job.layout.cp,
            f"{engine}.fsdp_size": _shards(job.layout),
            f"{engine}.use_torch_compile": False,
            f"{engine}.mixed_precision": precisions,
        }

    def divisor(self, layout: Layout) -> int:
        """All ranks, including those of sequence parallelism."""
        return layout.world_size

    def leave_world(self) -> None:
        """Take the models apart, and clear torch's cache of their meshes.

        FSDP1's views of a parameter hold it, and the parameter holds its model with the views and
        the threads of its groups: a cycle that Python's garbage collector cannot see.
        """
        super().leave_world()
        while WRAPPED:
            for module in [*WRAPPED.pop().modules()]:
                vars(module).clear()

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer tells the gradient that it steps with."""
        from adapters.verl.model import PASSES

        worker = new_worker(role, config, rank)
        worker.gradients, worker.passes = _reader(made_engine(role, worker)), PASSES[role]
        return worker


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"


def _shards(layout: Layout) -> int:
    """The number of shards of a model; -1 means one per rank."""
    if Option.NOT_SHARDED in layout.options:
        return 1
    return layout.world_size // 2 if Option.HYBRID_SHARDING in layout.options else -1


def _reader(engine: Any) -> Recorder[NDArray[np.float32] | None]:
    """The gradients of an engine's steps; None for a step skipped because it is not finite."""
    from adapters.toolkit.probe import GradientReader, Recorder

    WRAPPED.append(engine.module)
    reader = GradientReader(engine.optimizer, partial(_whole, engine.module))
    taken, step = Recorder["NDArray[np.float32] | None"](), engine.optimizer_step

    def optimizer_step() -> Any:
        norm = step()
        taken.append(reader.take())
        return norm

    engine.optimizer_step = optimizer_step
    return taken


def _whole(wrapped: Any, gradient: torch.Tensor) -> NDArray[np.float32]:
    """The probe's whole gradient: FSDP1 leaves each rank a shard of it, [capacity / shards]."""
    import torch
    import torch.distributed as dist

    from adapters.toolkit.probe import as_array

    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))
