"""A rank's share and its micro-batches."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from miles import lineage
from miles.backends.training_utils.parallel import get_parallel_state
from miles.utils.data import process_rollout_data


def get_rollout_data(args: Namespace, rollout_data_ref: list[Any]) -> lineage.Data:
    return lineage.to_device(process_rollout_data(rollout_data_ref, get_parallel_state().dp.rank))


def get_batch(data_iterator: Iterator[lineage.Data]) -> lineage.Data:
    return next(data_iterator)


def get_data_iterator(
    args: Namespace, model: Sequence[Any], rollout_data: lineage.Data
) -> tuple[list[Iterator[lineage.Data]], list[int]]:
    batches = lineage.batches(rollout_data, get_parallel_state().cp)
    return [batches], rollout_data["num_microbatches"]
