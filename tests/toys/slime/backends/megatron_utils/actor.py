"""A training rank."""

from typing import Any

from slime import lineage
from slime.utils.accelerator import get_accelerator
from slime.utils.data import fetch


class MegatronTrainRayActor:
    def _get_rollout_data(self, references: list[Any]) -> lineage.Data:
        assert get_accelerator() == "cuda"
        return lineage.to_device(fetch(references, lineage.megatron_grid().dp.rank))
