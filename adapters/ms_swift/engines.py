"""The adapters of ms-swift's trainers, one for each engine."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Layout, Observation
from adapters.contract.adapter import Adapter, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.layout import Option
from adapters.engines.generations import schedule_of
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.engines.trainers import OnAccelerate, OnDeepspeed, OnFsdp2, of_zero, sharded
from adapters.ms_swift.framework import MEGATRON, MS_SWIFT, generating
from adapters.toolkit.imports import choices_in, found, import_from
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job
    from adapters.contract.framework import Framework, Settings

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MODELSCOPE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment variables: no hubs, no threads of a tokenizer, nothing compiled."""

OF_GENERATIONS = (Option.SHARED_GENERATION, Option.MASKED_TRUNCATION)
MIXIN = "swift.rlhf_trainers.args_mixin"


class MsSwiftAdapter(Adapter):
    """Drives modelscope/ms-swift; subclasses choose the trainer and its engine."""

    name = "ms_swift"
    package = "swift"
    versions = "ms-swift 4.6"
    distribution = "ms-swift"
    tree = ("swift",)
    devices = ("cpu",)
    dtypes = ("float32",)
    framework: ClassVar[Framework]
    arguments: ClassVar[str]
    trainer: ClassVar[str]
    """Paths of classes: the command line's arguments, and the trainer."""

    def load(self, source: Path | None) -> None:
        """Import ms-swift and its trainer."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import_from("swift", [source] if source else [])
        self.import_trainers()
        if found(self.arguments) is None:
            raise LookupError(f"this version has no {self.arguments}")

    def import_trainers(self) -> None:
        """Import what ms-swift itself imports when a trainer is made."""

    def describe(self) -> Description:
        """Describe the trainer by the fields of ms-swift's arguments and what its loss compares.

        Its own options are those that are not of every trainer that generates.
        """
        kind, trainer = found(self.arguments), found(self.trainer)
        options = {one.name for one in fields(kind)}
        own, others = (
            {one.name for one in fields(found(f"{MIXIN}:{name}"))}
            for name in ("GRPOArgumentsMixin", "RolloutTrainerArgumentsMixin")
        )
        losses = choices_in(found(trainer.__module__), "loss_type")
        names = (own - others) | {f"loss_type={loss}" for loss in losses}

        def offers(settings: Settings) -> bool:
            loss = settings.get("loss_type")
            return settings.keys() <= options and (loss is None or loss in losses)

        return self.framework.description(
            offers,
            names,
            lambda name: getattr(kind, name, None),
        )

    def settings(self, job: Job) -> dict[str, Any]:
        """What a user sets to train the job; raises `Unsupported`."""
        return self.framework.settings(job)

    @abstractmethod
    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer, with its ``gradients``, ``logs`` and ``passes``."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch in one run of the trainer."""
        batch = ProbedBatch.of(job, conventions_of(self.framework.conventions))
        settings = self.settings(job)
        set_what_ray_sets(rank)
        with rank.framework():
            done = self.run(job, rank, batch, settings)
        reported = self.framework.reported(done.logs[: len(job.steps)])
        return observation(batch, done.gradients, done.passes.drain(), reported)


class MsSwiftDdpAdapter(OnAccelerate, MsSwiftAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"
    framework = MS_SWIFT
    dependencies: ClassVar[tuple[str, ...]] = ("accelerate", "transformers", "trl")
    arguments = "swift.arguments:RLHFArguments"
    trainer = "swift.rlhf_trainers.grpo_trainer:GRPOTrainer"

    def layouts(self) -> list[Layout]:
        """Data and sequence parallelism on up to 4 ranks, and other generations."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "thd", "bshd", micro_batches=(1, 2))
        shared = cuts(((1, 2), (2, 2)), "thd", "bshd", micro_batches=(2,))
        optional = [Layout(dp=2, micro_batches=2, options=(one,)) for one in OF_GENERATIONS]
        return by_size([*plain, *shared, Layout(micro_batches=4), *optional])

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.ms_swift.driving import Rollouts, Training

        self.enter_world(rank)
        return Training(job, Rollouts(batch, job, generating(job), rank.index), settings)

    def leave_world(self) -> None:
        """Also forget the groups of ranks that share sequences."""
        from adapters.ms_swift.driving import forget_sequences

        super().leave_world()
        forget_sequences()


class MsSwiftFsdp2Adapter(OnFsdp2, MsSwiftDdpAdapter):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"
    framework = sharded(MS_SWIFT)


class MsSwiftDeepspeedAdapter(OnDeepspeed, MsSwiftDdpAdapter):
    """`GRPOTrainer` with DeepSpeed's engine."""

    engine = "deepspeed"
    framework = of_zero(MS_SWIFT)
    dependencies = (*MsSwiftDdpAdapter.dependencies, "deepspeed")


class MsSwiftMegatronAdapter(OnMegatron, MsSwiftAdapter):
    """`MegatronGRPOTrainer`."""

    engine = "megatron"
    framework = MEGATRON
    dependencies = ("accelerate", "mcore-bridge", "megatron-core", "transformers")
    arguments = "swift.megatron.arguments:MegatronRLHFArguments"
    trainer = "swift.megatron.trainers.grpo_trainer:MegatronGRPOTrainer"

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 4 ranks."""
        ranks = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2))
        packed = cuts(ranks, "thd", micro_batches=(1, 2))
        padded = cuts(ranks[:2], "bshd", micro_batches=(1, 2))
        with_two = Layout(dp=2, micro_batches=2, format="thd")
        optional = [replace(with_two, options=(one,)) for one in OF_GENERATIONS]
        return by_size([*packed, *padded, *optional])

    def load(self, source: Path | None) -> None:
        """Import ms-swift, and its trainers on Megatron-Core without Transformer Engine."""
        from adapters.toolkit import cuda_on_cpu

        cuda_on_cpu.replace_streams()
        super().load(source)

    def import_trainers(self) -> None:
        """Import the trainers without mcore-bridge's models."""
        from adapters.ms_swift import megatron

        megatron.import_trainers()

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer in the layout's process groups, which Accelerate gathers over."""
        from adapters.engines import accelerate, megatron_core
        from adapters.ms_swift.driving import Rollouts
        from adapters.ms_swift.megatron import Training

        accelerate.enter_world(rank)
        accelerate.name_engine("MULTI_CPU" if rank.world_size > 1 else "NO")
        megatron_core.join_grid(job.layout, rank)
        rollouts = Rollouts(batch, job, schedule_of(job), rank.index, together=job.layout.cp)
        return Training(job, rollouts, settings, rank)
