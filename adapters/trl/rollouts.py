"""A batch of rollouts in the form that TRL takes, and its model's outputs on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Option
from adapters.contract.probed_batch import PADDING_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.trl.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The samples of a batch, generated on this rank, one generation after another."""

    batch: ProbedBatch
    job: Job
    schedule: Schedule
    rank: int

    @property
    def masks_truncated(self) -> bool:
        """Whether samples without active tokens are truncated and masked by TRL."""
        return Option.MASKED_TRUNCATION in self.job.layout.options

    @cached_property
    def truncated(self) -> list[bool]:
        """Whether each sample ends without an end-of-text token."""
        return [self.masks_truncated and not mask.any() for mask in self.batch.original_masks]

    @property
    def end(self) -> int:
        """The id of the end of text, which no token of the batch has."""
        return self.batch.probe_size

    def generated(self, generation: int) -> dict[str, Any]:
        """The result of a user's rollout function for a generation on this rank."""
        samples, batch = self.schedule.samples(generation, self.rank), self.batch
        return {
            "prompt_ids": [batch.prompts[sample].tolist() for sample in samples],
            "completion_ids": [self._completion(sample) for sample in samples],
            "logprobs": [batch.rollout_log_probs[sample].tolist() for sample in samples],
            "env_mask": [self._mask(sample).tolist() for sample in samples],
            "reward": [float(batch.rewards[sample]) for sample in samples],
        }

    def _completion(self, sample: int) -> list[int]:
        """The ids of a sample's response, ended by an end of text unless it is truncated."""
        ids: list[int] = self.batch.responses[sample].tolist()
        return ids if self.truncated[sample] else [*ids[:-1], self.end]

    def _mask(self, sample: int) -> NDArray[np.int64]:
        """The tokens that the policy generated itself: all of a truncated sample."""
        return (self.batch.original_masks[sample] | self.truncated[sample]).astype(np.int64)


def rewards(completions: list[Any], reward: list[float], **_: Any) -> list[float]:
    """A user's reward function, which returns each sample's given reward."""
    return reward


def tokenizer(end: int) -> Any:
    """A tokenizer of padding and the end of text, which decodes any other id to nothing."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PADDING_ID, "<end>": end}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<end>",
    )
