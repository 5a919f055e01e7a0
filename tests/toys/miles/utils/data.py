"""What a training rank takes from the object store."""

from typing import Any

import ray
from miles.lineage import Data


def process_rollout_data(references: list[Any], dp_rank: int) -> Data:
    data: Data = ray.get(references[dp_rank])
    return data
