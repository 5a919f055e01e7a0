"""The data that a training rank takes from the object store."""

from typing import Any

import ray
from slime.lineage import Data


def fetch(references: list[Any], dp_rank: int) -> Data:
    data: Data = ray.get(references[dp_rank])
    return data
