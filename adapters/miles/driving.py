"""Code that the adapters of miles' engines share: imports, rollout side, conventions and logs."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Assumed, Depth, Documented, Job, Layout, LogEntry, Objective
from adapters.miles.framework import CORRECTIONS, KEEPERS, LOG_PROBS, LOSSES, TRAIN_DATA
from adapters.slime_family import driving, importing, user_code
from adapters.slime_family.adapter import (
    OF_TRAINED_TOKENS,
    LineageAdapter,
    conventions,
    sample_unit,
)
from adapters.slime_family.driving import LOG, OBJECT_STORE
from adapters.slime_family.framework import TOGETHER
from adapters.slime_family.user_code import CpUtils
from adapters.toolkit.calls import call_supported
from adapters.toolkit.imports import found, import_from
from adapters.toolkit.settings import require_prompts_together
from reference.aggregation import Aggregation, Compared, Mode
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.description import Convention

module = partial(importing.home, "miles")


def engine(name: str) -> Any:
    """Import a module of the FSDP engine, which some versions keep in ``experimental``."""
    return module(f"backends.fsdp_utils.{name}", f"backends.experimental.fsdp_utils.{name}")


def import_miles(source: Path | None, *, megatron: bool) -> None:
    """Import the modules that all engines need, and add the probe to log-probabilities."""
    from adapters.slime_family.model import seam_around

    importing.install("miles", megatron=megatron)
    import_from("miles", [source] if source else [])
    importing.drop_server_options("miles")
    for holder in (module(TRAIN_DATA, "ray.rollout"), module("utils.data")):
        if hasattr(holder, "ray"):
            holder.ray = OBJECT_STORE
        if hasattr(holder, "object_store"):
            store = SimpleNamespace(put=lambda value, value_spec: value, get=_Fetched)
            holder.object_store.get_instance = lambda store=store: store
    LOG.listen(module("backends.training_utils.log_utils"))
    CpUtils.module = module("backends.training_utils.cp_utils")
    processors = module(*LOG_PROBS)
    processors.calculate_log_probs_and_entropy = seam_around(
        processors.calculate_log_probs_and_entropy
    )


class _Fetched(nullcontext[Any]):
    """An object returned from the object store: a context manager with a ``value``."""

    @property
    def value(self) -> Any:
        return self.enter_result


ALONE = Job(
    steps=(Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)]),),
    aggregation=Aggregation(Mode.SAMPLE_MEAN),
    layout=Layout(format="thd"),
    depth=Depth.STEP,
)
"""The job for which miles is configured if only log entries are aggregated."""


def share(state: Any) -> None:
    """Set miles' global parallel state; older versions pass the state to each function."""
    CpUtils.state = state
    setter = found("miles.backends.training_utils.parallel:set_parallel_state")
    if setter is not None:
        setter(state)


TESTS = "tests/fast/backends/training_utils"


class MilesAdapter(LineageAdapter):
    """Drives radixark/miles on any engine."""

    name = "miles"
    package = "miles"
    versions = "commits since 12 January 2026"
    tree = ("miles",)
    losses, corrections, keepers = LOSSES, CORRECTIONS, KEEPERS
    unit: ClassVar[Convention | None] = None
    """The unit that the engine counts as a sample, if the version's rollout side counts another
    one."""

    def rollout_field(self) -> str | None:
        """The field of a sample object that names its rollout; None without rollouts."""
        known = inspect.signature(module("utils.types").Sample).parameters
        return "rollout_id" if "rollout_id" in known else None

    def validated(self, args: Any, layout: Layout) -> None:
        """Run miles' own validation for training without rollouts."""
        args.debug_train_only, args.world_size, args.rank = True, layout.world_size, 0
        args.actor_num_gpus_per_node = layout.world_size
        args.compress_ratios = None
        module("utils.arguments").miles_validate_args(args)

    def missing(self) -> set[Objective]:
        """The objectives that miles does not support, although it has their options."""
        validation = inspect.getsource(module("utils.arguments").miles_validate_args)
        declared = "does not support reward-level KL" in validation
        return super().missing() | ({Objective.PENALISED_GAE} if declared else set())

    def declared(self) -> Mapping[str, Convention]:
        """miles' conventions; a rank has whole prompt groups if the rollout side says so."""
        of_version = sample_unit(self.rollout_field(), f"{TESTS}/test_rollout_mask_sums.py")
        partitions = self.found(f"{TRAIN_DATA}:_prompt_group_partitions")
        of_values = f"{TESTS}/test_ppo_gae_masks.py"
        has_test = (Path(module("utils.types").__file__).parents[2] / of_values).exists()
        return {
            **conventions(self.parser, of_version, self.unit),
            "whole_groups": Assumed(partitions is not None),
            "compared": Assumed(Compared.LONGEST_SAMPLES),
            **({"of_values": Documented(OF_TRAINED_TOKENS, of_values)} if has_test else {}),
        }

    def shares(self, args: Any, job: Job, batch: ProbedBatch, sizes: dict[str, int]) -> Any:
        """References to the ranks' data; given all parallel ``sizes``, miles also cuts the data."""
        # Newer versions compare rewards over rollouts, grouped by the prompt named in samples.
        if self.found(f"{TRAIN_DATA}:_normalize_rewards_by_rollout") is None:
            require_prompts_together(job, TOGETHER)
        conversion, sample = self.found(TRAIN_DATA), module("utils.types").Sample
        field = self.rollout_field()
        if conversion is None:  # versions before June 2026 have no such function
            manager = self.found(driving.MANAGER)
            return driving.references_of_manager(manager, args, job, batch, sample, field)
        convert = partial(
            call_supported,
            conversion.convert_samples_to_train_data,
            metadata={},
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=None,
        )
        data = convert(
            args,
            user_code.samples_to_convert(driving.samples(args, batch, sample, field), job),
            custom_convert_samples_to_train_data_func=user_code.conversion(job, convert),
        )
        return call_supported(
            conversion.split_train_data_by_dp,
            args,
            data,
            dp_size=sizes["dp_size"],
            train_parallel_config=sizes,
        )


def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """Aggregate entries with miles' own function."""
    make = module("backends.training_utils.log_utils").aggregate_train_losses
    knows_normalizers = "normalizers" in make.__code__.co_consts
    dictionaries = driving.as_dictionaries(entries, with_normalizers=knows_normalizers)
    log: Mapping[str, float] = call_supported(make, dictionaries, parallel_state=CpUtils.state)
    return log
