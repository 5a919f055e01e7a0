"""The adapter of miles' Megatron engine."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapters.contract import Description, Job, Layout, LogEntry, Rank, grids
from adapters.contract.description import parse_departures
from adapters.engines.shells import cuts
from adapters.miles import description, rollouts
from adapters.miles.importing import import_miles
from adapters.slime_family import command_line, framework
from adapters.slime_family.adapter import MegatronAdapter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from adapters.contract.probed_batch import ProbedBatch


class MilesMegatronAdapter(MegatronAdapter):
    """Drives radixark/miles on Megatron-Core."""

    name = "miles"
    package = "miles"
    versions = "miles since 0.1.0"
    tree = ("miles",)

    rollout_field = staticmethod(rollouts.rollout_field)
    slicer = staticmethod(rollouts.slicer)
    candidates = staticmethod(description.candidates)
    keepers = staticmethod(description.keepers)
    declared = staticmethod(description.declared)

    departures = (
        *description.OBSERVED_ENTROPY,
        *parse_departures(
            """
            stubbed: the phases of sglang's debug dumper: off, as by default
                a class of sglang's reads its settings; it would only write files
            stubbed: get_data_parallel_group_gloo: the data-parallel group itself
                with gloo both groups are the same, and with NCCL the sums are
            """
        ),
    )

    padded_layouts = tuple(cuts(grids(largest=8), "bshd", micro_batches=(1, 2)))

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, megatron=True)
        # sglang's debug dumper, which is off, reads its settings with one of sglang's classes.
        self.module("utils.dumper_utils")._get_phase_override_configs = lambda *_: {"enable": False}
        actors = self.module("backends.megatron_utils.actor")
        actors.ray = framework.OBJECT_STORE
        # Older versions exchange a critic's values here, between processes; they are given.
        actors.sync_actor_critic_data = lambda *_: None

    def validated(self, args: Any, layout: Layout) -> None:
        """Run miles' own validation for training without rollouts."""
        args.debug_train_only, args.world_size, args.rank = True, layout.world_size, 0
        args.actor_num_gpus_per_node = layout.world_size
        args.compress_ratios = None
        self.module("utils.arguments").miles_validate_args(args)

    def describe(self) -> Description:
        """Leave out what miles declares unsupported."""
        found = super().describe()
        return replace(found, objectives=found.objectives - description.unsupported_objectives())

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References made by miles' rollout side."""
        told = command_line.train_parallel_config(job.layout)
        return rollouts.references(args, job, batch, train_parallel_config=told)

    def declining_fetch(self, actors: ModuleType, actor: Any) -> None:
        """Wrap the function that all actors call."""
        rollouts.decline_in_fetch(actors)

    def loss_modules(self) -> tuple[Any, Any, Any]:
        """The modules in miles."""
        paths = "loss_hub.logit_processors", "cp_utils", "loss_hub.losses"
        processors, cp, losses = (self.module(f"backends.training_utils.{path}") for path in paths)
        return processors, cp, losses

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        from adapters.engines import megatron_core
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            megatron_core.join_grid(description.ALONE.layout, rank)
            self.join(self.arguments(description.ALONE))
            return description.aggregate(entries)

    def join(self, args: Any) -> None:
        """Initialise miles' state from Megatron's process groups, as its actor does."""
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
