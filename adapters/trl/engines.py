"""Accelerate's engines, on which TRL's trainers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Unsupported
from adapters.trl import departures
from adapters.trl.adapter import TrlAdapter
from adapters.trl.grpo.adapter import GrpoAdapter
from adapters.trl.rloo.adapter import RlooAdapter

if TYPE_CHECKING:
    from adapters.contract import Departure, Job, Layout, Rank
    from adapters.trl.configuration import Settings
    from adapters.trl.rollouts import Rollouts
    from adapters.trl.training import Training


class OnFsdp2(TrlAdapter):
    """A trainer on FSDP2."""

    def departures_of_engine(self) -> tuple[Departure, ...]:
        """What the engine needs on CPUs."""
        return departures.FSDP2

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
        return {
            "fsdp": "full_shard auto_wrap",
            "fsdp_config": {"fsdp_version": 2, **layers},
            # Else transformers forgets the world that `enter_world` has prepared.
            "accelerator_config": {"use_configured_state": True},
        }

    def train(self, job: Job, rollouts: Rollouts, capacity: int, chosen: Settings) -> Training:
        """One run of the trainer; raises `Unsupported` if the model was not sharded."""
        from adapters.engines import accelerate

        training = super().train(job, rollouts, capacity, chosen)
        accelerate.require_engine("FSDP")
        return training


class TrlDdpAdapter(GrpoAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"


class TrlFsdp2Adapter(OnFsdp2, GrpoAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"


class TrlRlooAdapter(RlooAdapter):
    """`RLOOTrainer` with DistributedDataParallel."""

    engine = "rloo"
