"""The rollout side."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import ray
from slime import lineage
from slime.utils.types import Sample


@ray.remote
class RolloutManager:
    args: Namespace
    train_parallel_config: dict[str, int]
    custom_convert_samples_to_train_data_func: Callable[..., lineage.Data] | None

    def _convert_samples_to_train_data(self, samples: list[Sample]) -> lineage.Data:
        if self.custom_convert_samples_to_train_data_func is not None:
            return self.custom_convert_samples_to_train_data_func(self.args, samples)
        return lineage.convert(samples, [sample.rollout_id for sample in samples])

    def _split_train_data_by_dp(self, data: lineage.Data) -> list[Any]:
        dp_size = self.train_parallel_config["dp_size"]
        return [ray.put(share) for share in lineage.split(self.args, data, dp_size)]
