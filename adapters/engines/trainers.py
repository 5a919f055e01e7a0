"""What adapters of trainers on Hugging Face Accelerate share and is known without importing it.

The settings of transformers' `Trainer` on which no weight depends, the worlds of ranks, and
FSDP2, which a `Trainer` is given by its options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Layout, Rank, Unsupported
from adapters.contract.description import parse_departures

if TYPE_CHECKING:
    from adapters.contract import Job, Observation
    from adapters.contract.framework import Framework


OF_RUNS: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "learning_rate": 0.0,
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "max_steps": lambda job: len(job.steps),
}
"""Settings of runs."""

PREPARED = {"accelerator_config": {"use_configured_state": True}}
"""Keeps the engine of the world, which transformers would reset."""


def sharded(record: Framework) -> Framework:
    """The record of a trainer on FSDP2, layer by layer."""
    layers = {"transformer_layer_cls_to_wrap": ["ProbeLayer"]}
    of_engine = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **layers}}
    departures = parse_departures(
        """
        set: on a machine without a GPU, the distributed type that Accelerate chooses on GPUs
            Accelerate shards models only on GPUs; torch's FSDP2 is the same on gloo
        """
    )
    return replace(
        record,
        always={**record.always, **PREPARED, **of_engine},
        departures=(*record.departures, *departures),
    )


class OnAccelerate(Adapter):
    """An adapter of a trainer on Accelerate."""

    def enter_world(self, rank: Rank) -> None:
        """Make the next trainer find this rank's world."""
        from adapters.engines import accelerate

        accelerate.enter_world(rank)

    def leave_world(self) -> None:
        """Reset the state that Accelerate keeps of the world."""
        from adapters.engines import accelerate

        accelerate.leave_world()


class OnPreparedEngine(OnAccelerate):
    """A trainer on an engine that is chosen when the world is entered."""

    of_accelerate: ClassVar[str]
    """Accelerate's name of the engine."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; raises `Unsupported` if another engine ran."""
        from adapters.engines import accelerate

        observed = super().observe(job, rank)  # type: ignore[safe-super]
        accelerate.require_engine(self.of_accelerate)
        return observed


class OnFsdp2(OnPreparedEngine):
    """A trainer with FSDP2."""

    of_accelerate = "FSDP"

    def layouts(self) -> list[Layout]:
        """Those with several ranks."""
        of_all = super().layouts()  # type: ignore[safe-super]
        return [layout for layout in of_all if layout.world_size > 1]

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate shard the model on CPUs too; raises `Unsupported` on one rank."""
        from adapters.engines import accelerate

        if rank.world_size == 1:
            raise Unsupported("transformers shards a model only in distributed training")
        super().enter_world(rank)
        if rank.device == "cpu":
            accelerate.name_engine("MULTI_GPU")
