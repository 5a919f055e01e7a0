"""What miles' engines share: its imports, its rollout side, its conventions and its logs."""

from __future__ import annotations

import importlib.util
import inspect
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import Assumed, Depth, Job, Layout, LogEntry
from adapters.contract.objective import Objective
from adapters.miles.framework import LOSSES, TRAIN_DATA
from adapters.slime_family import driving, importing, user_code
from adapters.slime_family.adapter import conventions, sample_unit, without_critic
from adapters.slime_family.driving import LOG, OBJECT_STORE
from adapters.slime_family.framework import TOGETHER
from adapters.slime_family.user_code import CpUtils
from adapters.toolkit.calls import call_supported, refusals
from adapters.toolkit.imports import found, import_from, modules_of
from adapters.toolkit.settings import require_prompts_together
from reference.aggregation import Aggregation, Compared, Mode
from reference.step import Sample, Step

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.description import Convention

module = modules_of("miles")


def engine(name: str) -> Any:
    """Import a module of the FSDP engine, which some versions keep in ``experimental``."""
    stable = importlib.util.find_spec("miles.backends.fsdp_utils")
    place = "backends" if stable else "backends.experimental"
    return module(f"{place}.fsdp_utils.{name}")


def decline_in_fetch(actors: ModuleType) -> None:
    """Let the actors of a module decline a job when they fetch their share of the data."""
    actors.get_rollout_data = refusals()(actors.get_rollout_data)  # type: ignore[attr-defined]


def import_miles(source: Path | None, *, megatron: bool) -> None:
    """Import what all engines need and add the probe to log-probabilities."""
    from adapters.slime_family.model import seam_around

    importing.install("miles", megatron=megatron)
    import_from("miles", [source] if source else [])
    importing.drop_server_options("miles")
    for name in ("ray.rollout.train_data_conversion", "utils.data"):
        holder = module(name)
        if hasattr(holder, "ray"):
            holder.ray = OBJECT_STORE
        if hasattr(holder, "object_store"):
            store = SimpleNamespace(put=lambda value, value_spec: value, get=_Fetched)
            holder.object_store.get_instance = lambda store=store: store
    LOG.listen(module("backends.training_utils.log_utils"))
    CpUtils.module = module("backends.training_utils.cp_utils")
    processors = module("backends.training_utils.loss_hub.logit_processors")
    processors.calculate_log_probs_and_entropy = seam_around(
        processors.calculate_log_probs_and_entropy
    )


class _Fetched(nullcontext[Any]):
    """An object as the object store returns it: it has a ``value`` and is a context manager."""

    @property
    def value(self) -> Any:
        return self.enter_result


ALONE = Job(
    steps=(Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)]),),
    aggregation=Aggregation(Mode.SAMPLE_MEAN),
    layout=Layout(format="thd"),
    depth=Depth.STEP,
)
"""The job that miles is configured for to aggregate log entries."""


def rollout_field() -> str | None:
    """The field of a sample object that names its rollout; None in versions without rollouts."""
    known = inspect.signature(module("utils.types").Sample).parameters
    return "rollout_id" if "rollout_id" in known else None


def references(
    args: Any, job: Job, batch: ProbedBatch, *, train_parallel_config: dict[str, int]
) -> Any:
    """References to the ranks' data; given all sizes, miles also makes micro-batches."""
    conversion = module(TRAIN_DATA)
    if not _compares_rollouts():
        require_prompts_together(job, TOGETHER)

    convert = partial(
        call_supported,
        conversion.convert_samples_to_train_data,
        metadata={},
        custom_convert_samples_to_train_data_func=None,
        custom_reward_post_process_func=None,
    )
    sent = driving.samples(batch, module("utils.types").Sample, rollout_field())
    data = convert(
        args,
        user_code.samples_to_convert(sent, job),
        custom_convert_samples_to_train_data_func=user_code.conversion(job, convert),
    )
    return call_supported(
        conversion.split_train_data_by_dp,
        args,
        data,
        dp_size=train_parallel_config["dp_size"],
        train_parallel_config=train_parallel_config,
    )


def declared(
    parser: argparse.ArgumentParser, unit: Convention | None = None
) -> dict[str, Convention]:
    """miles' conventions; groups are whole on a rank if the rollout side deals them.

    The version decides the sample unit, unless the engine counts something else.
    """
    estimators = found("miles.backends.training_utils.loss_hub.math_utils")
    tested = "tests/fast/backends/training_utils/test_rollout_mask_sums.py"
    partitions = found(f"miles.{TRAIN_DATA}:_prompt_group_partitions")
    compared = Compared.LONGEST_SAMPLES if _compares_rollouts() else Compared.SAMPLES
    return {
        **conventions(parser, estimators, sample_unit(rollout_field(), tested), unit),
        "whole_groups": Assumed(partitions is not None),
        "compared": Assumed(compared),
    }


def _compares_rollouts() -> bool:
    """Whether rewards are compared over rollouts, by the prompt that samples name."""
    return found(f"miles.{TRAIN_DATA}:_normalize_rewards_by_rollout") is not None


def missing() -> set[Objective]:
    """The objectives that miles does not have, although their options exist."""
    validation = inspect.getsource(module("utils.arguments").miles_validate_args)
    declared = "does not support reward-level KL" in validation
    return without_critic(module(LOSSES)) | ({Objective.PENALISED_GAE} if declared else set())


def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """Aggregate entries with miles' own function."""
    make = module("backends.training_utils.log_utils").aggregate_train_losses
    knows_normalizers = "normalizers" in make.__code__.co_consts
    return make(driving.as_dictionaries(entries, with_normalizers=knows_normalizers))
