"""NeMo-RL's trainers, run on every rank: from rollouts to the optimizer steps and the log."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.objective import FROM_REWARDS, Objective
from adapters.nemo_rl.importing import configured, initial_state, module
from adapters.nemo_rl.rollouts import Rollouts
from adapters.nemo_rl.worker import TOKENIZER, made_policy, made_worker
from adapters.toolkit.calls import refusals
from adapters.toolkit.probe import probe_capacity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from adapters.contract import Job, Rank
    from adapters.contract.framework import Framework
    from adapters.contract.probed_batch import ProbedBatch
    from reference.step import Step

GENERATION: Any = SimpleNamespace(
    prepare_for_generation=lambda **_: True,
    finish_generation=lambda **_: True,
    clear_logger_metrics=lambda: None,
    get_logger_metrics=dict,
)
"""Stands for the engine of rollouts, which are there already."""

CHECKPOINTER = SimpleNamespace(shutdown=lambda: None)


class Log:
    """Keeps the training metrics that NeMo-RL hands to its logger."""

    def __init__(self) -> None:
        self.trained: dict[str, Any] = {}

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int, prefix: str = "", **_: Any
    ) -> None:
        """Keep the metrics of a trainer's step."""
        if prefix == "train":
            self.trained.update(metrics)

    def log_histogram(self, *_: object) -> None:
        """Nothing is drawn."""

    def log_batched_dict_as_jsonl(self, *_: object) -> None:
        """Nothing is written."""

    def log_plot_token_mult_prob_error(self, *_: object, **__: object) -> None:
        """Nothing is drawn."""


class Training:
    """The steps of a job, and what was read off them.

    Each optimizer step is a step of the trainer. Where NeMo-RL computes advantages, all are cut out
    of one batch of rollouts.
    """

    def __init__(self, batch: ProbedBatch, job: Job, framework: Framework, rank: Rank) -> None:
        self._batch, self._job, self._framework, self._rank = batch, job, framework, rank
        self.gradients: list[NDArray[np.float32]] = []
        self.passes: list[NDArray[np.int64]] = []
        self.logs = [self._train(steps, samples) for steps, samples in self._batches()]

    def _batches(self) -> Iterator[tuple[Sequence[Step], range]]:
        """The optimizer steps of each batch of rollouts, and its samples."""
        steps, first = self._job.steps, 0
        for one in [steps] if self._job.objective in FROM_REWARDS else [(step,) for step in steps]:
            size = sum(step.size for step in one)
            yield one, range(first, first + size)
            first += size

    def _train(self, steps: Sequence[Step], samples: range) -> Mapping[str, Any]:
        """Run a step of the trainer; returns what it logs."""
        rollouts, log = Rollouts(self._batch, samples), Log()
        is_sft = self._job.objective is Objective.SFT
        settings = self._framework.settings(replace(self._job, steps=tuple(steps)))
        config = configured(settings, sft=is_sft)
        capacity = probe_capacity(self._batch.probe_size)
        worker = made_worker(config.policy, capacity, self._rank)
        policy = self._policy(config, worker, rollouts)
        (_fine_tune if is_sft else self._run_grpo)(policy, config, rollouts, log)
        self.gradients += worker.gradients.drain()
        self.passes += worker.passes.drain()
        return log.trained

    def _policy(self, config: Any, worker: Any, rollouts: Rollouts) -> Any:
        """NeMo-RL's policy, with the job's log-probabilities instead of forward passes."""
        policy = made_policy(config.policy, worker, self._rank)
        deal = policy._shard_for_train

        def dealt(*arguments: Any) -> Any:
            with refusals():
                return deal(*arguments)

        def given(name: str, values: Sequence[NDArray[np.float64]]) -> Any:
            return lambda data, **_: {name: rollouts.log_probs(values, data["input_ids"])}

        batch = self._batch
        policy._shard_for_train = dealt
        policy.prepare_for_lp_inference = policy.prepare_for_training = lambda: None
        policy.get_logprobs = given("logprobs", batch.old_log_probs)
        policy.get_reference_policy_logprobs = given(
            "reference_logprobs", batch.reference_log_probs
        )
        return policy

    def _run_grpo(self, policy: Any, config: Any, rollouts: Rollouts, log: Log) -> None:
        """Train on the batch as rollouts of one step of `grpo_train`."""
        trainer, losses = module("algorithms.grpo"), module("algorithms.loss")
        rolled_out = rollouts.batch(), {"mean_gen_tokens_per_sample": 1.0}
        replaced: dict[str, Any] = {
            "refit_policy_generation": lambda *_, **__: {},
            "run_multi_turn_rollout": lambda **_: rolled_out,
            "MemoryTracker": lambda: SimpleNamespace(snapshot_start_of_stage=lambda *_: None),
        }
        if self._job.objective in FROM_REWARDS:
            replaced["extract_initial_prompt_messages"] = rollouts.prompts
        else:
            estimator = SimpleNamespace(compute_advantage=_given_advantages(rollouts))
            replaced["_create_advantage_estimator"] = lambda _: estimator
        with mock.patch.multiple(trainer, **replaced):
            trainer.grpo_train(
                policy,
                GENERATION,
                [rollouts.batch()],
                None,
                TOKENIZER,
                losses.ClippedPGLossFn(config.loss_fn),
                {},
                None,
                log,
                CHECKPOINTER,
                initial_state("grpo"),
                config,
            )


def _given_advantages(rollouts: Rollouts) -> Any:
    """Stands for the method of an estimator of advantages."""

    def compute_advantage(*, mask: torch.Tensor, repeated_batch: Any, **_: object) -> torch.Tensor:
        return rollouts.advantages(repeated_batch["message_log"], mask.shape[1])

    return compute_advantage


def _fine_tune(policy: Any, config: Any, rollouts: Rollouts, log: Log) -> None:
    """Train on the batch as one step of `sft_train`."""
    trainer, losses = module("algorithms.sft"), module("algorithms.loss")
    trainer.sft_train(
        policy,
        [rollouts.batch()],
        None,
        TOKENIZER,
        losses.NLLLossFn(),
        config,
        log,
        CHECKPOINTER,
        initial_state("sft"),
    )
