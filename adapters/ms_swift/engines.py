"""The adapters of ms-swift's trainers, one for each engine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.engines import trainers
from adapters.engines.generations import schedule_of
from adapters.engines.shells import InOneRun, OnMegatron
from adapters.ms_swift.framework import MEGATRON, MS_SWIFT, generating
from adapters.toolkit.imports import choices_in, found, import_from
from adapters.toolkit.settings import KnownOptions

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch


class MsSwiftAdapter(InOneRun):
    """Drives modelscope/ms-swift; subclasses choose the trainer and its engine."""

    name = "ms_swift"
    package = "swift"
    versions = "ms-swift 4.6"
    distribution = "ms-swift"
    recipes = "adapters.ms_swift.recipe:read"
    tree = ("swift",)
    arguments: ClassVar[str]
    trainer: ClassVar[str]
    """The paths of two classes: the command line's arguments, and the trainer."""
    log_probs: ClassVar[tuple[str, str, str]]
    """The module of functions of logits, and its functions of log-probabilities and entropies."""

    def load(self, source: Path | None) -> None:
        """Import ms-swift and its trainer."""
        trainers.set_environment(MODELSCOPE_OFFLINE="1")
        import_from("swift", [source] if source else [])
        self.import_trainers()
        if found(self.arguments) is None:
            raise LookupError(f"this version has no {self.arguments}")
        from adapters.toolkit.probe import SEAM

        home, (code, *functions) = self.trainer.rpartition(".")[0], self.log_probs
        SEAM.put_into(found(f"{home}.{code}"), *functions)
        found(f"{home}.rollout_mixin").check_vllm_version_ge = lambda version: True

    def import_trainers(self) -> None:
        """Import modules that ms-swift itself imports only when a trainer is made."""

    def describe(self) -> Description:
        """Describe the trainer by the fields of ms-swift's arguments and the choices in its loss.

        Options that every generating trainer has do not count as the trainer's own.
        """
        kind, trainer = found(self.arguments), found(self.trainer)
        choices = {"loss_type": choices_in(found(trainer.__module__), "loss_type")}
        options = KnownOptions.read_fields(choices, kind)
        own, others = (
            {one.name for one in fields(found(f"swift.rlhf_trainers.args_mixin:{name}"))}
            for name in ("GRPOArgumentsMixin", "RolloutTrainerArgumentsMixin")
        )
        names = options.options_and_choices(own - others)
        # `RLHFArguments` and Megatron's arguments set `loss_type` to grpo if a user does not.
        defaults = {**options.defaults, "loss_type": "grpo"}
        return self.framework.description(options.offers, names, defaults.get)


class MsSwiftDdpAdapter(trainers.OnAccelerate, MsSwiftAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"
    framework = MS_SWIFT
    dependencies: ClassVar[tuple[str, ...]] = ("accelerate", "transformers", "trl")
    arguments = "swift.arguments:RLHFArguments"
    trainer = "swift.rlhf_trainers.grpo_trainer:GRPOTrainer"
    log_probs = ("grpo_trainer", "selective_log_softmax", "entropy_from_logits")

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.ms_swift.driving import MsSwiftRollouts, MsSwiftTraining

        self.enter_world(rank)
        return MsSwiftTraining(MsSwiftRollouts(batch, job, generating(job), rank.index), settings)

    def leave_world(self) -> None:
        """Also drop the process groups of sequence parallelism."""
        super().leave_world()
        kind = found("swift.sequence_parallel.sequence_parallel:SequenceParallel")
        kind._global_inited = False
        vars(found("swift.sequence_parallel:sequence_parallel")).update(vars(kind()))


class MsSwiftFsdp2Adapter(trainers.OnFsdp2, MsSwiftDdpAdapter):
    """`GRPOTrainer` with FSDP2."""

    framework = trainers.sharded(MS_SWIFT)


class MsSwiftDeepspeedAdapter(trainers.OnDeepspeed, MsSwiftDdpAdapter):
    """`GRPOTrainer` with DeepSpeed's engine."""

    framework = trainers.zero_record(MS_SWIFT)
    dependencies = (*MsSwiftDdpAdapter.dependencies, "deepspeed")


class MsSwiftMegatronAdapter(OnMegatron, MsSwiftAdapter):
    """`MegatronGRPOTrainer`."""

    engine = "megatron"
    framework = MEGATRON
    dependencies = ("accelerate", "mcore-bridge", "megatron-core", "transformers")
    arguments = "swift.megatron.arguments:MegatronRLHFArguments"
    trainer = "swift.megatron.trainers.grpo_trainer:MegatronGRPOTrainer"
    log_probs = ("vocab_parallel_utils", "vocab_parallel_gather_logps", "vocab_parallel_entropy")

    def import_trainers(self) -> None:
        """Import the trainers without mcore-bridge's models and without Transformer Engine."""
        from adapters.toolkit import cuda_on_cpu

        cuda_on_cpu.replace_streams()
        from adapters.ms_swift import megatron

        megatron.import_trainers()

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer in the layout's process groups, over which Accelerate gathers."""
        from adapters.engines import megatron_core
        from adapters.ms_swift.driving import MsSwiftRollouts
        from adapters.ms_swift.megatron import MsSwiftMegatronTraining

        trainers.enter_world(rank)
        trainers.name_engine("MULTI_CPU" if rank.world_size > 1 else "NO")
        megatron_core.join_grid(job.layout, rank)
        rollouts = MsSwiftRollouts(batch, job, schedule_of(job), rank.index, together=job.layout.cp)
        return MsSwiftMegatronTraining(rollouts, settings, rank)
