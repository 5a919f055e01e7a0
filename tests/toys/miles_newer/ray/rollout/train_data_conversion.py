"""From samples to the shares of data-parallel ranks."""

from argparse import Namespace
from typing import Any

from miles import lineage
from miles.utils import object_store
from miles.utils.object_store import ValueSpec
from miles.utils.types import Sample


def convert_samples_to_train_data(
    args: Namespace, samples: list[Sample], metadata: dict[str, Any]
) -> lineage.Data:
    return lineage.convert(samples, [sample.rollout_id for sample in samples])


def split_train_data_by_dp(
    args: Namespace, data: lineage.Data, train_parallel_config: dict[str, int]
) -> list[Any]:
    store = object_store.get_instance()
    shares = lineage.split(args, data, train_parallel_config["dp_size"])
    return [store.put(share, value_spec=ValueSpec.ROLLOUT_DATA) for share in shares]
