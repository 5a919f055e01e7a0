"""Accelerate's engines, which TRL's trainers run on."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Layout, Unsupported
from adapters.contract.description import Documented, parse_departures
from adapters.contract.objective import Metric
from adapters.engines.shells import DEFAULT_STAGE, STAGES, staged
from adapters.trl import importing
from adapters.trl.adapter import ASYNC, AsyncAdapter, GrpoAdapter, RlooAdapter, TrlAdapter
from adapters.trl.framework import GRPO, OF_ADVANTAGES
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Job, Rank
    from adapters.contract.framework import Framework, Settings
    from adapters.trl.driving import Rollouts, Training

CUTS_OF_STAGES = ("dp1-cp1-mb2-bshd", "dp2-cp1-mb2-bshd", "dp4-cp1-mb1-bshd")
"""The layouts that are run with each non-default ZeRO stage."""

FROM_ARGUMENTS = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""DeepSpeed's settings that take transformers' values."""

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


def of_stage(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration, in which transformers fills in the sizes."""
    sizes = dict.fromkeys(FROM_ARGUMENTS, "auto")
    return {"deepspeed": {**sizes, "zero_optimization": {"stage": stage}}}


def of_zero(record: Framework) -> Framework:
    """The record of a trainer on DeepSpeed's engine."""
    departures = parse_departures(
        """
        set: on a machine without a GPU, the distributed type that Accelerate chooses on GPUs
            Accelerate uses DeepSpeed only on GPUs; DeepSpeed has its own accelerator for CPUs
        stubbed: DeepSpeed's shared-memory collectives, which it would compile C++ for
            gloo's are equivalent
        set: DeepSpeed's counts of parameters and modules, to 0 before each job
            ZeRO 3 compares them over ranks, which have run different numbers of jobs
        """
    )
    return replace(
        record,
        layout={**record.layout, **{one: of_stage(stage) for one, stage in STAGES.items()}},
        always={**record.always, **PREPARED, **of_stage(DEFAULT_STAGE)},
        departures=(*record.departures, *departures),
    )


def with_liger(record: Framework) -> Framework:
    """The record of a trainer with ``use_liger_kernel``, whose loss takes an advantage of a sample.

    It logs no entropies.
    """
    departures = parse_departures(
        """
        stubbed: hidden states and the LM head that Liger's loss multiplies, by logits of two words
            its own softmax returns the probe's log-probabilities less 64
        set: TORCHDYNAMO_DISABLE=1
            Liger's loss makes the same operations, not compiled
        """
    )
    of_sample = Documented(AdvantageUnit.SAMPLE, OF_ADVANTAGES)
    return replace(
        record,
        always={**record.always, "use_liger_kernel": True},
        metrics={
            metric: name for metric, name in record.metrics.items() if metric != Metric.ENTROPY
        },
        conventions={**record.conventions, "advantage_unit": of_sample},
        departures=(*record.departures, *departures),
    )


class TrlDdpAdapter(GrpoAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"


class OnPreparedEngine(TrlAdapter):
    """A trainer on an engine that is chosen when the world is entered."""

    of_accelerate: ClassVar[str]
    """Accelerate's name of the engine."""

    def train(self, job: Job, rollouts: Rollouts, capacity: int, chosen: Settings) -> Training:
        """One run of the trainer; raises `Unsupported` if another engine ran."""
        from adapters.engines import accelerate

        training = super().train(job, rollouts, capacity, chosen)
        accelerate.require_engine(self.of_accelerate)
        return training


class OnFsdp2(OnPreparedEngine):
    """A trainer with FSDP2."""

    of_accelerate = "FSDP"

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


class OnDeepspeed(OnPreparedEngine):
    """A trainer with DeepSpeed's engine and its ZeRO stages."""

    of_accelerate = "DEEPSPEED"
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

    def leave_world(self) -> None:
        """Also drop the process groups that DeepSpeed caches."""
        from adapters.engines import deepspeed

        super().leave_world()
        deepspeed.leave_world()


class TrlFsdp2Adapter(OnFsdp2, GrpoAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"
    framework = sharded(GRPO)


class TrlDeepspeedAdapter(OnDeepspeed, GrpoAdapter):
    """`GRPOTrainer` with DeepSpeed's engine."""

    engine = "deepspeed"
    framework = of_zero(GRPO)


class TrlLigerAdapter(GrpoAdapter):
    """`GRPOTrainer` with ``use_liger_kernel``, with DistributedDataParallel."""

    engine = "liger"
    versions = "use_liger_kernel of TRL 1.9.0 to 1.14.2"
    framework = with_liger(GRPO)
    dependencies = (*GrpoAdapter.dependencies, "liger-kernel")

    def load(self, source: Path | None) -> None:
        """Import Liger-Kernel, too; fails if the version uses it for layers of the model alone."""
        super().load(source)
        importing.require_use_of_liger()

    def trainings(self) -> type[Training]:
        """Runs of `GRPOTrainer` with Liger-Kernel."""
        from adapters.trl.driving import LigerTraining

        return LigerTraining


class TrlRlooAdapter(RlooAdapter):
    """`RLOOTrainer` with DistributedDataParallel."""

    engine = "rloo"


class TrlAsyncAdapter(OnFsdp2, AsyncAdapter):
    """`AsyncGRPOTrainer` with FSDP2, the only engine that TRL documents for it on several ranks."""

    engine = "async"
    framework = sharded(ASYNC)
