"""A batch of rollouts as OpenRLHF's rollout engines answer, and what models say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.objective import Objective
from adapters.openrlhf.importing import module
from adapters.toolkit.probe import by_token_id
from adapters.toolkit.settings import given_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

    Values = Sequence[NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Those of the ``samples`` of a batch with these indices."""

    batch: ProbedBatch
    job: Job
    samples: range
    are_corrected: bool
    """Whether the rollout policy's log-probabilities are compared with the old one's."""

    def experiences(self) -> list[Any]:
        """One of each sample, as OpenRLHF's generator makes it of an engine's answer."""
        generator_class = module("trainer.ppo_utils.samples_generator").SamplesGenerator
        generator = object.__new__(generator_class)
        return [
            generator._process_response_into_experience(
                self._response(index), max_len=self.batch.probe_size
            )
            for index in self.samples
        ]

    def answers(self, role: str, data: dict[str, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """What a model says of sequences: 0 where a token is not active, as OpenRLHF's do."""
        values = {
            "actor": self.batch.old_log_probs,
            "reference": self.batch.reference_log_probs,
            "critic": given_values(self.batch),
        }
        pairs = zip(data["sequences"], data["action_mask"], strict=True)
        return [self.laid_out(values[role], ids) * mask.float() for ids, mask in pairs]

    def laid_out(self, values: Values, sequences: torch.Tensor) -> torch.Tensor:
        """Values of response tokens where they are predicted, 0 elsewhere: [rows, width - 1]."""
        return by_token_id(self.batch, values)[sequences[:, 1:]]

    def given(self, experiences: Sequence[Any]) -> Sequence[Any]:
        """The experiences with our advantages; OpenRLHF's critic has half of the squared error."""
        for experience in experiences:
            experience.advantages = self.laid_out(self.batch.advantages, experience.sequences)
            if self.job.objective is Objective.VALUE:
                returns = [2 * returns for returns in self.batch.returns]
                experience.returns = self.laid_out(returns, experience.sequences)
        return experiences

    def _response(self, index: int) -> dict[str, Any]:
        """A sample as a rollout engine answers: active tokens are ranges of actions."""
        prompt, response = self.batch.prompts[index], self.batch.responses[index]
        active = np.concatenate([np.zeros(len(prompt), bool), self.batch.original_masks[index]])
        log_probs = np.concatenate([np.zeros(len(prompt)), self.batch.rollout_log_probs[index]])
        return {
            "prompt": str(self.batch.groups[index]),
            "label": "",
            "observation_tokens": np.concatenate([prompt, response]).tolist(),
            "action_ranges": _ranges(active),
            "rollout_log_probs": log_probs.tolist() if self.are_corrected else None,
            "reward": float(self.batch.rewards[index]),
        }


def _ranges(active: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The first index and the end of each run of active tokens."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
