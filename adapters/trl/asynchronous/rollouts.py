"""A batch of rollouts in a rollout worker's queue."""

from __future__ import annotations

from queue import Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.trl.importing import module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adapters.contract.probed_batch import ProbedBatch


def queued(batch: ProbedBatch) -> Queue[Any]:
    """The samples of all steps in order, and then again, because the data loader reads ahead."""
    samples: Queue[Any] = Queue()
    for _ in range(2):
        for sample in range(len(batch.responses)):
            samples.put(rollout_sample(batch, sample))
    return samples


def rollout_sample(batch: ProbedBatch, index: int) -> Any:
    """A sample as TRL's own rollout worker returns it: prompt and completion in one."""
    prompt, response = prompt_of_group(batch, index), batch.responses[index]
    none = np.zeros(len(prompt))
    return module("experimental.async_grpo.async_rollout_worker").RolloutSample(
        prompt=[],
        completion=[],
        input_ids=np.concatenate([prompt, response]),
        completion_mask=np.concatenate([none, batch.masks[index]]).astype(np.int64),
        old_log_probs=np.concatenate([none, batch.old_log_probs[index]]).astype(np.float32),
        advantage=float(batch.advantages[index][0]),
        model_version=0,
        group_id=int(batch.groups[index]),
        metrics={},
    )


def prompt_of_group(batch: ProbedBatch, index: int) -> NDArray[np.int64]:
    """A sample's prompt, which begins like that of its group's first sample, as TRL packs them.

    The last token differs: it predicts the first token of the response.
    """
    own = batch.prompts[index]
    first = batch.prompts[int(np.argmax(batch.groups == batch.groups[index]))]
    shared = min(len(own), len(first)) - 1
    return np.concatenate([first[:shared], own[shared:]])
