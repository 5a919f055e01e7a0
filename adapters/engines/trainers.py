"""Base classes of adapters of trainers on Hugging Face Accelerate, without importing Accelerate.

Accelerate reads the world from environment variables and keeps it for the process; each `Trainer`
makes its own `Accelerator`, which uses that state.

This module also has the settings of transformers' `Trainer` that do not affect token weights, and
the settings by which a user chooses the engines FSDP2 and DeepSpeed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Framework, Job, Layout, Observation, Rank, Unsupported
from adapters.contract.layout import expanded
from adapters.contract.tables import RecordFile, read_departures, read_rows
from adapters.engines.shells import DEFAULT_STAGE, STAGES

if TYPE_CHECKING:
    from pathlib import Path


[ENVIRONMENT] = read_rows("adapters.engines", "environment")


def set_environment(**further: str) -> None:
    """Set environment variables that packages read at import, unless a user has set them."""
    for name, value in {**ENVIRONMENT, **further}.items():
        os.environ.setdefault(name, value)


OF_RUNS = RecordFile("adapters.engines").variant("runs").always
"""Settings of a `Trainer` that all jobs use."""

PREPARED = {"accelerator_config": {"use_configured_state": True}}
"""Settings that keep transformers from resetting the engine that was chosen for the world."""


def sharded(record: Framework) -> Framework:
    """A trainer's record on FSDP2, which shards layer by layer."""
    layers = {"transformer_layer_cls_to_wrap": ["ProbeLayer"]}
    of_engine = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **layers}}
    departures = read_departures("adapters.engines", "fsdp2")
    return replace(
        record,
        always={**record.always, **PREPARED, **of_engine},
        departures=(*record.departures, *departures),
    )


OF_STAGES = [
    layout
    for stage in STAGES
    for layout in expanded(f"{{dp1-cp1-mb2,dp2-cp1-mb2,dp4-cp1-mb1}}-bshd+{stage}")
]
"""The layouts that are run with each non-default ZeRO stage."""

FROM_ARGUMENTS = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""DeepSpeed's settings that transformers fills in."""


def zero_config(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration of a ZeRO stage, in which transformers fills in the sizes."""
    sizes = dict.fromkeys(FROM_ARGUMENTS, "auto")
    return {"deepspeed": {**sizes, "zero_optimization": {"stage": stage}}}


def zero_record(record: Framework) -> Framework:
    """A trainer's record on DeepSpeed's engine."""
    departures = read_departures("adapters.engines", "zero")
    return replace(
        record,
        layout={**record.layout, **{one: zero_config(stage) for one, stage in STAGES.items()}},
        always={**record.always, **PREPARED, **zero_config(DEFAULT_STAGE)},
        departures=(*record.departures, *departures),
    )


LOCAL_RANK = "LOCAL_RANK"
RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Variables that Accelerate requires; no process connects, as the world exists already."""


def enter_world(rank: Rank) -> None:
    """Let the next `Accelerator` find the world of a rank, without state of earlier jobs."""
    leave_world()
    for name, value in RENDEZVOUS.items():
        os.environ.setdefault(name, value)
    if rank.device == "cpu":
        os.environ.pop(LOCAL_RANK, None)  # Accelerate sets it if a world has several CPUs


def name_engine(name: str) -> None:
    """Enable an engine, by its name, on CPUs, although Accelerate allows it only on GPUs."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True).distributed_type = DistributedType(name)


def leave_world() -> None:
    """Forget the world, and the gradients and data loaders of its last job."""
    from accelerate.state import AcceleratorState, GradientState

    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)  # set once DeepSpeed is configured
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class OnAccelerate(Adapter):
    """An adapter of a trainer on Accelerate."""

    def enter_world(self, rank: Rank) -> None:
        """Make the next trainer find this rank's world."""
        enter_world(rank)

    def leave_world(self) -> None:
        """Reset the state that Accelerate keeps of the world."""
        leave_world()


class OnPreparedEngine(OnAccelerate):
    """An adapter of a trainer on an engine that is chosen when the world is entered."""

    of_accelerate: ClassVar[str]
    """The engine's name in Accelerate."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; raises `Unsupported` if another engine ran."""
        from accelerate.state import AcceleratorState

        observed = super().observe(job, rank)  # type: ignore[safe-super]
        ran = AcceleratorState().distributed_type.value
        if ran != self.of_accelerate:
            raise Unsupported(f"Accelerate ran {ran} instead of {self.of_accelerate}")
        return observed


class OnFsdp2(OnPreparedEngine):
    """An adapter of a trainer with FSDP2."""

    engine = "fsdp2"
    of_accelerate = "FSDP"

    def layouts(self) -> list[Layout]:
        """The layouts with several ranks."""
        return [layout for layout in super().layouts() if layout.world_size > 1]

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate shard the model on CPUs too; raises `Unsupported` on one rank."""
        if rank.world_size == 1:
            raise Unsupported("transformers shards a model only in distributed training")
        super().enter_world(rank)
        if rank.device == "cpu":
            name_engine("MULTI_GPU")


class OnDeepspeed(OnPreparedEngine):
    """An adapter of a trainer with DeepSpeed's engine and its ZeRO stages."""

    engine = "deepspeed"
    of_accelerate = "DEEPSPEED"

    def layouts(self) -> list[Layout]:
        """All layouts with the default ZeRO stage, 2, and some with the other stages."""
        return [*super().layouts(), *OF_STAGES]

    def load(self, source: Path | None) -> None:
        """Import DeepSpeed for CPUs before Accelerate does, then the trainer."""
        from adapters.engines import deepspeed

        deepspeed.import_deepspeed()
        super().load(source)  # type: ignore[safe-super]

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate use DeepSpeed on CPUs, and set the local rank, which DeepSpeed reads."""
        from adapters.engines import deepspeed

        super().enter_world(rank)
        deepspeed.forget_engines()
        name_engine("DEEPSPEED")
        os.environ[LOCAL_RANK] = str(rank.index)

    def leave_world(self) -> None:
        """Also drop the process groups that DeepSpeed caches."""
        from adapters.engines import deepspeed

        super().leave_world()
        deepspeed.leave_world()
