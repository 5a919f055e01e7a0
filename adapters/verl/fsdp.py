"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Job, Layout, Rank
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import ACTOR, MODEL
from adapters.verl.worker import configure_anew, new_worker

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in verl


class VerlFsdpAdapter(VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
            for micro_batches in (1, 2, "tokens")
            for storage in ("bshd", "thd")
            if cp == 1 or storage == "thd"
        ]

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of the engine, with parameters in the dtype of the run."""
        engine = f"{ACTOR}.fsdp_config"
        precision = PRECISIONS[dtype]
        precisions = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        return {
            f"{ACTOR}.strategy": self.engine,
            f"{MODEL}.use_remove_padding": job.layout.format == "thd",
            f"{engine}.ulysses_sequence_parallel_size": job.layout.cp,
            f"{engine}.use_torch_compile": False,
            f"{engine}.mixed_precision": precisions,
        }

    def divisor(self, layout: Layout) -> int:
        """All ranks, those of sequence parallelism too."""
        return layout.world_size

    def worker(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker, cached for all jobs that can share its model."""
        key = (self.engine, job.layout.cp, job.layout.format, capacity)
        if key not in rank.cache:
            rank.cache[key] = _worker(config, rank)
        worker = rank.cache[key]
        configure_anew(worker, config)
        worker.gradients.drain()
        return worker


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"


def _worker(config: Any, rank: Rank) -> Any:
    """verl's worker with its engine, whose optimizer tells the gradient that it steps with."""
    from adapters.toolkit.probe import GradientReader
    from adapters.verl.model import PASSES

    worker = new_worker(config, rank)
    worker.init_model()
    engine = worker.actor.engine
    worker.passes = PASSES
    worker.gradients = GradientReader(engine.optimizer, partial(_whole, engine.module))
    return worker


def _whole(wrapped: Any, gradient: torch.Tensor) -> NDArray[np.float32]:
    """The gradient of the probe: FSDP1 leaves each rank a shard of it, [capacity / shards]."""
    import torch
    import torch.distributed as dist

    from adapters.toolkit.probe import as_array

    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))
