"""SkyRL's trainer on one rank, as each of them plays it for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.configuration import Tampering
from adapters.contract import Unsupported
from adapters.objective import Metric, Objective
from adapters.probe import FORWARD_PASSES, PADDING_ID, ProbedBatch
from adapters.skyrl.configuration import has_kl_term, knows_rollout_policy, refusals
from adapters.skyrl.importing import module, ppo_utils

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from adapters.contract import Job

Boundaries = list[tuple[int, int]]
"""Where the rows of each prompt begin and end."""

PROMPT_BOUNDARIES = "policy_prompt_boundaries"
"""What SkyRL's trainer calls them."""

PADDING_MICRO_BATCH_IDS = 100
"""SkyRL fills the micro-batches that only pad with random token ids below this."""


NAMES = {
    Metric.POLICY_LOSS: "policy_loss",
    Metric.LOSS: "final_loss",
    Metric.CLIP_FRACTION: "loss_metrics/clip_ratio",
    Metric.ENTROPY: "policy_entropy",
    Metric.KL: "policy_kl",
    Metric.REJECTED: "loss_metrics/token_mask_ratio",
}
"""What SkyRL's worker calls what it reports of a mini-batch."""


class Dispatch:
    """Calls this rank's workers where SkyRL's `WorkerDispatch` sends to the actors of all ranks."""

    def __init__(self, workers: Mapping[str, Any], job: Job) -> None:
        self._workers = workers
        self._dp_size = job.layout.dp
        # Without the term, an engine reports a divergence of 0 that it never computed.
        self._left_out = set() if has_kl_term(job) else {Metric.KL}
        self._statuses: list[Mapping[str, float]] = []
        self.forward_passes: list[NDArray[np.int64]] = []
        """Token ids of each, of those that the rank was given."""

    @property
    def reported(self) -> dict[Metric, tuple[float | None, ...]]:
        """What the policy's worker reported of each mini-batch, and the trainer takes from it."""
        known = set().union(*self._statuses)
        return {
            metric: tuple(status.get(name) for status in self._statuses)
            for metric, name in NAMES.items()
            if name in known and metric not in self._left_out
        }

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
        worker = self._workers[model]
        actor = SimpleNamespace(rank=worker.mesh_rank, handle=_Handle(worker))
        FORWARD_PASSES.take()
        [status] = _mesh_dispatch().dispatch_from_staged([actor], method, *staged)
        passes = FORWARD_PASSES.take()
        if len(staged) == 1:
            # Micro-batches that only pad are of random ids, which may be other ranks' tokens.
            given = staged[0][worker.mesh_rank.dp]["sequences"].numpy()
            passes = [ids[np.isin(ids, given)] for ids in passes]
        self.forward_passes.extend(passes)
        if model == "policy":
            self._statuses.append(getattr(status, "metrics", status))  # older: nothing else
        return status

    def optim_step(self, model: str) -> Any:
        """The worker's."""
        return self._workers[model].optim_step()

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


def train(config: Any, dispatch: Dispatch, batch: ProbedBatch, job: Job) -> None:
    """Train on a batch of rollouts, mini-batch after mini-batch."""
    trainer = _trainer(config, dispatch)
    trainer.train_critic_and_policy(_training_input(trainer, batch, job))


def reduce(config: Any, batch: ProbedBatch, job: Job) -> NDArray[np.float32]:
    """The probe's gradient of the reduced token losses, which are -advantage · probe.

    SkyRL scales the advantages and then sums.
    """
    trainer = _trainer(config, Dispatch({}, job))
    data = _training_input(trainer, batch, job)
    boundaries = [data.metadata["policy_mini_batch_boundaries"]]
    if PROMPT_BOUNDARIES in data.metadata:
        boundaries.append(data.metadata[PROMPT_BOUNDARIES])
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


