"""A batch as miles' rollout side hands it to a training rank, the same for every engine."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from adapters.megatron import options, startup
from adapters.megatron.adapter import call_offering
from adapters.megatron.rollouts import add_columns, sample_fields
from adapters.miles.importing import module

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.probe import ProbedBatch


def rollout_field() -> str | None:
    """What of a sample tells its rollout, in versions that know rollouts."""
    known = inspect.signature(module("utils.types").Sample).parameters
    return "rollout_id" if "rollout_id" in known else None


def rollout_data(args: Any, job: Job, batch: ProbedBatch) -> dict[str, Any]:
    """What a rank of Megatron's trains on."""
    return share(args, job, batch, train_parallel_config=options.train_parallel_config(job.layout))


def share(
    args: Any, job: Job, batch: ProbedBatch, *, train_parallel_config: dict[str, int]
) -> dict[str, Any]:
    """What this rank trains on, converted and split by miles, with the probe's advantages.

    ``train_parallel_config`` is what the engine tells the rollout side of its layout: where that is
    enough, the rollout side deals out micro-batches too.
    """
    conversion = module("ray.rollout.train_data_conversion")

    def convert(args: Any, samples: Any, custom: Any = None) -> Any:
        return call_offering(
            conversion.convert_samples_to_train_data,
            args,
            samples,
            metadata={},
            custom_convert_samples_to_train_data_func=custom,
            custom_reward_post_process_func=None,
        )

    data = convert(args, startup.sent(_samples(batch), job), startup.conversion(job, convert))
    references = call_offering(
        conversion.split_train_data_by_dp,
        args,
        data,
        dp_size=train_parallel_config["dp_size"],
        train_parallel_config=train_parallel_config,
    )
    mine = module("backends.training_utils.data").get_rollout_data(args, references)
    if isinstance(mine, tuple):  # newer versions also hand out what the share was fetched with
        mine = mine[0]
    slice_with_cp = module("backends.training_utils.cp_utils").slice_log_prob_with_cp
    add_columns(
        mine,
        batch,
        lambda values, total, response, width: slice_with_cp(
            values, total, response, args.qkv_format, width
        ),
    )
    return mine


def _samples(batch: ProbedBatch) -> list[Any]:
    """The batch as miles' sample objects."""
    sample_class = module("utils.types").Sample
    field = rollout_field()
    return [
        sample_class(
            index=index,
            status=sample_class.Status.COMPLETED,
            **({field: rollout} if field else {}),
            **common,
        )
        for index, (rollout, common) in enumerate(sample_fields(batch))
    ]
