"""The adapters of TRL's trainers, from rollouts to the optimizer's gradient, for every engine."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import (
    Assumed,
    BatchProperty,
    CodeLocation,
    Description,
    Documented,
    conventions_of,
    parse_departures,
)
from adapters.contract.framework import Framework, parse_options
from adapters.contract.job import Job, Observation, Unsupported
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.engines.shells import cuts
from adapters.toolkit.calls import places, refusals_of_configuration
from adapters.toolkit.worlds import observation
from adapters.trl import importing
from adapters.trl.framework import (
    CLIPPED,
    ESTIMATOR,
    GRPO,
    MICRO_BATCHES,
    OF_ADVANTAGES,
    OF_ALL,
    OF_RUNS,
    RLOO,
)
from reference.aggregation import (
    AdvantageUnit,
    AuxiliaryAggregation,
    DivergenceEstimator,
    Mode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract.description import Convention
    from adapters.contract.framework import Settings
    from adapters.toolkit.calls import Candidates
    from adapters.trl.driving import Rollouts, Training

OF_GENERATIONS = (Option.SHARED_GENERATION, Option.SPLIT_GENERATION, Option.MASKED_TRUNCATION)


class TrlAdapter(Adapter):
    """Drives huggingface/trl; subclasses choose the trainer."""

    name = "trl"
    package = "trl"
    versions = "TRL since 1.9.0"
    distribution = "trl"
    tree = ("trl",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies: ClassVar[tuple[str, ...]] = ("accelerate", "transformers")
    framework: ClassVar[Framework]

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, and generations of several and of parts of steps."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "bshd", micro_batches=(1, 2))
        optional = [Layout(dp=2, micro_batches=2, options=(option,)) for option in OF_GENERATIONS]
        return [*plain, Layout(micro_batches=4), *optional]

    def load(self, source: Path | None) -> None:
        """Import TRL and its trainers."""
        importing.import_trl(source)

    def enter_world(self, rank: Rank) -> None:
        """Make the next trainer find this rank's world."""
        from adapters.engines import accelerate

        accelerate.enter_world(rank)

    def describe(self) -> Description:
        """Describe the trainer; rows of `GRPO` say something of its options, too."""
        options = importing.option_names(self.config_class())
        return self.framework.description(
            self.offers,
            options.difference(*(row.names for row in GRPO.options)),
            declared=self.declared(),
            places=places(self.candidates()),
        )

    @abstractmethod
    def config_class(self) -> Any:
        """The class of the trainer's configuration."""

    def offers(self, settings: Settings) -> bool:
        """Whether the trainer has settings; these are those of all versions."""
        return True

    def declared(self) -> Mapping[str, Convention]:
        """What the trainer's modes leave open, by convention."""
        return self.framework.conventions

    @abstractmethod
    def candidates(self) -> Candidates:
        """Functions of the trainer that a mistake may be in, by place."""

    def settings(self, job: Job) -> dict[str, Any]:
        """The settings of a job by the trainer's names, which may write to them.

        Raises `Unsupported`.
        """
        return deepcopy(self.framework.settings(job))

    @abstractmethod
    def trainings(self) -> type[Training]:
        """The class of the trainer's runs."""

    def train(self, job: Job, rollouts: Rollouts, capacity: int, chosen: Settings) -> Training:
        """One run of the trainer."""
        return self.trainings()(job, rollouts, capacity, chosen)

    def reported(
        self, job: Job, logs: Sequence[Mapping[str, float]]
    ) -> Mapping[Metric, tuple[float | None, ...]]:
        """The metrics that the logs of steps have."""
        return self.framework.reported(logs)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch in one run of the trainer."""
        from adapters.toolkit.probe import probe_capacity
        from adapters.trl.driving import Rollouts
        from adapters.trl.schedule import schedule_of

        if importing.needs_triton():
            raise Unsupported("this version's LM head requires Triton, which is not installed")
        batch = ProbedBatch.under(conventions_of(self.declared()), job.steps, job.objective)
        chosen = self.settings(job)
        schedule = schedule_of(job, chosen.get("num_iterations", 1))
        rollouts = Rollouts(batch, job, schedule, rank.index)
        self.enter_world(rank)
        with rank.framework(), refusals_of_configuration(job):
            training = self.train(job, rollouts, probe_capacity(batch.probe_size + 1), chosen)
        reported = self.reported(job, training.logs)
        return observation(batch, training.gradients, training.passes.drain(), reported)

    def leave_world(self) -> None:
        """Reset the state that Accelerate keeps of the world."""
        from adapters.engines import accelerate

        accelerate.leave_world()


class GrpoAdapter(TrlAdapter):
    """Drives `GRPOTrainer`."""

    framework = GRPO
    mode_names = GRPO.mode_names

    def describe(self) -> Description:
        """Describe the trainer, whose entropy bonus depends on the loss type before 1.10."""
        found = super().describe()
        missing = () if importing.has_entropy_bonus() else (Objective.ENTROPY, Objective.COMBINED)
        default = importing.defaults()["loss_type"]
        return replace(
            found,
            default_mode=Mode(self.mode_names[default]),
            objectives=found.objectives.difference(missing),
        )

    def offers(self, settings: Settings) -> bool:
        """Whether this version's `GRPOConfig` has settings, and its loss their type."""
        return importing.offers(settings)

    def declared(self) -> Mapping[str, Convention]:
        """The conventions of all versions, with the version's estimator of the divergence."""
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

    def config_class(self) -> Any:
        """`GRPOConfig`."""
        return importing.module("trainer.grpo_config").GRPOConfig

    def trainings(self) -> type[Training]:
        """Runs of `GRPOTrainer`."""
        from adapters.trl.driving import GrpoTraining

        return GrpoTraining

    def reported(
        self, job: Job, logs: Sequence[Mapping[str, float]]
    ) -> Mapping[Metric, tuple[float | None, ...]]:
        """The metrics of steps; a loss of one term is the policy loss."""
        found = dict(super().reported(job, logs))
        if job.objective is Objective.COMBINED:  # TRL's policy loss includes the divergence
            del found[Metric.POLICY_LOSS]
            return found
        return {Metric.POLICY_LOSS: found[Metric.LOSS], **found}

    def candidates(self) -> Candidates:
        """The functions in which the trainer counts, divides, logs and validates."""
        trainer = importing.module("trainer.grpo_trainer").GRPOTrainer
        return {
            CodeLocation.TOKEN_COUNT: ((trainer, "_generate_and_score_completions"),),
            CodeLocation.TOKEN_DIVISION: ((trainer, "_compute_loss"), (trainer, "compute_loss")),
            CodeLocation.LOG: ((trainer, "log"),),
            CodeLocation.ARGUMENTS: ((self.config_class(), "__post_init__"),),
        }


