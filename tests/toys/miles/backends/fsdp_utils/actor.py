"""A training rank with FSDP2."""

from argparse import Namespace
from typing import Any

import torch
from miles import lineage
from miles.backends.training_utils.data import get_data_iterator, get_rollout_data
from miles.backends.training_utils.log_utils import log_rollout_data, log_train_step
from miles.backends.training_utils.loss import unscaled_loss
from miles.backends.training_utils.parallel import get_parallel_state
from miles.lineage import Timer
from miles.utils.profile_utils import TrainProfiler
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp

__all__ = ["FSDPTrainRayActor", "TrainProfiler"]


def apply_fsdp2(model: Any, mesh: Any = None, args: Namespace | None = None) -> nn.Module:
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            fsdp.fully_shard(module, mesh=mesh, mp_policy=policy)
    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def compute_advantages_and_returns(args: Namespace, rollout_data: lineage.Data) -> None:
    grid = get_parallel_state()
    lineage.estimate_advantages(args, rollout_data, grid.dp, grid.cp)


class FSDPTrainRayActor:
    args: Namespace
    model: Any
    optimizer: torch.optim.Optimizer
    lr_scheduler: Any

    def train(
        self, rollout_id: int, rollout_data_ref: list[Any], witness_info: Any, attempt: int
    ) -> None:
        data = get_rollout_data(self.args, rollout_data_ref)
        with Timer().interrupted("train_wait"):
            self._train_core(rollout_id=rollout_id, rollout_data=data)

    def _train_core(self, rollout_id: int, rollout_data: lineage.Data) -> None:
        rollout_data["log_probs"] = lineage.old_log_probs(rollout_data, get_parallel_state().cp)
        compute_advantages_and_returns(self.args, rollout_data)
        log_rollout_data(rollout_id, self.args, rollout_data)
        [batches], counts = get_data_iterator(self.args, self.model, rollout_data)
        for count in counts:
            self._train_step([next(batches) for _ in range(count)])

    def _train_step(self, batches: list[lineage.Data]) -> None:
        dp, count = get_parallel_state().dp, self._count(batches)
        self.optimizer.zero_grad()
        logs = []
        for batch in batches:
            logits = self.model(input_ids=batch["input_ids"]).logits
            loss, logged = unscaled_loss(self.args, batch, logits)
            (loss * dp.size / count).backward()  # FSDP averages over the ranks: undone
            share = count / dp.size / len(batches)
            samples = self.args.global_batch_size / dp.size / len(batches)
            logs.append(lineage.counted(self.args, logged, share, samples))
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_grad)
        self.optimizer.step()
        self.lr_scheduler.step()
        metrics = lineage.reported(logs, dp.group)
        if dist.get_rank() == 0:
            log_train_step(self.args, metrics)

    def _count(self, batches: list[lineage.Data]) -> Any:
        """What the sum over all ranks is divided by: all tokens or samples."""
        if not self.args.calculate_per_token_loss:
            return self.args.global_batch_size
        tokens = torch.cat([mask for batch in batches for mask in batch["loss_masks"]]).sum()
        dist.all_reduce(tokens, group=get_parallel_state().dp.group)
        return tokens.clamp(min=1)
