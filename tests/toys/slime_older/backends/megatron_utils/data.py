"""Micro-batches, counted here."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from slime import lineage


def get_data_iterator(
    args: Namespace, model: Sequence[Any], rollout_data: lineage.Data
) -> tuple[list[Iterator[lineage.Data]], list[int]]:
    batches = lineage.batches(rollout_data, lineage.megatron_grid().cp)
    return [batches], rollout_data["num_microbatches"]
