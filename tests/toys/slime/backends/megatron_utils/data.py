"""Micro-batches."""

from collections.abc import Iterator

from slime import lineage


def get_data_iterator(rollout_data: lineage.Data) -> list[Iterator[lineage.Data]]:
    return [lineage.batches(rollout_data, lineage.megatron_grid().cp)]
