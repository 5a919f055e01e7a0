"""SkyRL's trainer, run on every rank.

`RayPPOTrainer.train` is one loop without a method for one batch of rollouts. The trainer's own
methods are called here in the same order, from the check of the generator's output to the last
optimizer step.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Framework, Job, Settings, Unsupported
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.contract.job import FaultInjection
from adapters.contract.objective import (
    FROM_REWARDS,
    OF_CRITIC,
    OF_ROLLOUT_RATIOS,
    OF_THE_ROLLOUT_POLICY,
    OF_VALUES,
)
from adapters.skyrl import importing
from adapters.skyrl.importing import PADDING_MICRO_BATCHES, module, ppo_utils
from adapters.toolkit.calls import nothing, refusals
from adapters.toolkit.settings import (
    doubled_returns,
    given_values,
    rollouts_of_prompts,
    trained_model,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Gradient, Integers, Values

DISPATCH = "backends.skyrl_train.distributed.dispatch"
PROMPT_BOUNDARIES = "policy_prompt_boundaries"
# SkyRL fills padding micro-batches with random token ids below this number
PADDING_MICRO_BATCH_IDS = 100


class Dispatch:
    """Calls this rank's workers, in place of SkyRL's `WorkerDispatch` to Ray actors."""

    def __init__(self, workers: Mapping[str, Any], rollouts: SkyRLRollouts) -> None:
        self._workers = workers
        self._trained = trained_model(rollouts.job, "policy")
        self._rollouts = rollouts
        self._dp_size = rollouts.job.layout.dp
        self.statuses: list[Mapping[str, float]] = []
        """The numbers that the policy's worker reports for each mini-batch, by SkyRL's names."""
        self.forward_passes: list[Integers] = []
        """Token ids of each forward pass, without the forward passes of padding micro-batches."""

    def get_lcm_dp_size(self) -> int:
        """The data-parallel size, which is the same for all models."""
        return self._dp_size

    def forward(self, model: str, data: Any) -> Any:
        """A model's log-probabilities or values of rollouts, in the form of this version."""
        values = self._rollouts.log_probs_or_values(model, data)
        form = getattr(module(DISPATCH), "WorkerOutput", None)
        if form is None:
            return {"output": values}
        key = "values" if model == "critic" else "logprobs"
        return form(loss_fn_outputs=[{key: row} for row in values.tolist()])

    def forward_from_staged(self, model: str, chunks: list[Any]) -> Any:
        """The results of `forward` for the chunks of all data-parallel ranks, concatenated."""
        answers = [self.forward(model, chunk) for chunk in chunks]
        rows = [row for answer in answers for row in answer.loss_fn_outputs]
        return type(answers[0])(loss_fn_outputs=rows)

    def stage_data(self, *staged: Any) -> Any:
        """All ranks' chunks for each mini-batch, as SkyRL cuts them; older versions do not cut."""
        if len(staged) == 1:
            return staged[0]
        _, data, boundaries = staged
        return module(DISPATCH).MeshDispatch.stage_chunks(self._dp_size, data, boundaries)

    def forward_backward_from_staged(self, model: str, *staged: Any) -> Any:
        """Run forward and backward on this rank's chunk, chosen by SkyRL's dispatch."""
        method = "forward_backward" if len(staged) == 1 else "forward_backward_from_staged"
        worker = self._workers[model]
        handle = SimpleNamespace(**{method: SimpleNamespace(remote=getattr(worker, method))})
        actor = SimpleNamespace(rank=worker.mesh_rank, handle=handle)
        worker.passes.drain()
        PADDING_MICRO_BATCHES.drain()
        [status] = module(DISPATCH).MeshDispatch.dispatch_from_staged([actor], method, *staged)
        passes, padding = worker.passes.drain(), PADDING_MICRO_BATCHES.drain()
        if model == self._trained:  # padding micro-batches come last
            self.forward_passes.extend(passes[: len(passes) - padding])
        if model == "policy":
            # older versions return only the metrics
            self.statuses.append(getattr(status, "metrics", status))
        return status

    def optim_step(self, model: str) -> Any:
        """Run the worker's optimizer step."""
        return self._workers[model].optim_step()

    empty_cache = staticmethod(nothing)  # the CPU has no cache


