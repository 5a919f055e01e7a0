"""The adapter of miles' Megatron engine."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from adapters.contract import Job, Layout, LogEntry, Rank, grids
from adapters.engines.shells import cuts
from adapters.miles import driving
from adapters.miles.framework import KEEPERS, LOSSES, MEGATRON, PLACES
from adapters.miles.importing import decline_in_fetch, import_miles
from adapters.slime_family.driving import OBJECT_STORE, train_parallel_config
from adapters.slime_family.megatron import MegatronAdapter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract.description import Convention
    from adapters.contract.probed_batch import ProbedBatch


class MilesMegatronAdapter(MegatronAdapter):
    """Drives radixark/miles on Megatron-Core."""

    name = "miles"
    package = "miles"
    versions = "miles since 0.1.0"
    tree = ("miles",)

    framework = MEGATRON
    log_probs = "backends.training_utils.loss_hub.logit_processors"
    losses, places, keepers = LOSSES, PLACES, KEEPERS
    rollout_field = staticmethod(driving.rollout_field)
    missing = staticmethod(driving.missing)
    padded_layouts = tuple(cuts(grids(largest=8), "bshd", micro_batches=(1, 2)))

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, megatron=True)
        # sglang's debug dumper, which is off, reads its settings with one of sglang's classes.
        self.module("utils.dumper_utils")._get_phase_override_configs = lambda *_: {"enable": False}
        actors = self.module("backends.megatron_utils.actor")
        actors.ray = OBJECT_STORE
        decline_in_fetch(actors)
        # Older versions exchange a critic's values here, between processes; they are given.
        actors.sync_actor_critic_data = lambda *_: None

    def validated(self, args: Any, layout: Layout) -> None:
        """Run miles' own validation for training without rollouts."""
        args.debug_train_only, args.world_size, args.rank = True, layout.world_size, 0
        args.actor_num_gpus_per_node = layout.world_size
        args.compress_ratios = None
        self.module("utils.arguments").miles_validate_args(args)

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References made by miles' rollout side."""
        told = train_parallel_config(job.layout)
        return driving.references(args, job, batch, train_parallel_config=told)

    def declared(self) -> Mapping[str, Convention]:
        """miles' conventions."""
        return driving.declared(self.parser)

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        from adapters.engines import megatron_core
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            megatron_core.join_grid(driving.ALONE.layout, rank)
            self.join(self.arguments(driving.ALONE))
            return driving.aggregate(entries)

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
