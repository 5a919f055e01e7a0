"""The adapters of ms-swift's trainers, one for each engine."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar

from adapters.contract import Layout, Observation, Unsupported
from adapters.contract.adapter import Adapter, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import CodeLocation, conventions_of, parse_departures
from adapters.contract.layout import Option
from adapters.engines.generations import schedule_of
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.ms_swift.framework import MEGATRON, MS_SWIFT, generating
from adapters.toolkit.calls import places
from adapters.toolkit.imports import choices_in, found, import_from
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job
    from adapters.contract.framework import Framework, Settings
    from adapters.toolkit.calls import Candidates

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MODELSCOPE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment variables: no hubs, no threads of a tokenizer, nothing compiled."""


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
    counts: ClassVar[str]
    divides: ClassVar[str]
    """Methods of the trainer that count tokens, and that divide by them."""

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

    @abstractmethod
    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer, with its ``gradients``, ``logs`` and ``passes``."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch in one run of the trainer."""
        batch = ProbedBatch.of(job, conventions_of(self.framework.conventions))
        settings = self.framework.settings(job)
        set_what_ray_sets(rank)
        with rank.framework():
            done = self.run(job, rank, batch, settings)
        reported = self.framework.reported(done.logs[: len(job.steps)])
        return observation(batch, done.gradients, done.passes.drain(), reported)

    def describe(self) -> Description:
        """Describe the trainer by the fields of ms-swift's arguments and what its loss compares."""
        kind = found(self.arguments)
        options = {one.name for one in fields(kind)}
        losses = choices_in(found(self.trainer.partition(":")[0]), "loss_type")
        of_grpo = {
            one.name for one in fields(found("swift.rlhf_trainers.args_mixin:GRPOArgumentsMixin"))
        }

        def offers(settings: Settings) -> bool:
            loss = settings.get("loss_type")
            return settings.keys() <= options and (loss is None or loss in losses)

        return self.framework.description(
            offers,
            {*of_grpo, *(f"loss_type={one}" for one in losses)},
            lambda name: getattr(kind, name, None),
            places=places(self.candidates()),
        )

    def candidates(self) -> Candidates:
        """Functions of the trainer that a mistake may be in, by place."""
        trainer = found(self.trainer)
        return {
            CodeLocation.LOG: ((trainer, "log"),),
            CodeLocation.TOKEN_COUNT: ((trainer, self.counts),),
            CodeLocation.TOKEN_DIVISION: ((trainer, self.divides),),
        }


class OnAccelerate(MsSwiftAdapter):
    """`GRPOTrainer`, which transformers' trainer and Accelerate run."""

    framework = MS_SWIFT
    mode_names = MS_SWIFT.mode_names
    dependencies = ("accelerate", "transformers", "trl")

    arguments = "swift.arguments:RLHFArguments"
    trainer = "swift.rlhf_trainers.grpo_trainer:GRPOTrainer"
    counts, divides = "_prepare_batch_inputs", "_compute_loss_and_metrics"

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.ms_swift.driving import Rollouts, Training

        self.enter_world(rank)
        return Training(job, Rollouts(batch, job, generating(job), rank.index), settings)

    def enter_world(self, rank: Rank) -> None:
        """Make the next trainer find this rank's world."""
        from adapters.engines import accelerate

        accelerate.enter_world(rank)

    def leave_world(self) -> None:
        """Reset the state that Accelerate and ms-swift keep of the world."""
        from adapters.engines import accelerate
        from adapters.ms_swift.driving import forget_sequences

        accelerate.leave_world()
        forget_sequences()


class MsSwiftDdpAdapter(OnAccelerate):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, and generations of several and of parts of steps."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "bshd", "thd", micro_batches=(1, 2))
        ulysses = cuts(((1, 2), (2, 2)), "bshd", "thd", micro_batches=(2,))
        optional = [
            Layout(dp=2, micro_batches=2, options=(option,))
            for option in (
                Option.SHARED_GENERATION,
                Option.SPLIT_GENERATION,
                Option.MASKED_TRUNCATION,
            )
        ]
        return by_size([*plain, *ulysses, Layout(micro_batches=4), *optional])


def sharded(record: Framework) -> Framework:
    """The record of a trainer on FSDP2, layer by layer."""
    departures = parse_departures(
        """
        set: on a machine without a GPU, the distributed type that Accelerate chooses on GPUs
            Accelerate shards models only on GPUs; torch's FSDP2 is the same on gloo
        """
    )
    of_engine = {
        "accelerator_config": {"use_configured_state": True},
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["ProbeLayer"]},
    }
    return replace(
        record,
        always={**record.always, **of_engine},
        departures=(*record.departures, *departures),
    )


class MsSwiftFsdp2Adapter(OnAccelerate):
    """`GRPOTrainer` with FSDP2."""

    engine = "fsdp2"
    framework = sharded(MS_SWIFT)

    def layouts(self) -> list[Layout]:
        """Data parallelism on 2 and 4 ranks."""
        return cuts(((2, 1), (4, 1)), "bshd", "thd", micro_batches=(1, 2))

    def enter_world(self, rank: Rank) -> None:
        """Make Accelerate shard the model on CPUs too; raises `Unsupported` on one rank."""
        from adapters.engines import accelerate

        if rank.world_size == 1:
            raise Unsupported("transformers shards a model only in distributed training")
        super().enter_world(rank)
        accelerate.name_engine("MULTI_GPU")

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; raises `Unsupported` if another engine ran."""
        from adapters.engines import accelerate

        observed = super().observe(job, rank)
        accelerate.require_engine("FSDP")
        return observed


class MsSwiftMegatronAdapter(OnMegatron, MsSwiftAdapter):
    """`MegatronGRPOTrainer`."""

    engine = "megatron"
    framework = MEGATRON
    mode_names = MEGATRON.mode_names
    dependencies = ("accelerate", "mcore-bridge", "megatron-core", "transformers")
    arguments = "swift.megatron.arguments:MegatronRLHFArguments"
    trainer = "swift.megatron.trainers.grpo_trainer:MegatronGRPOTrainer"
    counts, divides = "_generate_and_score_completions", "loss_func"

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 4 ranks."""
        ranks = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2))
        packed = cuts(ranks, "thd", micro_batches=(1, 2))
        padded = cuts(((1, 1), (2, 1)), "bshd", micro_batches=(1, 2))
        optional = [
            Layout(dp=2, micro_batches=2, format="thd", options=(option,))
            for option in (Option.SHARED_GENERATION, Option.MASKED_TRUNCATION)
        ]
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
        """One run of the trainer in the layout's process groups."""
        from adapters.engines import accelerate, megatron_core
        from adapters.ms_swift.driving import Rollouts
        from adapters.ms_swift.megatron import Training

        accelerate.enter_world(rank)
        accelerate.name_engine("MULTI_CPU" if rank.world_size > 1 else "NO")
        megatron_core.join_grid(job.layout, rank)
        rollouts = Rollouts(batch, job, schedule_of(job), rank.index, together=job.layout.cp)
        return Training(job, rollouts, settings, rank)