def capacity(probe_size: int) -> int:
    """A probe size that has an entry for every id that occurs in padding."""
    from adapters.toolkit.probe import probe_capacity

    return probe_capacity(max(probe_size, PADDING_MICRO_BATCH_IDS) + 1)


def configured(framework: Framework, job: Job, of_rank: Settings) -> Any:
    """SkyRL's configuration of a job and a rank; raises `Unsupported` or `Refused`."""
    config = importing.configured({**framework.settings(job), **of_rank})
    if job.configuration.divisor == "" and config.trainer.algorithm.max_seq_len is not None:
        raise Unsupported("no missing max_seq_len: it is derived from the generated lengths")
    return config


def train(config: Any, dispatch: Dispatch, rollouts: SkyRLRollouts) -> Mapping[str, Any]:
    """Train on a batch of rollouts by mini-batches; returns the trainer's log of the batch."""
    trainer = _trainer(config, dispatch)
    trainer.train_critic_and_policy(_training_input(trainer, rollouts))
    logged: Mapping[str, Any] = trainer.all_metrics
    return logged


def reduce(config: Any, rollouts: SkyRLRollouts) -> Gradient:
    """The probe's gradient of the summed, scaled token losses -advantage · probe."""
    import torch

    batch = rollouts.batch
    trainer = _trainer(config, Dispatch({}, rollouts))
    data = _training_input(trainer, rollouts)
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


@dataclass(frozen=True, eq=False)
class SkyRLRollouts:
    """A user's generator's output for a batch's prompts, and models' outputs for its samples."""

    batch: ProbedBatch
    job: Job

    @cached_property
    def uids(self) -> list[str]:
        """The id of each sample's prompt."""
        return [
            f"step{step_index}-group{group}"
            for step_index, step in enumerate(self.batch.steps)
            for group in step.groups
        ]

    def output(self, prompts: Sequence[str], *, step_wise: bool) -> dict[str, Any]:
        """The samples of prompts; SkyRL calls rollouts of several samples step-wise."""
        incomplete = self.job.configuration.fault_injection is FaultInjection.GROUP_INCOMPLETE
        chosen = [i for i, uid in enumerate(self.uids) if uid in prompts][incomplete:]
        batch = self.batch
        columns: dict[str, list[Any]] = {
            "prompt_token_ids": [ids.tolist() for ids in batch.prompts],
            "response_ids": [ids.tolist() for ids in batch.responses],
            "rewards": batch.rewards.tolist(),
            "loss_masks": [mask.astype(int).tolist() for mask in batch.original_masks],
            "stop_reasons": ["stop"] * len(self.uids),
        }
        compared = (*OF_ROLLOUT_RATIOS, *OF_THE_ROLLOUT_POLICY)
        of_rollouts = self.job.rejects or batch.objective in compared
        if self.job.configuration.corrects or of_rollouts:
            columns["rollout_logprobs"] = [list(values) for values in batch.rollout_log_probs]
        if step_wise:
            columns |= self._step_wise()
        absent = ("rollout_metrics", "rollout_logprobs", "trajectory_ids", "is_last_step")
        return dict.fromkeys(absent) | {
            name: [values[i] for i in chosen] for name, values in columns.items()
        }

    def _step_wise(self) -> dict[str, list[Any]]:
        """The rollout of each sample, and whether the sample is the rollout's last."""
        trajectory = module("train.generators.base").TrajectoryID
        rollouts = [step.rollouts for step in self.batch.steps]
        last = [np.diff(of_step, append=of_step[-1] + 1) != 0 for of_step in rollouts]
        named = zip(self.uids, np.concatenate(rollouts).tolist(), strict=True)
        return {
            "trajectory_ids": [trajectory(*names) for names in named],
            "is_last_step": np.concatenate(last).tolist(),
        }

    def log_probs_or_values(self, model: str, data: Any) -> torch.Tensor:
        """The models' outputs on rollouts before training: [rows, width]."""
        batch = self.batch
        outputs = {
            "policy": batch.old_log_probs,
            "ref": batch.reference_log_probs,
            "critic": given_values(batch),
        }
        elsewhere = PADDING_VALUE if model == "critic" and self.job.objective in OF_VALUES else 0.0
        return self.laid_out(outputs[model], data, elsewhere)

    def laid_out(self, of_samples: list[Values], data: Any, elsewhere: float = 0.0) -> torch.Tensor:
        """Response values, [rows, width]; padding rows repeat the first row, to reveal leaks."""
        from adapters.toolkit.probe import token_table

        table = token_table(self.batch, of_samples, elsewhere)
        return table[data["sequences"][:, -data.metadata["response_length"] :]]


