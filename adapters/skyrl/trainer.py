"""SkyRL's trainer on one rank, as each of them plays it for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.probe import PADDING_ID, ProbedBatch
from adapters.skyrl.configuration import refusals
from adapters.skyrl.importing import module, ppo_utils

if TYPE_CHECKING:
    from numpy.typing import NDArray

PADDING_MICRO_BATCH_IDS = 100
"""SkyRL fills the micro-batches that only pad with random token ids below this."""


class Dispatch:
    """Calls this rank's worker where SkyRL's `WorkerDispatch` sends to the actors of all ranks."""

    def __init__(self, worker: Any, dp_size: int) -> None:
        self._worker = worker
        self._dp_size = dp_size
        self.policy_losses: list[float] = []
        """That the worker reported of each mini-batch, and the trainer takes from it."""

    def get_lcm_dp_size(self) -> int:
        """Of the only model there is."""
        return self._dp_size

    def stage_data(self, *staged: Any) -> Any:
        """The chunks of every data-parallel rank, for each mini-batch, as SkyRL cuts them.

        Older versions stage the data alone, whole.
        """
        if len(staged) == 1:
            return staged[0]
        _, data, boundaries = staged
        return _mesh_dispatch().stage_chunks(self._dp_size, data, boundaries)

    def forward_backward_from_staged(self, model: str, *staged: Any) -> Any:
        """Of this rank's share, which SkyRL's dispatch picks from what was staged."""
        method = "forward_backward" if len(staged) == 1 else "forward_backward_from_staged"
        actor = SimpleNamespace(rank=self._worker.mesh_rank, handle=_Handle(self._worker))
        [status] = _mesh_dispatch().dispatch_from_staged([actor], method, *staged)
        metrics = getattr(status, "metrics", status)  # older versions return nothing else
        self.policy_losses.append(metrics["policy_loss"])
        return status

    def optim_step(self, model: str) -> Any:
        """The worker's."""
        return self._worker.optim_step()

    def empty_cache(self) -> None:
        """The CPU caches nothing."""


class _Handle:
    """Stands where SkyRL has the handle of a Ray actor, and calls its method here."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._worker, name))


def _mesh_dispatch() -> Any:
    return module("backends.skyrl_train.distributed.dispatch").MeshDispatch


def probe_capacity(probe_size: int) -> int:
    """Entries of a probe that many batches can share, with one for any id in padding."""
    return 1 << max(probe_size + 1, PADDING_MICRO_BATCH_IDS + 1).bit_length()


def train(config: Any, worker: Any, batch: ProbedBatch, dp_size: int) -> tuple[float, ...]:
    """Train on a batch of rollouts, mini-batch after mini-batch; the policy loss of each."""
    dispatch = Dispatch(worker, dp_size)
    trainer = _trainer(config, dispatch)
    trainer.train_critic_and_policy(_training_input(trainer, batch))
    return tuple(dispatch.policy_losses)


def reduce(config: Any, batch: ProbedBatch, dp_size: int) -> NDArray[np.float32]:
    """The probe's gradient of the reduced token losses, which are -advantage · probe.

    SkyRL scales the advantages and then sums.
    """
    trainer = _trainer(config, Dispatch(None, dp_size))
    data = _training_input(trainer, batch)
    boundaries = [data.metadata["policy_mini_batch_boundaries"]]
    if "policy_prompt_boundaries" in data.metadata:
        boundaries.append(data.metadata["policy_prompt_boundaries"])
    advantages = trainer._normalize_advantages(data, *boundaries)["advantages"]
    probe = torch.zeros_like(advantages, requires_grad=True)
    ppo_utils().reduce_loss(-advantages * probe, data["loss_mask"]).backward()
    assert probe.grad is not None
    gradient = np.zeros(batch.probe_size, np.float32)
    for row, ids in zip(probe.grad.numpy(), batch.responses, strict=False):
        gradient[ids] = row[len(row) - len(ids) :]
    return gradient


def _trainer(config: Any, dispatch: Dispatch) -> Any:
    """SkyRL's `RayPPOTrainer` without the services that its constructor starts."""
    trainer_class = module("train.trainer").RayPPOTrainer
    trainer = object.__new__(trainer_class)
    trainer.cfg = config
    trainer.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
    trainer.dispatch = dispatch
    trainer.all_metrics, trainer.all_timings, trainer.global_step = {}, {}, 0
    return trainer


def _training_input(trainer: Any, batch: ProbedBatch) -> Any:
    """The batch as SkyRL's conversion lays it out, with the probe's advantages.

    Rows that SkyRL adds repeat the first one; so do their advantages, that a leak may show.

    Raises:
        Refused: SkyRL takes no such batch.
    """
    generated = {
        "prompt_token_ids": [ids.tolist() for ids in batch.prompts],
        "response_ids": [ids.tolist() for ids in batch.responses],
        "rewards": [[0.0] * len(ids) for ids in batch.responses],
        "loss_masks": [mask.astype(int).tolist() for mask in batch.masks],
    }
    prompts = [
        f"step{number}-group{group}"
        for number, step in enumerate(batch.steps)
        for group in step.groups
    ]
    with refusals():
        data = trainer.convert_to_training_input(generated, prompts)
    rows, width = data["loss_mask"].shape
    advantages = torch.zeros(rows, width)
    for row, values in enumerate(batch.advantages):
        # Older versions have responses at the left.
        advantages[row, data["response_mask"][row].bool()] = torch.from_numpy(values).float()
    advantages[len(batch.advantages) :] = advantages[0]
    data["advantages"] = advantages
    data["action_log_probs"] = torch.zeros(rows, width)
    return data
