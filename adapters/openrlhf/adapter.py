"""The adapter of OpenRLHF, from a batch of rollouts to the gradient of DeepSpeed's optimizer.

Every rank runs the trainer itself; OpenRLHF's actors build their engines around
our model, which carries the probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.layout import Option
from adapters.contract.objective import Metric
from adapters.engines.shells import ON_FOUR, OnRayAndDeepSpeed, cuts, variants
from adapters.openrlhf import importing
from adapters.openrlhf.framework import LEVEL, OPENRLHF
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Layout, Observation, Rank
    from adapters.contract.framework import Framework

CUTS_OF_STAGES = (
    "dp1-cp1-mb2-thd",
    "dp2-cp1-mb2-bshd",
    "dp2-cp1-mbtokens-thd",
    "dp1-cp2-mb2-thd",
    "dp4-cp1-mb1-thd",
)
"""The layouts of the stages of ZeRO that are not the default."""


class OpenRLHFAdapter(OnRayAndDeepSpeed):
    """Drives OpenRLHF/OpenRLHF from 0.10.4 on."""

    name = "openrlhf"
    package = "openrlhf"
    versions = "OpenRLHF since 0.10.4"
    distribution = "openrlhf"
    tree = ("openrlhf",)
    recipes = "adapters.openrlhf.recipe:read"
    framework: ClassVar[Framework] = OPENRLHF

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, ring attention of 2, padded (bshd) or packed (thd).

        Micro-batches by tokens and ring attention are of packed rows alone, by OpenRLHF's command
        line. The default stage of ZeRO, 2, has all of them.
        """
        plain = [
            layout
            for layout in cuts(ON_FOUR, "bshd", "thd")
            if layout.format == "thd" or (layout.cp == 1 and layout.micro_batches != "tokens")
        ]
        overlapping = ("dp2-cp1-mb2-thd", "dp2-cp1-mbtokens-thd")
        return [
            *plain,
            *variants(CUTS_OF_STAGES),
            *variants(overlapping, [Option.OVERLAP_GRAD_REDUCE]),
            *variants(overlapping[:1], [Option.SHORT_BATCH, Option.TWO_EPOCHS]),
        ]

    def load(self, source: Path | None) -> None:
        """Import OpenRLHF, DeepSpeed and the trainer."""
        importing.import_openrlhf(source)
        from adapters.openrlhf import model

        model.put_the_seams_in()

    def describe(self) -> Description:
        """Describe OpenRLHF; before 0.11.2 it did not log what corrections drop."""
        logged = {*OPENRLHF.metrics} - (set() if importing.knows(LEVEL) else {Metric.REJECTED})
        return OPENRLHF.description(
            importing.offers,
            importing.option_names(),
            importing.default,
            metrics=frozenset(logged),
            stubs=tuple(importing.STUBBED),
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