def _trainer(config: Any, dispatch: Dispatch) -> Any:
    """SkyRL's `RayPPOTrainer`, without the services that its constructor starts."""
    trainer = object.__new__(module("train.trainer").RayPPOTrainer)
    trainer.cfg = config
    trainer.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
    trainer.dispatch = dispatch
    algorithm = config.trainer.algorithm
    trainer.ref_model = algorithm.use_kl_loss or algorithm.use_kl_in_reward or None
    trainer.all_metrics, trainer.all_timings, trainer.global_step = {}, {}, 0
    return trainer


def _training_input(trainer: Any, rollouts: SkyRLRollouts) -> Any:
    """The trainer's batch of rollouts, with our advantages unless SkyRL's own are checked.

    Raises `Refused` if SkyRL declines the rollouts.
    """
    with refusals():
        output, uids = _generated(trainer, rollouts)
        processed = trainer.postprocess_generator_output(output, uids)
        # Older versions leave the prompts' ids as they are.
        output, uids = processed if isinstance(processed, tuple) else (processed, uids)
        data = trainer.convert_to_training_input(output, uids)
    data = trainer.fwd_logprobs_values_reward(data)
    if trainer.cfg.trainer.algorithm.use_kl_in_reward:
        trainer.reward_kl_controller = ppo_utils().get_kl_controller(trainer.cfg.trainer.algorithm)
        data = trainer.apply_reward_kl_penalty(data)
    data = trainer.compute_advantages_and_returns(data)
    data.pop("rewards")
    data.metadata.pop("uids")
    data.metadata.pop("is_last_step", None)
    if rollouts.job.objective not in FROM_REWARDS:
        data["advantages"] = rollouts.laid_out(rollouts.batch.advantages, data)
    if rollouts.job.objective in OF_CRITIC:
        data["returns"] = rollouts.laid_out(doubled_returns(rollouts.batch), data)
    return data


def _generated(trainer: Any, rollouts: SkyRLRollouts) -> tuple[dict[str, Any], list[str]]:
    """The generator's output, checked by SkyRL, and the id of each sample's prompt."""
    step_wise = trainer.cfg.generator.step_wise_trajectories
    prompts = trainer._remove_tail_data(list(dict.fromkeys(rollouts.uids)))

    async def generate(_: Any) -> dict[str, Any]:
        return rollouts.output(prompts, step_wise=step_wise)

    trainer.generator = SimpleNamespace(generate=generate)
    samples = len(prompts) * max(rollouts_of_prompts(rollouts.job))
    with refusals(RuntimeError):  # SkyRL raises RuntimeError for an output without samples
        output = asyncio.run(trainer.generate({"prompts": [None] * samples}))
    if step_wise:
        return output, [trajectory.instance_id for trajectory in output["trajectory_ids"]]
    return output, [uid for uid in rollouts.uids if uid in prompts]