class RlooAdapter(TrlAdapter):
    """Drives `RLOOTrainer`."""

    framework = RLOO
    mode_names = RLOO.mode_names

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

    def config_class(self) -> Any:
        """`RLOOConfig`."""
        return importing.module("trainer.rloo_config").RLOOConfig

    def trainings(self) -> type[Training]:
        """Runs of `RLOOTrainer`."""
        from adapters.trl.driving import RlooTraining

        return RlooTraining

    def candidates(self) -> Candidates:
        """The functions in which the trainer logs and validates; it counts no tokens."""
        trainer = importing.module("trainer.rloo_trainer").RLOOTrainer
        return {
            CodeLocation.LOG: ((trainer, "log"),),
            CodeLocation.ARGUMENTS: ((self.config_class(), "__post_init__"),),
        }


NEVER_MADE = {
    BatchProperty.EMPTY_SAMPLE: "trl/experimental/async_grpo/async_rollout_worker.py"
    " (_chain_to_sequences)"
}
"""What the worker of `AsyncGRPOTrainer` prevents; users may replace it (``rollout_worker``)."""

OF_ASYNC = parse_departures(
    """
    set: a rollout worker that has filled its queue with the case's samples, and a weight transfer
    that does nothing
        both are TRL's own extension points; generation and rewards come before a step
    set: prompts that samples of a group share up to the last token
        a user's samples share all of it; TRL packs the token before they differ once per sample
    set: more samples in the queue, which no step trains on
        TRL's data loader reads a micro-batch ahead
    set: token_budget=0, so that micro-batches have the same number of samples
        with a budget, the samples of a step would depend on those of later steps
    set: max_staleness above the number of steps
        the samples of all steps are in the queue from the beginning
    stubbed: the device's theoretical speed, which TRL requests from CUDA
        it is only logged
    stubbed: the thread that sends rollouts to a service
        nothing is reported to a service; threads would accumulate over jobs
    """
)

