"""The adapter of OpenRLHF, from a batch of rollouts to the gradient of DeepSpeed's optimizer.

Every rank runs the trainer itself; OpenRLHF's actors build their engines around
our model, which carries the probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract import Description, Framework, Job, Metric, Observation, Option, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.engines.shells import OnRayAndDeepSpeed
from adapters.openrlhf import importing
from adapters.openrlhf.framework import LEVEL, OPENRLHF
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path


class OpenRLHFAdapter(OnRayAndDeepSpeed):
    """Drives OpenRLHF/OpenRLHF from 0.10.4 on."""

    name = "openrlhf"
    package = "openrlhf"
    versions = "OpenRLHF since 0.10.4"
    distribution = "openrlhf"
    tree = ("openrlhf",)
    recipes = "adapters.openrlhf.recipe:read"
    framework: ClassVar[Framework] = OPENRLHF

    def load(self, source: Path | None) -> None:
        """Import OpenRLHF, DeepSpeed and the trainer."""
        importing.import_openrlhf(source)
        from adapters.openrlhf import model

        model.put_the_seams_in()

    def describe(self) -> Description:
        """Describe OpenRLHF; before 0.11.2 it did not log the tokens dropped by corrections."""
        logged = {*OPENRLHF.metrics} - (set() if importing.knows(LEVEL) else {Metric.REJECTED})
        return OPENRLHF.description(
            importing.offers, importing.option_names(), importing.default, metrics=frozenset(logged)
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the train batches of one trainer's step."""
        from adapters.openrlhf.driving import Session

        set_what_ray_sets(rank)
        batch = ProbedBatch.of(job)
        with rank.framework(), refusals_of_configuration(job):
            session = Session(batch, job, rank)
            if Option.SHORT_BATCH in job.layout.options:
                session.train_short_batch()
            of_rollouts = session.train(range(len(batch.responses)))
            gradients, passes = session.last_epoch()
            reported = session.reported(of_rollouts)
        return observation(batch, gradients, passes, reported)
