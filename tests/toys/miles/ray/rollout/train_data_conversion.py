"""From samples to the shares of data-parallel ranks."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import ray
from miles import lineage
from miles.utils.types import Sample


def convert_samples_to_train_data(
    args: Namespace,
    samples: list[Sample],
    metadata: dict[str, Any],
    custom_convert_samples_to_train_data_func: Callable[..., Any] | None,
    custom_reward_post_process_func: Callable[..., Any] | None,
) -> lineage.Data:
    if custom_convert_samples_to_train_data_func is not None:
        custom: lineage.Data = custom_convert_samples_to_train_data_func(args, samples)
        return custom
    data = lineage.convert(samples, [sample.index for sample in samples])
    if args.qkv_format == "bshd":
        data["max_seq_lens"] = [max(data["total_lengths"])] * len(samples)
    return data


def split_train_data_by_dp(args: Namespace, data: lineage.Data, dp_size: int) -> list[Any]:
    return [ray.put(share) for share in lineage.split(args, data, dp_size)]
