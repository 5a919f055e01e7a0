"""The adapter that TRL's trainers and engines share, from rollouts to the optimizer's gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import Departure, Description, conventions_of
from adapters.contract.job import Depth, Job, Observation, Unsupported
from adapters.contract.layout import Layout, Option
from adapters.contract.probed_batch import ProbedBatch
from adapters.engines.shells import cuts
from adapters.toolkit.calls import places, refusals_of_configuration
from adapters.toolkit.worlds import observation
from adapters.trl import departures, importing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.description import Convention
    from adapters.toolkit.calls import Candidates
    from adapters.trl.configuration import Settings
    from adapters.trl.rollouts import Rollouts
    from adapters.trl.schedule import Schedule
    from adapters.trl.training import Training

OPTIONS = (Option.SHARED_GENERATION, Option.SPLIT_GENERATION, Option.MASKED_TRUNCATION)
"""The layout options of generations, which all trainers have."""


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
    options: ClassVar[tuple[Option, ...]] = OPTIONS
    """The options of layouts that are the trainer's."""
    options_of_engine: ClassVar[tuple[Option, ...]] = ()
    departures: ClassVar[tuple[Departure, ...]]
    departures_of_engine: ClassVar[tuple[Departure, ...]] = ()

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, and generations of several and of parts of steps."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "bshd", micro_batches=(1, 2))
        optional = [Layout(dp=2, micro_batches=2, options=(option,)) for option in OPTIONS]
        return [*plain, Layout(micro_batches=4), *optional]

    def load(self, source: Path | None) -> None:
        """Import TRL and its trainers."""
        importing.import_trl(source)

    def enter_world(self, rank: Rank) -> None:
        """Make the next trainer find this rank's world."""
        from adapters.engines import accelerate

        accelerate.enter_world(rank)

    def settings_of_engine(self, job: Job) -> Settings:
        """The engine's own settings for a job."""
        return {}

    def describe(self) -> Description:
        """Describe the trainer."""
        return Description(
            depths=frozenset({Depth.STEP}),
            metrics=frozenset(self.trainings().names),
            options=frozenset({*self.options, *self.options_of_engine}),
            records_forward_passes=True,
            declared=self.declared(),
            places=places(self.candidates()),
            departures=(*departures.ALL, *self.departures, *self.departures_of_engine),
            **self.found(),
        )

    @abstractmethod
    def found(self) -> dict[str, Any]:
        """The trainer's modes and objectives, and what else its description has."""

    @abstractmethod
    def candidates(self) -> Candidates:
        """Functions of the trainer that a mistake may be in, by place."""

    @abstractmethod
    def declared(self) -> Mapping[str, Convention]:
        """What the trainer's modes leave open, by convention."""

    def iterations(self, job: Job) -> int:
        """How many times each generation is trained on."""
        return 1

    @abstractmethod
    def settings(self, job: Job, schedule: Schedule) -> Settings:
        """The settings of a job by the trainer's names; raises `Unsupported`."""

    @abstractmethod
    def trainings(self) -> type[Training]:
        """The class of the trainer's runs."""

    def train(self, job: Job, rollouts: Rollouts, capacity: int, chosen: Settings) -> Training:
        """One run of the trainer."""
        return self.trainings()(job, rollouts, capacity, chosen)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch in one run of the trainer."""
        from adapters.toolkit.probe import probe_capacity
        from adapters.trl.rollouts import Rollouts
        from adapters.trl.schedule import schedule_of

        if importing.needs_triton():
            raise Unsupported("this version's LM head requires Triton, which is not installed")
        batch = ProbedBatch.under(conventions_of(self.declared()), job.steps, job.objective)
        schedule = schedule_of(job, self.iterations(job))
        chosen = self.settings(job, schedule) | self.settings_of_engine(job)
        rollouts = Rollouts(batch, job, schedule, rank.index)
        self.enter_world(rank)
        with rank.framework(), refusals_of_configuration(job):
            training = self.train(job, rollouts, probe_capacity(batch.probe_size + 1), chosen)
        passes = training.passes.drain()
        return observation(batch, training.gradients, passes, training.reported)

    def leave_world(self) -> None:
        """Reset the state that Accelerate keeps of the world."""
        from adapters.engines import accelerate

        accelerate.leave_world()
