"""A run of `AsyncGRPOTrainer`, which takes rollouts from a queue."""

from __future__ import annotations

import sys
from collections import deque
from queue import Queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.toolkit.calls import nothing
from adapters.trl.driving import TrlTraining
from adapters.trl.importing import module
from adapters.trl.model import HeadWithoutParameters, save_policy

if TYPE_CHECKING:
    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Integers, Values


def _check_health(stale_after_s: float) -> None:
    """Raise an error: TRL calls this if the queue is empty, so it asks for too many samples."""
    raise RuntimeError("the trainer asked for more samples than it trains on")


def given_rollouts(samples: Queue[Any]) -> Any:
    """A stub of the rollout worker, whose samples are all given."""
    return SimpleNamespace(
        rollout_buffer=samples,
        metrics_queue=Queue(),
        check_health=_check_health,
        **dict.fromkeys(("start", "stop", "update_model_version"), nothing),
    )


NOWHERE = SimpleNamespace(
    send_weights=lambda weights: deque(weights, maxlen=0),
    **dict.fromkeys(("init_weight_transfer", "pause", "resume", "destroy"), nothing),
)
"""A weight transfer that gathers each weight from all ranks, and sends it to no engine."""


class AsyncTraining(TrlTraining):
    """One run of `AsyncGRPOTrainer`.

    The logged divergence is the divergence from the generating policy, estimated by k3.
    """

    def arguments(self, config: Any) -> dict[str, Any]:
        """Add the policy's folder, an unused prompt, and the rollouts."""
        from datasets import Dataset

        save_policy(self.capacity, config.output_dir)
        return {
            **super().arguments(config),
            "model": config.output_dir,
            "train_dataset": Dataset.from_dict({"prompt": [""]}),
            "rollout_worker": given_rollouts(queued(self.rollouts.batch)),
            "weight_transfer": NOWHERE,
        }

    def give(self, model: Any, log_probs: list[Values]) -> None:
        """Also replace the LM head, which FSDP2 would shard until the first norm."""
        super().give(model, log_probs)
        model.lm_head = HeadWithoutParameters()

    def fuses_lm_head(self) -> bool:
        """True: all versions of the trainer compute log-probabilities in the model."""
        return True

    def stubs(self) -> dict[str, Any]:
        """Stubs of the device's speed, which only CUDA knows, and of an endless thread."""
        home: Any = sys.modules[self.trainer.__module__]

        class WithoutTraces(home.RolloutQueueDataset):
            def _drain_traces(self) -> None:
                """Do nothing: traces stay in their queue."""

        speed = {"get_peak_flops_per_device": lambda *_: None}  # required by TRL since 1.15
        known = speed if hasattr(home, *speed) else {}
        return {**known, "RolloutQueueDataset": WithoutTraces}


def queued(batch: ProbedBatch) -> Queue[Any]:
    """The samples of all steps in order, then repeated, because the data loader reads ahead."""
    samples: Queue[Any] = Queue()
    for _ in range(2):
        for sample in range(len(batch.responses)):
            samples.put(rollout_sample(batch, sample))
    return samples


def rollout_sample(batch: ProbedBatch, index: int) -> Any:
    """A sample as TRL's own rollout worker returns it: prompt and completion as one sequence."""
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


def prompt_of_group(batch: ProbedBatch, index: int) -> Integers:
    """A sample's prompt, with a prefix that the group shares, because TRL packs groups.

    The prompt's last token is the sample's own, because it predicts the response's first token.
    """
    own = batch.prompts[index]
    first = batch.prompts[int(np.argmax(batch.groups == batch.groups[index]))]
    shared = min(len(own), len(first)) - 1
    return np.concatenate([first[:shared], own[shared:]])
