"""Options, departures and base classes that adapters share, without importing an engine."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Framework, Job, Observation, Option, Rank, Settings
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.tables import read_departures, read_options
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract import Convention, Description, Metric

    Reported = dict[Metric, tuple[float | None, ...]]

NOTHING_LEARNED, ZEROED, CPU_AS_CUDA, PIPELINE_STAGES, ONE_BY_ONE = read_departures(
    "adapters.engines", "steps"
)
"""Departures that adapters of several frameworks share."""

OF_VALUES, OF_HUB, OF_DTYPE, OF_POLICIES, OF_PROMPTS = read_departures("adapters.engines", "grpo")
"""Departures of trainers that have TRL's options of GRPO."""

GRPO_OPTIONS = read_options("adapters.engines")
"""TRL's options of GRPO."""

PROBED, UNCOMPILED = read_departures("adapters.engines", "models")
"""Departures of frameworks that compute log-probabilities by their own functions."""

PARALLEL_SIZES = tuple(
    f"{kind}_parallel_size" for kind in ("context", "tensor_model", "pipeline_model")
)
"""Megatron-Core's options for context, tensor and pipeline parallelism."""

PARALLEL = tuple(f"--{name.replace('_', '-')}" for name in PARALLEL_SIZES)
"""The options of `PARALLEL_SIZES` as they are typed on Megatron's command line."""

DEFAULT_STAGE = 2
STAGES = {Option.ZERO_0: 0, Option.ZERO_1: 1, Option.ZERO_3: 3}
"""Options that choose a stage of DeepSpeed's ZeRO other than the default."""


class WithRecord(Adapter):
    """An adapter whose framework has a record, which may depend on the loaded version."""

    framework: ClassVar[Framework]
    loaded: ClassVar[Any] = None
    """The module with ``offers``, ``option_names`` and ``default`` of the loaded version."""

    @property
    def record(self) -> Framework:
        """The record of the loaded version."""
        return self.framework

    def describe(self) -> Description:
        """Describe the loaded version by its options."""
        loaded = self.loaded
        return self.record.description(loaded.offers, loaded.option_names(), loaded.default)


class InOneRun(WithRecord):
    """An adapter of a framework that trains all steps of a batch in one run."""

    devices = ("cpu",)
    dtypes = ("float32",)

    def declared(self) -> Mapping[str, Convention]:
        """The conventions that the loaded version's modes leave open."""
        return self.framework.conventions

    def settings(self, job: Job) -> dict[str, Any]:
        """The settings of a job; raises `Unsupported`."""
        return self.record.settings(job)

    @abstractmethod
    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """Run all steps; returns ``gradients`` and ``logs`` of steps, and forward ``passes``."""

    def reported(self, job: Job, done: Any) -> Reported:
        """The metrics of a finished run's steps."""
        return self.framework.reported(done.logs[: len(job.steps)])

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch."""
        batch = ProbedBatch.of(job, conventions_of(self.declared()))
        settings = self.settings(job)
        set_what_ray_sets(rank)
        with rank.framework(), refusals_of_configuration(job):
            done = self.run(job, rank, batch, settings)
        reported = self.reported(job, done)
        together = len(done.logs) < len(job.steps)
        return observation(batch, done.gradients, done.passes, reported, logs_together=together)


class OnRayAndDeepSpeed(Adapter):
    """An adapter of a framework whose Ray processes each have a DeepSpeed engine."""

    engine = "deepspeed"
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("deepspeed", "ray", "transformers")

    def leave_world(self) -> None:
        """Forget DeepSpeed's process groups."""
        from adapters.engines import deepspeed

        deepspeed.leave_world()


class OnFsdp(Adapter):
    """An adapter of an engine with torch's FSDP1 or FSDP2."""

    def leave_world(self) -> None:
        """Drop cached reductions of sharded tensors, which use the first mesh's process groups."""
        from torch.distributed.tensor import debug

        from adapters.engines import fsdp1

        debug._clear_sharding_prop_cache()
        fsdp1.take_models_apart()


class OnMegatron(Adapter):
    """An adapter of an engine on Megatron-Core, with the CPU as CUDA device if there is no GPU."""

    def load(self, source: Path | None) -> None:
        """Import the framework."""
        from adapters.toolkit import cuda_on_cpu

        cuda_on_cpu.install()
        super().load(source)  # type: ignore[safe-super]

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Run the job."""
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            return super().observe(job, rank)  # type: ignore[safe-super]

    def leave_world(self) -> None:
        """Forget Megatron's process groups."""
        from adapters.engines import megatron_core

        super().leave_world()
        megatron_core.leave_grid()
