"""The rollout side, which is told how many shares to make."""

from argparse import Namespace
from typing import Any

import ray
from slime import lineage
from slime.utils.types import Sample


@ray.remote
class RolloutManager:
    args: Namespace

    def _convert_samples_to_train_data(self, samples: list[Sample]) -> lineage.Data:
        return lineage.convert(samples, [sample.index for sample in samples])

    def _split_train_data_by_dp(self, data: lineage.Data, dp_size: int) -> list[Any]:
        return [ray.put(share) for share in lineage.split(self.args, data, dp_size)]
