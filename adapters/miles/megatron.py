"""miles' Megatron engine, from its conversion of samples to what its optimizer sees."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from adapters.contract import Layout, grids
from adapters.contract.description import stubbed
from adapters.miles import conventions, logs, rollouts
from adapters.miles.importing import OBJECTS, import_miles
from adapters.slime_family import command_line, policy
from adapters.slime_family.adapter import MegatronAdapter
from adapters.toolkit import cuda_on_cpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from adapters.contract import Job, LogEntry, Rank
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.slime_family.description import Candidates
    from adapters.slime_family.rollouts import Slicer
    from reference.aggregation import Conventions

KERNELS = ("miles.backends.megatron_utils.kernels", "miles.utils.fp8_kernel")
"""Modules of miles' own that hold nothing but GPU kernels."""


class MilesMegatronAdapter(MegatronAdapter):
    """Drives radixark/miles on Megatron-Core."""

    name = "miles"
    package = "miles"
    tree = ("miles",)

    departures = (
        conventions.OBSERVED_ENTROPY,
        stubbed(
            "the phases of sglang's debug dumper: off, as they are by default",
            "its settings are read by a class of sglang's; it would only write files",
        ),
        stubbed(
            "get_data_parallel_group_gloo: the data-parallel group itself",
            "with gloo there is one kind of group, and with NCCL it adds up the same",
        ),
    )

    def padded_layouts(self) -> Sequence[Layout]:
        """Every grid, with micro-batches of a fixed number of samples."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="bshd")
            for dp, cp in grids(largest=8)
            for micro_batches in (1, 2)
        ]

    def load(self, source: Path | None) -> None:
        """Import miles and put the seam behind its log-probabilities."""
        import_miles(source, list(KERNELS))
        # sglang's debug dumper reads its settings by a class of its own; it stays off.
        self.module("utils.dumper_utils")._get_phase_override_configs = lambda *_: {"enable": False}
        self.module("backends.megatron_utils.actor").ray = OBJECTS

    def parser(self) -> Any:
        """miles' options on top of Megatron's."""
        parser = command_line.base_parser()
        self.module("utils.arguments").get_miles_extra_args_provider()(parser)
        return parser

    def validated(self, args: Any, layout: Layout) -> None:
        """miles' own validation, for training alone."""
        args.debug_train_only, args.world_size, args.rank = True, layout.world_size, 0
        args.actor_num_gpus_per_node = layout.world_size
        args.compress_ratios = None
        self.module("utils.arguments").miles_validate_args(args)

    def rollout_field(self) -> str | None:
        """Newer versions number rollouts."""
        return rollouts.rollout_field()

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """The same for every engine of miles."""
        told = command_line.train_parallel_config(job.layout)
        return rollouts.references(args, job, batch, train_parallel_config=told)

    def slicer(self, args: Any) -> Slicer:
        """The same for every engine of miles."""
        return rollouts.slicer(args)

    def declining_fetch(self, actors: ModuleType, actor: Any) -> None:
        """The same for every engine of miles."""
        rollouts.decline_in_fetch(actors)

    def loss_modules(self) -> tuple[Any, Any, Any]:
        """Where miles has them."""
        utils = "backends.training_utils"
        return (
            self.module(f"{utils}.loss_hub.logit_processors"),
            self.module(f"{utils}.cp_utils"),
            self.module(f"{utils}.loss_hub.losses"),
        )

    def conventions(self, parser: Any) -> Conventions:
        """The same for every engine of miles."""
        return conventions.conventions(parser)

    def candidates(self) -> Candidates:
        """The same for every engine of miles."""
        return conventions.candidates()

    def keepers(self) -> list[Any]:
        """The same for every engine of miles."""
        return conventions.keepers()

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """The same for every engine of miles, once it knows that it is alone."""
        with cuda_on_cpu.redirected():
            policy.join_grid(logs.ALONE.layout, rank.cache)
            self.join(self.arguments(logs.ALONE))
            return logs.aggregate(entries)

    def join(self, args: Any) -> None:
        """Tell miles of Megatron's process groups, as its actor does."""
        from megatron.core import mpu

        parallel = self.module("backends.megatron_utils.parallel")
        parallel.get_args = lambda: args
        mpu.get_data_parallel_group_gloo = mpu.get_data_parallel_group  # gloo already
        create = parallel.create_megatron_parallel_state
        groups = {}
        if "indep_dp" in inspect.signature(create).parameters:
            group_info = self.module("utils.ft_utils.process_group_utils").GroupInfo
            groups["indep_dp"] = group_info(0, 1, None)
        self.module("backends.training_utils.parallel").set_parallel_state(create(**groups))
