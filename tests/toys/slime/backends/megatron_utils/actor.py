"""A training rank."""

from argparse import Namespace
from typing import Any

from slime import lineage
from slime.backends.megatron_utils.data import get_data_iterator
from slime.backends.megatron_utils.model import train
from slime.lineage import Timer, TrainProfiler, megatron_grid
from slime.utils import logging_utils
from slime.utils.accelerator import get_accelerator
from slime.utils.data import fetch

__all__ = ["MegatronTrainRayActor", "TrainProfiler"]


def compute_advantages_and_returns(args: Namespace, rollout_data: lineage.Data) -> None:
    grid = megatron_grid()
    lineage.estimate_advantages(args, rollout_data, grid.dp, grid.cp)


class MegatronTrainRayActor:
    args: Namespace
    role: str
    model: Any
    optimizer: Any
    opt_param_scheduler: Any
    weights_backuper: Any
    prof: TrainProfiler

    def _get_rollout_data(self, references: list[Any]) -> lineage.Data:
        assert get_accelerator() == "cuda"
        return lineage.to_device(fetch(references, megatron_grid().dp.rank))

    def train(
        self, rollout_id: int, rollout_data_ref: list[Any], external_data: Any = None
    ) -> None:
        data = self._get_rollout_data(rollout_data_ref)
        with Timer().interrupted("train_wait"):
            self._prepare(data)
            if self.role == "critic":
                self.args.loss_type = "value_loss"
            train(
                rollout_id,
                self.model,
                self.optimizer,
                self.opt_param_scheduler,
                get_data_iterator(data),
                data["num_microbatches"],
                data["global_batch_sizes"],
            )
            self.prof.step(rollout_id=rollout_id)
        self.weights_backuper.backup("actor")

    def _prepare(self, data: lineage.Data) -> None:
        self.weights_backuper.restore("actor")
        data["log_probs"] = lineage.old_log_probs(data, megatron_grid().cp)
        compute_advantages_and_returns(self.args, data)
        metrics = lineage.rollout_metrics(data)
        logging_utils.log(self.args, metrics, step_key="rollout/step")
