"""NeMo-RL's trainers, run on every rank: from rollouts to the optimizer steps and the log."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract import Framework, Job, Objective, Rank
from adapters.contract.objective import FROM_REWARDS
from adapters.nemo_rl.importing import configured, initial_state, module
from adapters.nemo_rl.worker import TOKENIZER, made_policy, made_worker
from adapters.toolkit.calls import nothing
from adapters.toolkit.probe import CERTAIN_LOGIT, probe_capacity, token_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Gradient, Integers, Values
    from reference.step import Step

    Message = dict[str, Any]

GENERATION: Any = SimpleNamespace(
    prepare_for_generation=lambda **_: True,
    finish_generation=lambda **_: True,
    clear_logger_metrics=lambda: None,
    get_logger_metrics=dict,
)
"""A stub of the rollout engine: all rollouts are given."""

OF_PROMPTS = ("extract_initial_prompt_messages", "_extract_prompt_only_messages")
"""NeMo-RL's function that extracts prompts, by its name now and before May 26, 2026."""

CHECKPOINTER = SimpleNamespace(shutdown=lambda: None)


def _logger(trained: dict[str, Any]) -> Any:
    """A stub of NeMo-RL's logger that keeps the metrics of training steps, and writes nothing."""

    def log_metrics(metrics: Mapping[str, Any], step: int, prefix: str = "", **_: Any) -> None:
        if prefix == "train":
            trained.update(metrics)

    unused = ("log_histogram", "log_batched_dict_as_jsonl", "log_plot_token_mult_prob_error")
    return SimpleNamespace(log_metrics=log_metrics, **dict.fromkeys(unused, nothing))


class NemoRLTraining:
    """Trains the steps of a job, and keeps their gradients, forward passes and logs.

    Each optimizer step is a step of the trainer. If NeMo-RL computes advantages, all steps are cut
    out of one batch of rollouts.
    """

    def __init__(self, batch: ProbedBatch, job: Job, framework: Framework, rank: Rank) -> None:
        self._batch, self._job, self._framework, self._rank = batch, job, framework, rank
        self.gradients: list[Gradient] = []
        self.passes: list[Integers] = []
        self.logs = [self._train(steps, samples) for steps, samples in self._batches()]

    def _batches(self) -> Iterator[tuple[Sequence[Step], range]]:
        """The optimizer steps and the sample indices of each batch of rollouts."""
        steps, first = self._job.steps, 0
        for one in [steps] if self._job.objective in FROM_REWARDS else [(step,) for step in steps]:
            size = sum(step.size for step in one)
            yield one, range(first, first + size)
            first += size

    def _train(self, steps: Sequence[Step], samples: range) -> Mapping[str, Any]:
        """Run a step of the trainer; returns its log."""
        rollouts, trained = NemoRLRollouts(self._batch, samples), dict[str, Any]()
        is_sft = self._job.objective is Objective.SFT
        settings = self._framework.settings(replace(self._job, steps=tuple(steps)))
        config = configured(settings, sft=is_sft)
        capacity = probe_capacity(self._batch.probe_size)
        worker = made_worker(config.policy, capacity, self._rank)
        policy = self._policy(config, worker, rollouts)
        (_fine_tune if is_sft else self._run_grpo)(policy, config, rollouts, _logger(trained))
        self.gradients += worker.gradients.drain()
        self.passes += worker.passes.drain()
        return trained

    def _policy(self, config: Any, worker: Any, rollouts: NemoRLRollouts) -> Any:
        """NeMo-RL's policy, with the job's log-probabilities instead of forward passes."""
        policy = made_policy(config.policy, worker, self._rank)

        def given(name: str, values: Sequence[Values]) -> Any:
            of_tokens = rollouts.values
            return lambda data, **_: {name: of_tokens(values, data["input_ids"]) - CERTAIN_LOGIT}

        batch = self._batch
        policy.prepare_for_lp_inference = policy.prepare_for_training = lambda: None
        policy.get_logprobs = given("logprobs", batch.old_log_probs)
        policy.get_reference_policy_logprobs = given(
            "reference_logprobs", batch.reference_log_probs
        )
        return policy

    def _run_grpo(self, policy: Any, config: Any, rollouts: NemoRLRollouts, log: Any) -> None:
        """Train on the batch as rollouts of one step of `grpo_train`."""
        trainer, losses = module("algorithms.grpo"), module("algorithms.loss")
        rolled_out = rollouts.batch(), {"mean_gen_tokens_per_sample": 1.0}
        replaced: dict[str, Any] = {
            "refit_policy_generation": lambda *_, **__: {},
            "run_multi_turn_rollout": lambda **_: rolled_out,
            "MemoryTracker": lambda: SimpleNamespace(snapshot_start_of_stage=lambda *_: None),
        }
        if self._job.objective in FROM_REWARDS:
            replaced[next(name for name in OF_PROMPTS if hasattr(trainer, name))] = rollouts.prompts
        else:
            replaced["_create_advantage_estimator"] = lambda _: rollouts
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


def _fine_tune(policy: Any, config: Any, rollouts: NemoRLRollouts, log: Any) -> None:
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


class NemoRLRollouts:
    """The samples of given optimizer steps, as NeMo-RL's environments return them.

    A sample is a log of messages with one reward. Methods also return values of the samples'
    tokens; where advantages are given, this class replaces NeMo-RL's advantage estimator.
    """

    def __init__(self, batch: ProbedBatch, samples: range) -> None:
        self._batch, self._samples = batch, samples

    def batch(self) -> Any:
        """The batch of samples, with their responses.

        A sample without active tokens has a loss multiplier of 0, so that NeMo-RL does not train
        it; all tokens of its response count as the policy's own.
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
        """A one-token prompt for each sample: the id of its group."""
        groups = self._batch.groups[self._samples.start : self._samples.stop]
        return [[_message("user", np.array([group]))] for group in groups]

    def compute_advantage(
        self, *, mask: torch.Tensor, repeated_batch: Any, **_: object
    ) -> torch.Tensor:
        """The job's advantages, as an estimator of NeMo-RL returns them: [samples, width]."""
        logs, width = repeated_batch["message_log"], mask.shape[1]
        ids = [torch.cat([message["token_ids"] for message in log]) for log in logs]
        padded = [torch.nn.functional.pad(one, (0, width - len(one))) for one in ids]
        return self.values(self._batch.advantages, torch.stack(padded))

    def values(self, values: Sequence[Values], ids: torch.Tensor) -> torch.Tensor:
        """Values of response tokens at their ids, and 0 at other ids: [*ids]."""
        return token_table(self._batch, values)[ids]

    def _prompt(self, sample: int) -> list[Message]:
        """The prompt as a conversation with an earlier turn of the policy, which is not trained.

        SFT trains all turns of the policy, so its prompt is a single message.
        """
        ids = self._batch.prompts[sample]
        if self._batch.objective is Objective.SFT:
            return [_message("user", ids)]
        turns = zip(("user", "assistant", "user"), np.split(ids, (1, len(ids) - 1)), strict=True)
        return [_message(role, turn) for role, turn in turns if len(turn)]

    def _messages(self, sample: int) -> list[Message]:
        """The prompt, then turns of the policy and its environment, which the mask separates."""
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


def _message(role: str, ids: Integers) -> Message:
    return {"role": role, "content": "", "token_ids": torch.from_numpy(ids.copy())}
