"""Drives RLinf's actor, from the rollout results in its channel to optimizer steps."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from adapters.contract.batch.sequences import PADDING_ID
from adapters.engines import fsdp1
from adapters.engines.numbered import SEAM, outputs
from adapters.rlinf.importing import ACTOR, MANAGER, STRATEGIES, configured, module
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ForwardPasses, ProbedTransformer, probe_capacity, token_table
from adapters.toolkit.settings import gives_advantages, has_reference, shares
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract import Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Integers

ELSEWHERE = -1.0
"""The reference policy's log-probability of padding; RLinf computes one for every position."""

ENTROPY = "actor/entropy_loss"


def train(
    kind: type[RlinfActor],
    engine: str,
    job: Job,
    batch: ProbedBatch,
    settings: Settings,
    rank: Rank,
) -> Any:
    """Train all steps of a job in one call of an engine's actor.

    Returns the ``gradients`` and ``logs`` of steps, the ids of forward ``passes``, and the log
    ``of_rollouts``.
    """
    SEAM.start(batch)
    config, capacity = configured(settings), probe_capacity(batch.probe_size)
    given = kind.rollouts(batch, job, config, rank)
    actor = cached(rank, (engine, kind, capacity), lambda: kind(config, capacity, rank))
    actor.configure(config)
    of_rollouts, logs = actor.train(given)
    # without this option, RLinf logs an entropy of 0 for every step
    if not settings["algorithm.calculate_entropy"]:
        logs = [{name: one for name, one in log.items() if name != ENTROPY} for log in logs]
    gradients, passes = actor.gradients.drain(), actor.passes.drain()
    return SimpleNamespace(gradients=gradients, logs=logs, passes=passes, of_rollouts=of_rollouts)


class RlinfActor:
    """RLinf's actor around our model, with recorded ``gradients`` and ``passes``."""

    def __init__(self, config: Any, capacity: int, rank: Rank) -> None:
        self._rank = rank
        self.passes = ForwardPasses()
        self._actor = self.kind.__new__(self.kind)
        self.configure(config)
        replaced: dict[str, Any] = {
            "model_provider_func": lambda _: self.policy(capacity),
            "_setup_rollout_weight_dst_ranks": lambda _: None,
        }
        with (
            mock.patch.multiple(self.kind, create=True, **replaced),
            fsdp1.wrapping_on_cpu(module(STRATEGIES[0])),
        ):
            self._actor.init_worker()
        self.gradients = fsdp1.gradients_of_steps(self._actor, self._actor.model)

    @staticmethod
    def rollouts(batch: ProbedBatch, job: Job, config: Any, rank: Rank) -> list[Any]:
        """A rank's part of a batch, in the form that the actor gets."""
        made = RlinfRollouts(batch, job, config)
        return [made.result(of_step[rank.index]) for of_step in shares(job)]

    @property
    def kind(self) -> Any:
        """The class of the actor."""
        return module(ACTOR).FSDPActor

    def policy(self, capacity: int) -> Any:
        """The model that the actor trains."""
        return ProbedTransformer(capacity, self.passes, outputs)

    def construct(self, config: Any) -> None:
        """Call the actor's constructor."""
        self.kind.__init__(self._actor, config, SimpleNamespace(is_disaggregated=False))

    def configure(self, config: Any) -> None:
        """Set the actor's configuration, and keep its model and optimizer."""
        manager, worker = module(MANAGER), module("scheduler").Worker
        make = manager.create_device_mesh

        def one_mesh(*sizes: int) -> Any:
            return cached(self._rank, "mesh", lambda: make(*sizes))

        with (
            mock.patch.object(worker, "__init__", self._as_launched),
            mock.patch.object(manager, "create_device_mesh", one_mesh),
        ):
            self.construct(config)
        self._actor.tokenizer = SimpleNamespace(eos_token_id=PADDING_ID)

    def train(self, results: Sequence[Any]) -> tuple[Mapping[str, float], list[Any]]:
        """Train on a rank's results; returns the log of rollouts, and the logs of steps."""
        channel = SimpleNamespace(get=iter(results).__next__)
        with cuda_on_cpu.redirected():
            logs: tuple[Mapping[str, float], list[Any]] = self._actor.run_training(channel)
        return logs

    def _as_launched(self, worker: Any, *_: Any) -> None:
        """Set the attributes that Ray sets when it launches a worker, and that training reads."""
        worker._rank, worker._world_size = self._rank.index, self._rank.world_size
        worker._device_lock, worker._timer_metrics = nullcontext(), {}
        worker._accelerator_type = module("scheduler").AcceleratorType.NO_ACCEL


def _old_policy_column(config: Any) -> str:
    """The column of recomputed log-probabilities; before June 23, 2026, one of two columns."""
    columns = fields(module(ACTOR).RolloutResult)
    if any(column.name == "recomputed_logprobs" for column in columns):
        return "recomputed_logprobs"
    return "recompute_prev_logprobs" if config.rollout.return_logprobs else "prev_logprobs"


class RlinfRollouts:
    """The samples of a batch, in the form that RLinf's other workers send to the actor."""

    def __init__(self, batch: ProbedBatch, job: Job, config: Any) -> None:
        self._batch, self._config = batch, config
        self._width = config.runner.seq_length - config.data.max_prompt_length
        fill = 0.0 if config.actor.model.get("variable_seq_lengths") else ELSEWHERE
        self._columns = {_old_policy_column(config): token_table(batch, batch.old_log_probs)}
        if has_reference(job):
            self._columns["ref_logprobs"] = token_table(batch, batch.reference_log_probs, fill)
        if gives_advantages(job):
            self._columns["advantages"] = token_table(batch, batch.advantages)

    def result(self, samples: Integers) -> Any:
        """The result with a rank's samples of an optimizer step."""
        batch, config = self._batch, self._config
        prompts, responses, masks = (
            [column[sample] for sample in samples]
            for column in (batch.prompts, batch.responses, batch.original_masks)
        )
        result = module(ACTOR).RolloutResult(
            num_sequence=len(samples),
            group_size=config.algorithm.group_size,
            prompt_lengths=[*map(len, prompts)],
            prompt_ids=[ids.tolist() for ids in prompts],
            response_lengths=[*map(len, responses)],
            response_ids=[ids.tolist() for ids in responses],
            response_mask=[mask.astype(int).tolist() for mask in masks],
            is_end=[True for _ in samples],
            rewards=torch.from_numpy(batch.rewards[samples]).float(),
        )
        rows = pad_sequence([*map(torch.from_numpy, responses)], True, PADDING_ID)
        ids = pad(rows, (0, self._width - rows.shape[1]), value=PADDING_ID)
        for name, by_id in self._columns.items():
            setattr(result, name, by_id[ids])
        if config.rollout.return_logprobs:
            result.rollout_logprobs = [batch.rollout_log_probs[one].tolist() for one in samples]
        return result
