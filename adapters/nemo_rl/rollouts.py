"""A batch of rollouts as NeMo-RL's environments return it: logs of messages, and a reward each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract.objective import Objective
from adapters.nemo_rl.importing import module
from adapters.toolkit.probe import CERTAIN_LOGIT, by_token_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract.probed_batch import ProbedBatch

    Message = dict[str, Any]


class Rollouts:
    """The samples of some optimizer steps, and the values of their tokens."""

    def __init__(self, batch: ProbedBatch, samples: range) -> None:
        self._batch, self._samples = batch, samples

    def batch(self) -> Any:
        """The batch of samples, with their responses.

        A sample without active tokens is one that NeMo-RL is told not to train, by a multiplier of
        its loss; all tokens of its response are the policy's own.
        """
        batch, samples = self._batch, self._samples
        active = [float(batch.original_masks[sample].any()) for sample in samples]
        return module("distributed.batched_data_dict").BatchedDataDict(
            message_log=[self._messages(sample) for sample in samples],
            length=torch.tensor([len(batch.prompts[sample]) for sample in samples]),
            loss_multiplier=torch.tensor(active),
            total_reward=torch.tensor([batch.rewards[sample] for sample in samples]).float(),
        )

    def prompts(self, *_: object) -> list[list[Message]]:
        """A prompt of one token for each sample, by which samples of a group are the same."""
        groups = self._batch.groups[self._samples.start : self._samples.stop]
        return [[_message("user", np.array([group]))] for group in groups]

    def advantages(self, logs: Sequence[Sequence[Message]], width: int) -> torch.Tensor:
        """The job's advantages at the tokens of padded logs of messages: [samples, width]."""
        ids = [torch.cat([message["token_ids"] for message in log]) for log in logs]
        padded = [torch.nn.functional.pad(one, (0, width - len(one))) for one in ids]
        return self.values(self._batch.advantages, torch.stack(padded))

    def log_probs(self, values: Sequence[NDArray[np.float64]], ids: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of response tokens, at their ids, as far below 0 as the probe's are."""
        return self.values(values, ids) - CERTAIN_LOGIT

    def values(self, values: Sequence[NDArray[np.float64]], ids: torch.Tensor) -> torch.Tensor:
        """Values of response tokens at their ids, and 0 at others: [*ids]."""
        return by_token_id(self._batch, values)[ids]

    def _prompt(self, sample: int) -> list[Message]:
        """The prompt as a conversation with an earlier turn of the policy, which is not trained.

        SFT trains all turns of the policy: for it, the prompt is one message.
        """
        ids = self._batch.prompts[sample]
        if self._batch.objective is Objective.SFT:
            return [_message("user", ids)]
        turns = zip(("user", "assistant", "user"), np.split(ids, (1, len(ids) - 1)), strict=True)
        return [_message(role, turn) for role, turn in turns if len(turn)]

    def _messages(self, sample: int) -> list[Message]:
        """The prompt, and the turns of the policy and its environment that a mask tells apart."""
        batch = self._batch
        mask, response = batch.original_masks[sample], batch.responses[sample]
        of_policy = mask | (not mask.any())
        log_probs = batch.rollout_log_probs[sample] - CERTAIN_LOGIT
        log = self._prompt(sample)
        for turn in np.split(np.arange(len(mask)), np.flatnonzero(np.diff(of_policy)) + 1):
            if of_policy[turn[0]]:
                log.append(_message("assistant", response[turn]))
                log[-1]["generation_logprobs"] = torch.from_numpy(log_probs[turn]).float()
            else:
                log.append(_message("environment", response[turn]))
        return log


def _message(role: str, ids: NDArray[np.int64]) -> Message:
    return {"role": role, "content": "", "token_ids": torch.from_numpy(ids.copy())}
