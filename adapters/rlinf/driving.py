"""Drives RLinf's actor, from the results of rollouts that its channel has to optimizer steps."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import fields
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract.batch.sequences import PADDING_ID
from adapters.engines import fsdp1
from adapters.rlinf.importing import ACTOR, MANAGER, STRATEGIES, module
from adapters.rlinf.model import probed
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ForwardPasses, GradientReader, Records, token_table
from adapters.toolkit.settings import gives_advantages, has_reference
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Rank
    from adapters.contract.batch.probed_batch import ProbedBatch

ELSEWHERE = -1.0
"""The reference policy's log-probability of padding, which RLinf computes as that of tokens."""


class RlinfActor:
    """RLinf's actor around our model, and what is read off it: ``gradients`` and ``passes``."""

    def __init__(self, config: Any, capacity: int, rank: Rank) -> None:
        self._rank = rank
        self.passes, self.gradients = ForwardPasses(), Records["NDArray[np.float32] | None"]()
        self._actor = module(ACTOR).FSDPActor.__new__(module(ACTOR).FSDPActor)
        self.configure(config)
        with self._around(capacity):
            self._actor.init_worker()
        fsdp1.WRAPPED.append(self._actor.model)
        self._read_gradients()

    def configure(self, config: Any) -> None:
        """Make the actor one of this configuration, with the model and the optimizer it has."""
        manager, worker, kind = module(MANAGER), module("scheduler").Worker, type(self._actor)
        make, placement = manager.create_device_mesh, SimpleNamespace(is_disaggregated=False)

        def one_mesh(*sizes: int) -> Any:
            return cached(self._rank, "mesh", lambda: make(*sizes))

        with (
            mock.patch.object(worker, "__init__", self._as_launched),
            mock.patch.object(manager, "create_device_mesh", one_mesh),
        ):
            kind.__init__(self._actor, config, placement)
        self._actor.tokenizer = SimpleNamespace(eos_token_id=PADDING_ID)

    def train(self, results: Sequence[Any]) -> tuple[Mapping[str, float], list[Any]]:
        """Train on a rank's results; returns the log of rollouts, and those of steps."""
        channel = SimpleNamespace(get=iter(results).__next__)
        with cuda_on_cpu.redirected():
            logs: tuple[Mapping[str, float], list[Any]] = self._actor.run_training(channel)
        return logs

    def _as_launched(self, worker: Any, *_: Any) -> None:
        """Set the attributes of a worker that Ray has launched, and training reads."""
        worker._rank, worker._world_size = self._rank.index, self._rank.world_size
        worker._device_lock, worker._timer_metrics = nullcontext(), {}
        worker._accelerator_type = module("scheduler").AcceleratorType.NO_ACCEL

    def _around(self, capacity: int) -> ExitStack:
        """Make RLinf load our model, and shard it on this rank's device."""
        stack, fsdp = ExitStack(), module(STRATEGIES[0])
        on_cpu = partial(_wrap_on_cpu, fsdp.FSDP)
        replaced: dict[str, Any] = {
            "model_provider_func": lambda _: probed(capacity, self.passes),
            "_setup_rollout_weight_dst_ranks": lambda _: None,
        }
        stack.enter_context(mock.patch.multiple(module(ACTOR).FSDPActor, **replaced))
        stack.enter_context(mock.patch.object(fsdp, "FSDP", on_cpu))
        return stack

    def _read_gradients(self) -> None:
        """Take the gradient of each step; None for one that was skipped.

        Its shards are gathered before: with FSDP2, a rank skips a step by its own shard alone.
        """
        actor, step = self._actor, self._actor.optimizer_step
        [probe], whole = actor.model.parameters(), Records["NDArray[np.float32]"]()
        reader = GradientReader(actor.optimizer, lambda _: whole.drain()[-1])

        def optimizer_step() -> Any:
            __tracebackhide__ = True
            shard = torch.zeros_like(probe) if probe.grad is None else probe.grad
            whole.append(fsdp1.whole(actor.model, shard))
            norm = step()
            self.gradients.append(reader.take())
            return norm

        actor.optimizer_step = optimizer_step


def _wrap_on_cpu(wrap: Any, *arguments: Any, device_id: int, **named: Any) -> Any:
    """FSDP1's wrapper, with the CPU instead of the GPU of a number."""
    __tracebackhide__ = True
    return wrap(*arguments, device_id=torch.device("cpu"), **named)


def _old_policy_column(config: Any) -> str:
    """The column of recomputed log-probabilities, which had two names before June 23, 2026."""
    columns = fields(module(ACTOR).RolloutResult)
    if any(column.name == "recomputed_logprobs" for column in columns):
        return "recomputed_logprobs"
    return "recompute_prev_logprobs" if config.rollout.return_logprobs else "prev_logprobs"


class RlinfRollouts:
    """The samples of a batch as RLinf's workers of rollouts, rewards and inference pass them on."""

    def __init__(self, batch: ProbedBatch, job: Job, config: Any) -> None:
        self._batch, self._job, self._config = batch, job, config
        self._width = config.runner.seq_length - config.data.max_prompt_length
        padded = 0.0 if config.actor.model.get("variable_seq_lengths") else ELSEWHERE
        reference = token_table(batch, batch.reference_log_probs, padded)
        self._columns = {_old_policy_column(config): token_table(batch, batch.old_log_probs)}
        if has_reference(job):
            self._columns["ref_logprobs"] = reference
        if gives_advantages(job):
            self._columns["advantages"] = token_table(batch, batch.advantages)

    def results_of_rank(self, rank: int) -> Iterator[Any]:
        """Yields a result for each optimizer step, with the samples that a rank has of it."""
        ends = [*accumulate((step.size for step in self._job.steps), initial=0)]
        for start, end in pairwise(ends):
            yield self._result(np.array_split(np.arange(start, end), self._job.layout.dp)[rank])

    def _result(self, samples: NDArray[np.int64]) -> Any:
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
        ids = self._padded(responses)
        for name, by_id in self._columns.items():
            setattr(result, name, by_id[ids])
        if config.rollout.return_logprobs:
            result.rollout_logprobs = [batch.rollout_log_probs[one].tolist() for one in samples]
        return result

    def _padded(self, responses: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        """Token ids of responses, padded on the right: [samples, width of responses]."""
        rows = torch.full((len(responses), self._width), PADDING_ID)
        for row, ids in zip(rows, responses, strict=True):
            row[: len(ids)] = torch.from_numpy(ids)
        return rows
