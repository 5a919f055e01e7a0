"""Accelerate's engines, which TRL's trainers run on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from adapters.contract import Layout, Unsupported
from adapters.engines.shells import STAGES, stage_of, staged
from adapters.trl import departures
from adapters.trl.adapter import TrlAdapter
from adapters.trl.asynchronous.adapter import AsyncAdapter
from adapters.trl.grpo.adapter import GrpoAdapter
from adapters.trl.rloo.adapter import RlooAdapter

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Job, Rank
    from adapters.trl.configuration import Settings
    from adapters.trl.rollouts import Rollouts
    from adapters.trl.training import Training


CUTS_OF_STAGES = ("dp1-cp1-mb2-bshd", "dp2-cp1-mb2-bshd", "dp4-cp1-mb1-bshd")
"""The layouts that are run with each non-default ZeRO stage."""

FROM_ARGUMENTS = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""DeepSpeed's settings that take transformers' values."""


class TrlDdpAdapter(GrpoAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"


class OnPreparedEngine(TrlAdapter):
    """A trainer on an engine that is chosen when the world is entered."""

    of_accelerate: ClassVar[str]
    """Accelerate's name of the engine."""

    def settings_of_engine(self, job: Job) -> Settings:
        """Keep the world's engine, which transformers would reset."""
        return {"accelerator_config": {"use_configured_state": True}}

    def train(self, job: Job, rollouts: Rollouts, capacity: int, chosen: Settings) -> Training:
        """One run of the trainer; raises `Unsupported` if another engine ran."""
        from adapters.engines import accelerate

        training = super().train(job, rollouts, capacity, chosen)
        accelerate.require_engine(self.of_accelerate)
        return training


class OnFsdp2(OnPreparedEngine):
    """A trainer with FSDP2."""

    of_accelerate = "FSDP"
    departures_of_engine = departures.FSDP2

    def layouts(self) -> list[Layout]:
        """Those with several ranks."""
        return [layout for layout in super().layouts() if layout.world_size > 1]

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate shard the model on CPUs too; raises `Unsupported` on one rank."""
        from adapters.engines import accelerate

        if rank.world_size == 1:
            raise Unsupported("transformers shards a model only in distributed training")
        super().enter_world(rank)
        if rank.device == "cpu":
            accelerate.name_engine("MULTI_GPU")

    def settings_of_engine(self, job: Job) -> Settings:
        """Shard the model layer by layer."""
        from adapters.toolkit.probe import ProbeLayer

        layers = {"transformer_layer_cls_to_wrap": [ProbeLayer.__name__]}
        of_engine = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **layers}}
        return {**super().settings_of_engine(job), **of_engine}


class OnDeepspeed(OnPreparedEngine):
    """A trainer with DeepSpeed's engine and its ZeRO stages."""

    of_accelerate = "DEEPSPEED"
    options_of_engine = tuple(STAGES)
    departures_of_engine = departures.DEEPSPEED
    dependencies = (*TrlAdapter.dependencies, "deepspeed")

    def layouts(self) -> list[Layout]:
        """All layouts with the default stage, 2, and some with the others."""
        return [*super().layouts(), *staged(CUTS_OF_STAGES)]

    def load(self, source: Path | None) -> None:
        """Import DeepSpeed for CPUs before Accelerate does, then TRL."""
        from adapters.engines import deepspeed

        deepspeed.import_deepspeed()
        super().load(source)

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate use DeepSpeed on CPUs, and set the local rank, which DeepSpeed reads."""
        from adapters.engines import accelerate, deepspeed

        super().enter_world(rank)
        deepspeed.number_from_zero()
        accelerate.name_engine("DEEPSPEED")
        os.environ[accelerate.LOCAL_RANK] = str(rank.index)

    def settings_of_engine(self, job: Job) -> Settings:
        """DeepSpeed's configuration, in which transformers fills in the sizes."""
        sizes = dict.fromkeys(FROM_ARGUMENTS, "auto")
        stage = {"zero_optimization": {"stage": stage_of(job.layout)}}
        return {**super().settings_of_engine(job), "deepspeed": {**sizes, **stage}}

    def leave_world(self) -> None:
        """Also drop the process groups that DeepSpeed caches."""
        from adapters.engines import deepspeed

        super().leave_world()
        deepspeed.leave_world()


class TrlFsdp2Adapter(OnFsdp2, GrpoAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"


class TrlDeepspeedAdapter(OnDeepspeed, GrpoAdapter):
    """`GRPOTrainer` with DeepSpeed's engine."""

    engine = "deepspeed"


class TrlRlooAdapter(RlooAdapter):
    """`RLOOTrainer` with DistributedDataParallel."""

    engine = "rloo"


class TrlAsyncAdapter(OnFsdp2, AsyncAdapter):
    """`AsyncGRPOTrainer` with FSDP2, the only engine that TRL documents for it on several ranks."""

    engine = "async"
