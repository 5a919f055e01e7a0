"""TRL's trainers on Accelerate's engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import Unsupported
from adapters.trl import departures
from adapters.trl.adapter import TrlAdapter

if TYPE_CHECKING:
    from adapters.contract import Description, Layout, Rank
    from adapters.trl.objectives import Settings


class TrlDdpAdapter(TrlAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"


class TrlFsdp2Adapter(TrlAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"

    def describe(self) -> Description:
        """Add what the engine needs on CPUs."""
        found = super().describe()
        return replace(found, departures=(*found.departures, *departures.FSDP2))

    def layouts(self) -> list[Layout]:
        """Those of several ranks."""
        return [layout for layout in super().layouts() if layout.world_size > 1]

    def enter_world(self, rank: Rank) -> None:
        """Let Accelerate shard the model on CPUs too; raises `Unsupported` on one rank."""
        from adapters.engines import accelerate

        if rank.world_size == 1:
            raise Unsupported("transformers shards a model in distributed training alone")
        super().enter_world(rank)
        if rank.device == "cpu":
            accelerate.name_engine_of_a_gpu()

    def settings_of_engine(self) -> Settings:
        """The model is sharded layer by layer."""
        from adapters.toolkit.probe import ProbeLayer

        layers = {"transformer_layer_cls_to_wrap": [ProbeLayer.__name__]}
        return {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **layers}}
