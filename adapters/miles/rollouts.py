"""A batch as miles' rollout side sends it to a training rank, for every engine."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from adapters.miles.importing import module
from adapters.slime_family import user_code
from adapters.slime_family.rollouts import samples
from adapters.toolkit.calls import call_supported, refusals

if TYPE_CHECKING:
    from types import ModuleType

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.slime_family.rollouts import Slicer


def rollout_field() -> str | None:
    """The field of a sample object that names its rollout; None in versions without rollouts."""
    known = inspect.signature(module("utils.types").Sample).parameters
    return "rollout_id" if "rollout_id" in known else None


def references(
    args: Any, job: Job, batch: ProbedBatch, *, train_parallel_config: dict[str, int]
) -> Any:
    """References to the ranks' data; given all sizes, miles also makes micro-batches."""
    conversion = module("ray.rollout.train_data_conversion")

    convert = partial(
        call_supported,
        conversion.convert_samples_to_train_data,
        metadata={},
        custom_convert_samples_to_train_data_func=None,
        custom_reward_post_process_func=None,
    )
    sent = samples(batch, module("utils.types").Sample, rollout_field())
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


def slicer(args: Any) -> Slicer:
    """miles' function that slices the values of a response."""
    slice_with_cp = module("backends.training_utils.cp_utils").slice_log_prob_with_cp
    return lambda values, total, response, width: slice_with_cp(
        values, total, response, args.qkv_format, width
    )


def decline_in_fetch(actors: ModuleType) -> None:
    """Let the actors of a module decline a job when they fetch their share of the data."""
    fetch = module("backends.training_utils.data").get_rollout_data
    actors.get_rollout_data = refusals()(fetch)  # type: ignore[attr-defined]
