"""A job's samples as prime-rl's orchestrator sends them: packed into micro-batches, by rank."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Job, Objective, Unsupported
from adapters.contract.objective import KL_COEFFICIENT, OF_LOG_PROBS
from adapters.prime_rl import orchestrator
from adapters.prime_rl.framework import PRIME_RL
from adapters.prime_rl.importing import has_streams, module, transport
from adapters.toolkit.calls import call_supported
from adapters.toolkit.probe import CERTAIN_LOGIT, logits_head, probable_head
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Values

FIRST_ID = 1
"""The number added to all token ids, because prime-rl pads with id 1."""

COMPONENTS = {Objective.SFT: ("ce_weights", 1.0), Objective.KL: ("ref_kl_weights", KL_COEFFICIENT)}
"""For each objective that trains another component of the loss than the RL component: the
component's stream of weights, and the weight of active tokens."""


class PrimeRLRollouts:
    """The micro-batches of each optimizer step, for all data-parallel ranks."""

    def __init__(self, batch: ProbedBatch, job: Job, seq_len: int) -> None:
        self._batch, self._job, self._seq_len = batch, job, seq_len
        self._advantages = batch.advantages
        if not gives_advantages(job):
            self._advantages = self._scored()
        samples = (self._sample(one, self._signal(one)) for one in range(len(batch.responses)))
        self._grids = [self._packed([*islice(samples, step.size)]) for step in job.steps]

    def send(self, folder: Path) -> None:
        """Write the micro-batches to the folder from which the trainer's ranks read them."""
        first_step = module("trainer.rl.train").Progress().step
        sender = transport("filesystem").FileSystemMicroBatchSender(
            folder, self._job.layout.dp, first_step
        )
        for grid in self._grids:
            sending = sender.send(grid)
            if sending is not None:  # before August 2026, `send` itself has sent the micro-batches
                asyncio.run(sending)

    def are_samples(self, dp_rank: int) -> list[bool]:
        """Whether each micro-batch of a rank, in order, holds samples.

        The other micro-batches are padding: copies in which no token is trained.
        """
        return [
            (dp_rank, index) == originals[micro_batch.input_ids[0]]
            for grid in self._grids
            for originals in [_originals(grid)]
            for index, micro_batch in enumerate(grid[dp_rank])
        ]

    @property
    def head(self) -> Callable[..., Any]:
        """The function that makes the model's logits, with the tokens' log-probabilities."""
        if self._job.objective not in OF_LOG_PROBS:
            return logits_head
        return probable_head(self._batch.log_prob_table, FIRST_ID)

    def _sample(self, index: int, signal: Mapping[str, Values]) -> Any:
        """A prompt and its response: as one sequence, and as two for versions before July 2026.

        The masks and log-probabilities of the one sequence cover prompt and response.
        """
        batch, prompt = self._batch, self._batch.prompts[index] + FIRST_ID
        response, mask = batch.responses[index] + FIRST_ID, batch.original_masks[index]
        log_probs = self._log_probs(index)

        def whole(values: NDArray[Any]) -> list[Any]:
            return np.concatenate([np.zeros(len(prompt), values.dtype), values]).tolist()

        return call_supported(
            transport("types").TrainingSample,
            token_ids=[*prompt.tolist(), *response.tolist()],
            mask=whole(mask),
            logprobs=whole(log_probs),
            temperatures=[1.0] * (len(prompt) + len(response)),
            prompt_ids=prompt.tolist(),
            prompt_mask=[False] * len(prompt),
            completion_ids=response.tolist(),
            completion_mask=mask.tolist(),
            completion_logprobs=log_probs.tolist(),
            completion_temperatures=[1.0] * len(response),
            env_name="corpus",
            advantage=1.0,
            **{name: whole(values) for name, values in signal.items()},
        )

    def _log_probs(self, index: int) -> Values:
        """Log-probabilities of the rollout policy, 0 for the tokens to reject."""
        if self._job.objective in OF_LOG_PROBS:
            return self._batch.rollout_log_probs[index]
        rejected = self._batch.rollout_log_probs[index] != self._batch.old_log_probs[index]
        return np.where(rejected, 0.0, self._batch.old_log_probs[index] - CERTAIN_LOGIT)

    def _signal(self, index: int) -> dict[str, Values]:
        """The training signal of tokens: advantages, or weights of another loss component."""
        if self._job.objective not in COMPONENTS:
            return {"advantages": self._advantages[index]}
        name, weight = COMPONENTS[self._job.objective]
        mask = self._batch.original_masks[index]
        streams = {"rl_weights": np.zeros(len(mask)), name: np.where(mask, weight, 0.0)}
        if self._job.objective is Objective.KL:
            streams["ref_logprobs"] = self._batch.reference_log_probs[index] - CERTAIN_LOGIT
        return streams

    def _scored(self) -> list[Values]:
        """Token advantages from the orchestrator, which compares the rewards of a prompt."""
        kind = str(PRIME_RL.settings(self._job)["orchestrator.algo.type"])
        found: dict[int, Values] = {}
        for rollouts in self._rollouts_of_groups():
            finished = [self._finished(samples) for samples in rollouts]
            orchestrator.score(finished, kind, self._seq_len)
            for samples, rollout in zip(rollouts, finished, strict=True):
                found |= zip(samples, orchestrator.advantages(rollout), strict=True)
        return [found[index] for index in sorted(found)]

    def _rollouts_of_groups(self) -> Iterator[list[list[int]]]:
        """Yields, for each prompt, the samples of each of its rollouts."""
        groups: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        ids = zip(self._batch.groups.tolist(), self._batch.trajectories.tolist(), strict=True)
        for index, (group, rollout) in enumerate(ids):
            groups[group][rollout].append(index)
        yield from ([*rollouts.values()] for rollouts in groups.values())

    def _finished(self, samples: Sequence[int]) -> Any:
        """A rollout as environments return it; raises `Unsupported` if they return no such one."""
        batch = self._batch
        if len({float(batch.rewards[index]) for index in samples}) > 1:
            raise Unsupported("a rollout has one reward for all of its samples")
        if not any(batch.original_masks[index].any() for index in samples):
            raise Unsupported("a rollout without sampled tokens is left out")
        turns = [
            (self._sample(index, {}), batch.responses[index], batch.original_masks[index])
            for index in samples
        ]
        return orchestrator.finished(turns, float(batch.rewards[samples[0]]))

    def _packed(self, samples: list[Any]) -> list[list[Any]]:
        """The micro-batches of each rank, made by the function that prime-rl's packer calls."""
        packing, layout = module("trainer.batch"), self._job.layout
        made = call_supported(
            packing.prepare_batch,
            rollouts=samples,
            seq_len=self._seq_len,
            num_train_workers=layout.dp,
            bin_cost=packing.build_bin_cost(None) if hasattr(packing, "build_bin_cost") else sum,
            pad_to_multiple_of=layout.cp,
            idxs=[0 for _ in samples],
            num_loras=1,
        )
        return made if has_streams() else self._assign_advantages(made)

    def _assign_advantages(self, grid: list[list[Any]]) -> list[list[Any]]:
        """Replace the micro-batches' sample advantages by token advantages."""
        advantages = np.zeros(self._batch.probe_size + FIRST_ID)
        ids = np.concatenate(self._batch.responses) + FIRST_ID
        advantages[ids] = np.concatenate(self._advantages)
        for micro_batch in chain.from_iterable(grid):
            micro_batch.advantages = advantages[micro_batch.input_ids].tolist()
        return grid


def _originals(grid: list[list[Any]]) -> dict[int, tuple[int, int]]:
    """The rank and index of each micro-batch that is not a copy, by its first token."""
    placed = [
        (any(micro_batch.loss_mask), micro_batch.input_ids[0], (dp_rank, index))
        for dp_rank, micro_batches in enumerate(grid)
        for index, micro_batch in enumerate(micro_batches)
    ]
    return {first: place for _, first, place in sorted(placed)}
