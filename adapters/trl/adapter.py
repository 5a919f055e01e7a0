"""The adapters of TRL's trainers, from rollouts to the optimizer's gradient, for every engine."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Convention, Job, Metric, Objective, Rank, Unsupported
from adapters.contract.description import Description, Documented
from adapters.contract.objective import OF_TERMS
from adapters.engines.shells import InOneRun
from adapters.engines.trainers import OnAccelerate
from adapters.toolkit.imports import found
from adapters.trl import importing
from adapters.trl.framework import ESTIMATOR, GRPO, RLOO
from reference.aggregation import DivergenceEstimator, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Framework, OptionRow, Settings
    from adapters.engines.shells import Reported
    from adapters.trl.driving import TrlTraining


class TrlAdapter(OnAccelerate, InOneRun):
    """Drives huggingface/trl; subclasses choose the trainer."""

    name = "trl"
    package = "trl"
    versions = "TRL since 1.9.0"
    distribution = "trl"
    tree = ("trl",)
    dependencies: ClassVar[tuple[str, ...]] = ("accelerate", "transformers")
    recipes = "adapters.trl.recipe:read"
    framework: ClassVar[Framework]
    trainer: ClassVar[str]
    config: ClassVar[str]
    """The paths, below TRL's package, of the trainer's class and of its configuration's class."""
    training: ClassVar[str]
    """The path, below this package, of the class that runs the trainer; it imports torch."""
    elsewhere: ClassVar[tuple[OptionRow, ...]] = ()
    """Option rows of another record that also apply to this trainer."""

    def load(self, source: Path | None) -> None:
        """Import TRL and its trainers; raises `LookupError` if an option of all jobs is missing."""
        importing.import_trl(source)
        _, config = self.classes()
        missing = sorted(self.framework.always.keys() - {one.name for one in fields(config)})
        if missing:
            raise LookupError(f"this version's {config.__name__} has no {', '.join(missing)}")

    def describe(self) -> Description:
        """Describe the trainer."""
        elsewhere = {name for row in self.elsewhere for name in row.names}
        trainer, config = self.classes()
        names = importing.option_names(trainer, config)
        return self.framework.description(
            self.offers,
            {name for name in names if name.partition("=")[0] not in elsewhere},
            lambda name: getattr(config, name, None),
            declared=self.declared(),
        )

    def classes(self) -> tuple[Any, Any]:
        """The loaded classes of the trainer and of its configuration."""
        return found(f"trl.{self.trainer}"), found(f"trl.{self.config}")

    def offers(self, settings: Settings) -> bool:
        """Whether the trainer has the settings; True, as its versions do not differ."""
        return True

    def settings(self, job: Job) -> dict[str, Any]:
        """A copy of a job's settings, since the trainer may modify it; raises `Unsupported`."""
        return deepcopy(super().settings(job))

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.engines.generations import schedule_of
        from adapters.toolkit.probe import probe_capacity
        from adapters.trl.driving import TrlRollouts

        schedule = schedule_of(job, settings.get("num_iterations", 1))
        rollouts = TrlRollouts(batch, job, schedule, rank.index)
        self.enter_world(rank)
        run: type[TrlTraining] = found(f"adapters.trl.{self.training}")
        capacity = probe_capacity(batch.probe_size + 1)
        return run(job, rollouts, capacity, settings, self.classes())


class TrlDdpAdapter(TrlAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine: ClassVar[str] = "ddp"
    framework = GRPO
    trainer = "trainer.grpo_trainer:GRPOTrainer"
    config = "trainer.grpo_config:GRPOConfig"
    training = "driving:GrpoTraining"

    def describe(self) -> Description:
        """Describe the trainer, whose entropy bonus depends on the loss type before 1.10."""
        found = super().describe()
        bonuses = (Objective.ENTROPY, Objective.WITH_ENTROPY, *OF_TERMS)
        missing = () if importing.has_entropy_bonus() else bonuses
        default = importing.defaults()["loss_type"]
        return replace(
            found,
            default_mode=Mode(self.mode_names[default]),
            objectives=found.objectives.difference(missing),
        )

    def offers(self, settings: Settings) -> bool:
        """Whether this version's `GRPOConfig` has these settings, and its trainer the loss type."""
        return importing.offers(settings)

    def declared(self) -> Mapping[str, Convention]:
        """The conventions of all versions, with this version's estimator of the divergence."""
        is_corrected = importing.defaults().get("use_bias_correction_kl")
        estimator = DivergenceEstimator.K3_BY_RATIO if is_corrected else DivergenceEstimator.K3
        return {**self.framework.conventions, "kl_estimator": Documented(estimator, ESTIMATOR)}

    def settings(self, job: Job) -> dict[str, Any]:
        """The settings for a job; raises `Unsupported`."""
        chosen = super().settings(job)
        of_loss = {name: chosen[name] for name in ("loss_type",) if name in chosen}
        if not importing.offers(of_loss):
            raise Unsupported(f"no loss_type={of_loss['loss_type']}")
        return chosen

    def reported(self, job: Job, done: Any) -> Reported:
        """The metrics of steps; the logged loss is the policy loss unless it has more terms."""
        found = dict(super().reported(job, done))
        if job.objective in OF_TERMS:  # TRL's policy loss includes the divergence
            del found[Metric.POLICY_LOSS]
            return found
        return {Metric.POLICY_LOSS: found[Metric.LOSS], **found}


class TrlRlooAdapter(TrlAdapter):
    """`RLOOTrainer` with DistributedDataParallel."""

    engine = "rloo"
    framework = RLOO
    trainer = "trainer.rloo_trainer:RLOOTrainer"
    config = "trainer.rloo_config:RLOOConfig"
    training = "driving:RlooTraining"
    elsewhere = GRPO.options

    def settings(self, job: Job) -> dict[str, Any]:
        """The settings for a job; raises `Unsupported`.

        The trainer has no masks: samples are whole, or masked because they are truncated.
        """
        chosen = super().settings(job)
        masks = [step.mask[response] for step in job.steps for response in step.responses]
        if any(mask.any() and not mask.all() for mask in masks):
            raise Unsupported("RLOOTrainer has no token mask: it trains on whole completions")
        if not chosen["mask_truncated_completions"] and not all(mask.all() for mask in masks):
            raise Unsupported("RLOOTrainer masks only truncated samples")
        return chosen