# Where docs/source/async_grpo_trainer.md says nothing, it refers to the page of GRPO.
ASYNC = Framework(
    title="TRL",
    scope="Fields of `AsyncGRPOConfig`, of the engine `async`, all of it with `--modes=token_mean`."
    " Those that `GRPOConfig` has too are covered in the same way, unless they are here.",
    modes={"AsyncGRPOTrainer": (Mode.TOKEN_MEAN, {})},
    objectives={Objective.POLICY: {}, Objective.OFF_POLICY: {}},
    layout=MICRO_BATCHES,
    always={
        **OF_RUNS,
        **CLIPPED,
        "token_budget": 0,
        "max_staleness": lambda job: len(job.steps) + 1,
    },
    metrics={
        Metric.POLICY_LOSS: "loss",
        Metric.CLIP_FRACTION: "clip_ratio/region_mean",
        Metric.ENTROPY: "entropy",
    },
    conventions={
        "advantage_unit": Documented(AdvantageUnit.SAMPLE, OF_ADVANTAGES),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    },
    options=parse_options(
        """
        token_budget | micro-batches by tokens | it is 0, as the samples of a step would depend on
            those that come after it
        gradient_accumulation_steps, per_device_train_batch_size | micro-batches
        max_staleness, weight_sync_steps, queue_maxsize | which rollouts are trained on | they are
            given
        fork_threshold_tokens | conversations that become several samples | samples are given
        num_generations, max_completion_length | rollouts | they are given
        max_inflight_tasks, request_timeout, heartbeat_stale_after_s, weight_sync_timeout | how
            rollouts and weights travel | a worker has all rollouts, and no weights are sent
        dtype | that of the model | it is float32
        """
    ),
    departures=(*OF_ALL, *OF_ASYNC),
)


class AsyncAdapter(TrlAdapter):
    """Drives `AsyncGRPOTrainer`.

    Its loss is a mean over the tokens of a step, and its samples come from a queue. Each has one
    advantage, and log-probabilities of the policy that generated it.
    """

    framework = ASYNC
    mode_names = ASYNC.mode_names

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, with packed rows."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "thd", micro_batches=(1, 2))
        return [*plain, Layout(dp=2, micro_batches=4, format="thd")]

    def describe(self) -> Description:
        """Describe the trainer, with what its own worker never makes."""
        return replace(super().describe(), never_made=NEVER_MADE)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; rows are not counted by their first token, which samples share."""
        return replace(super().observe(job, rank), rows=())

    def config_class(self) -> Any:
        """`AsyncGRPOConfig`."""
        return importing.module("experimental.async_grpo.async_grpo_config").AsyncGRPOConfig

    def trainings(self) -> type[Training]:
        """Runs of `AsyncGRPOTrainer`."""
        from adapters.trl.asynchronous import AsyncTraining

        return AsyncTraining

    def candidates(self) -> Candidates:
        """The functions in which the trainer counts, divides, logs and validates."""
        trainer = importing.module("experimental.async_grpo.async_grpo_trainer")
        return {
            CodeLocation.TOKEN_COUNT: ((trainer.DataCollatorForRollout, "torch_call"),),
            CodeLocation.TOKEN_DIVISION: ((trainer.AsyncGRPOTrainer, "compute_loss"),),
            CodeLocation.LOG: ((trainer.AsyncGRPOTrainer, "log"),),
            CodeLocation.ARGUMENTS: ((self.config_class(), "__post_init__"),),
        }
