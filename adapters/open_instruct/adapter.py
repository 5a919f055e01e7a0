"""The adapter of open-instruct, from rollouts to the gradient of DeepSpeed's optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.layout import Layout, Option
from adapters.engines.shells import by_size, cuts
from adapters.open_instruct import importing
from adapters.open_instruct.framework import OPEN_INSTRUCT, STAGES
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Observation
    from adapters.contract.framework import Framework

RANKS = ((1, 1), (2, 1), (4, 1))
SHARED = ((1, 2), (2, 2))
"""(dp, cp) of data parallelism, and of Ulysses, which open-instruct has in ZeRO 3 alone."""

OF_STAGES = ("dp1-cp1-mb2-thd", "dp2-cp1-mb2-thd", "dp2-cp1-mb2-bshd", "dp4-cp1-mb1-bshd")
"""The layouts of stages of ZeRO other than the default."""


class OpenInstructAdapter(Adapter):
    """Drives allenai/open-instruct: `grpo_fast`."""

    name = "open_instruct"
    engine = "deepspeed"
    package = "open_instruct"
    versions = "open-instruct of August 2026"
    tree = ("open_instruct",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("deepspeed", "ray", "transformers")
    framework: ClassVar[Framework] = OPEN_INSTRUCT
    mode_names = OPEN_INSTRUCT.mode_names

    def layouts(self) -> list[Layout]:
        """Packed rows one by one (thd) or several in a micro-batch (bshd), on up to 4 ranks."""
        plain = cuts(RANKS, "thd", micro_batches=(2, "tokens"))
        rows = cuts(RANKS, "bshd", micro_batches=(1, 2))
        shared = cuts(SHARED, "thd", micro_batches=(2,))
        staged = [Layout.parse(f"{cut}+{stage}") for stage in STAGES for cut in OF_STAGES]
        with_two = Layout(dp=2, micro_batches=2, format="thd")
        optional = [
            Layout(dp=one.dp, micro_batches=2, format="thd", options=(option,))
            for one in (Layout(), with_two)
            for option in (Option.SHARED_GENERATION, Option.TWO_EPOCHS)
        ]
        return by_size([*plain, *rows, *shared, *staged, *optional])

    def load(self, source: Path | None) -> None:
        """Import open-instruct, DeepSpeed and the trainer."""
        importing.import_open_instruct(source)

    def describe(self) -> Description:
        """Describe the trainer by the fields of its configurations."""
        return OPEN_INSTRUCT.description(
            importing.offers,
            importing.option_names(),
            importing.default,
            stubs=tuple(importing.STUBBED),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch."""
        from adapters.open_instruct.driving import Training

        set_what_ray_sets(rank)
        batch = ProbedBatch.of(job, conventions_of(OPEN_INSTRUCT.conventions))
        settings = self.framework.settings(job)
        with rank.framework(), refusals_of_configuration(job):
            done = Training(job, batch, settings, rank)
        reported = OPEN_INSTRUCT.reported(done.logs)
        return observation(batch, done.gradients, done.passes, reported)

    def leave_world(self) -> None:
        """Forget DeepSpeed's process groups."""
        from adapters.engines import deepspeed

        deepspeed.leave_world()
