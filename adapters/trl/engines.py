"""TRL's trainers on Accelerate's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.toolkit.probe import ProbeLayer
from adapters.trl.adapter import TrlAdapter

if TYPE_CHECKING:
    from adapters.contract import Rank
    from adapters.trl.objectives import Settings


class TrlDdpAdapter(TrlAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"


class TrlFsdp2Adapter(TrlAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"

    def enter_world(self, rank: Rank) -> None:
        """Let Accelerate shard the model on CPUs too."""
        from adapters.engines import accelerate

        super().enter_world(rank)
        if rank.device == "cpu":
            accelerate.name_engine_of_a_gpu()

    def settings_of_engine(self) -> Settings:
        """The model is sharded layer by layer."""
        layers = {"transformer_layer_cls_to_wrap": [ProbeLayer.__name__]}
        return {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **layers}}
