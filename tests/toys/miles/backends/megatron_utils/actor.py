"""A training rank on Megatron-Core."""

from argparse import Namespace
from typing import Any

from miles import lineage
from miles.backends.megatron_utils.model import train
from miles.backends.training_utils.data import get_data_iterator, get_rollout_data
from miles.backends.training_utils.log_utils import log_rollout_data
from miles.backends.training_utils.parallel import get_parallel_state
from miles.lineage import Timer, TrainProfiler

__all__ = ["MegatronTrainRayActor", "TrainProfiler"]


def compute_advantages_and_returns(args: Namespace, rollout_data: lineage.Data) -> None:
    grid = get_parallel_state()
    lineage.estimate_advantages(args, rollout_data, grid.dp, grid.cp)


class MegatronTrainRayActor:
    args: Namespace
    role: str
    model: Any
    optimizer: Any
    opt_param_scheduler: Any
    prof: TrainProfiler
    weight_updater: Any

    def train(
        self, rollout_id: int, rollout_data_ref: list[Any], witness_info: Any, attempt: int
    ) -> None:
        data = get_rollout_data(self.args, rollout_data_ref)
        with Timer().interrupted("train_wait"):
            data["log_probs"] = lineage.old_log_probs(data, get_parallel_state().cp)
            compute_advantages_and_returns(self.args, data)
            log_rollout_data(rollout_id, self.args, data)
            self._train(rollout_id, data, witness_info, attempt)
            self.prof.step(rollout_id=rollout_id)
        assert self.weight_updater.pop_metrics() == {}

    def _train(self, rollout_id: int, data: lineage.Data, witness_info: Any, attempt: int) -> None:
        if self.role == "critic":
            self.args.loss_type = "value_loss"
        iterator, counts = get_data_iterator(self.args, self.model, data)
        train(
            rollout_id,
            self.model,
            self.optimizer,
            self.opt_param_scheduler,
            iterator,
            counts,
            witness_info=witness_info,
            attempt=attempt,
        )