def _training_input(trainer: Any, batch: ProbedBatch, job: Job) -> Any:
    """The batch as SkyRL's conversion lays it out, with what the probe is read by.

    Raises:
        Refused: SkyRL takes no such batch.
        Unsupported: SkyRL has nothing to be tampered with so.
    """
    tampering = job.configuration.tampering
    first = 1 if tampering is Tampering.GROUP_INCOMPLETE else 0
    generated: dict[str, list[Any]] = {
        "prompt_token_ids": [ids.tolist() for ids in batch.prompts],
        "response_ids": [ids.tolist() for ids in batch.responses],
        "rewards": [[0.0] * len(ids) for ids in batch.responses],
        "loss_masks": [mask.astype(int).tolist() for mask in batch.original_masks],
    }
    if knows_rollout_policy(job):
        generated["rollout_logprobs"] = [values.tolist() for values in batch.rollout_log_probs]
    prompts = [
        f"step{number}-group{group}"
        for number, step in enumerate(batch.steps)
        for group in step.groups
    ]
    rollouts = {name: values[first:] for name, values in generated.items()}
    with refusals():
        data = trainer.convert_to_training_input(rollouts, prompts[first:])
    for name, values in _per_token(batch, job).items():
        data[name] = _laid_out(values[first:], data["response_mask"])
    if tampering is not None:
        _tamper(data.metadata, tampering)
    return data


def _per_token(batch: ProbedBatch, job: Job) -> dict[str, list[NDArray[np.float64]]]:
    """What SkyRL computes of rollouts before it trains on them, and the probe is read by."""
    values = {"advantages": batch.advantages, "action_log_probs": batch.old_log_probs}
    if has_kl_term(job):
        values["base_action_log_probs"] = batch.reference_log_probs
    if job.objective is Objective.VALUE:
        # SkyRL's loss is half of the squared error.
        values["returns"] = [2 * returns for returns in batch.returns]
        values["values"] = [np.zeros(len(returns)) for returns in batch.returns]
    return values


def _laid_out(of_samples: list[NDArray[np.float64]], response_mask: torch.Tensor) -> torch.Tensor:
    """Values of response tokens, as SkyRL's conversion has them: [rows, width].

    Rows that SkyRL adds repeat the first one; so do their values, that a leak may show.
    """
    laid_out = torch.zeros(response_mask.shape)
    for row, values in enumerate(of_samples):
        # Older versions have responses at the left.
        laid_out[row, response_mask[row].bool()] = torch.from_numpy(values).float()
    laid_out[len(of_samples) :] = laid_out[0]
    return laid_out


def _tamper(metadata: dict[str, Any], tampering: Tampering) -> None:
    """Change what says which rows are one prompt's, after SkyRL has checked it."""
    if tampering is Tampering.GROUP_INCOMPLETE:
        return
    if PROMPT_BOUNDARIES not in metadata or tampering not in TAMPERED:
        raise Unsupported(f"SkyRL has nothing of which it could be said: {tampering}")
    boundaries = TAMPERED[tampering](list(metadata.pop(PROMPT_BOUNDARIES)))
    if boundaries is not None:
        metadata[PROMPT_BOUNDARIES] = boundaries


def _with_gap(boundaries: Boundaries) -> Boundaries:
    (start, end), *others = boundaries
    if end - start < 2 or not others:
        raise Unsupported("no gap between prompts where the first has one sample, or is alone")
    return [(start, end - 1), *others]


def _with_overlap(boundaries: Boundaries) -> Boundaries:
    first, *others = boundaries
    if not others:
        raise Unsupported("no overlap of prompts where there is one alone")
    start, end = others[0]
    return [first, (start - 1, end), *others[1:]]


def _cut_short(boundaries: Boundaries) -> Boundaries:
    *others, (start, end) = boundaries
    return [*others, (start, end - 1)]


TAMPERED: dict[Tampering, Callable[[Boundaries], Boundaries | None]] = {
    Tampering.GROUPS_MISSING: lambda boundaries: None,
    Tampering.BOUNDARY_GAP: _with_gap,
    Tampering.BOUNDARY_OVERLAP: _with_overlap,
    Tampering.BOUNDARY_SHORT: _cut_short,
}
"""What becomes of the boundaries of prompts."""
