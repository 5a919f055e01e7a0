"""A training rank, whose steps are all of one size."""

from argparse import Namespace
from typing import Any

from slime import lineage
from slime.backends.megatron_utils.data import get_data_iterator
from slime.backends.megatron_utils.model import train
from slime.lineage import Timer, megatron_grid
from slime.utils.data import fetch


def compute_advantages_and_returns(args: Namespace, rollout_data: lineage.Data) -> None:
    grid = megatron_grid()
    lineage.estimate_advantages(args, rollout_data, grid.dp, grid.cp)


class MegatronTrainRayActor:
    args: Namespace
    model: Any
    optimizer: Any
    opt_param_scheduler: Any
    weights: dict[str, Any]
    update_gpu_params_dict: Any

    def _get_rollout_data(self, references: list[Any]) -> lineage.Data:
        return lineage.to_device(fetch(references, megatron_grid().dp.rank))

    def train(self, rollout_id: int, rollout_data_ref: list[Any]) -> None:
        data = self._get_rollout_data(rollout_data_ref)
        with Timer().interrupted("train_wait"):
            self.update_gpu_params_dict(self.weights["actor"])
            data["log_probs"] = lineage.old_log_probs(data, megatron_grid().cp)
            compute_advantages_and_returns(self.args, data)
            iterator, counts = get_data_iterator(self.args, self.model, data)
            train(
                rollout_id,
                self.model,
                self.optimizer,
                self.opt_param_scheduler,
                iterator,
                counts,
            )
