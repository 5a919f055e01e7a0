"""Drives OpenRLHF: its actors on this rank, and its own `train_step` on batches of rollouts.

Ray's calls of actors are made directly: every rank runs the trainer, and calls its own actor.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from adapters.contract import Job, Metric, Objective, Option, Rank, Settings
from adapters.contract.objective import OF_CRITIC, PENALISING
from adapters.engines.deepspeed import forget_engines, gradients_of_steps, refusals_of_sizes
from adapters.openrlhf import importing, model
from adapters.openrlhf.framework import LEVEL, OPENRLHF
from adapters.openrlhf.importing import module
from adapters.toolkit import cuda_on_cpu, settings
from adapters.toolkit.probe import SEAM, ForwardPasses, Records, probe_capacity, token_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Gradient, Mask, Values

LEARNING_STEPS = 100  # length of the learning-rate schedule; the rate is 0


class Session:
    """A run of a job with actors of its own, and its gradients, forward passes and logs."""

    def __init__(self, batch: ProbedBatch, job: Job, rank: Rank, chosen: Settings) -> None:
        self._batch, self._job, self._rank = batch, job, rank
        self._args, self._is_corrected = importing.parsed(chosen), LEVEL in chosen
        # OpenRLHF sets this group if sequences are split, and never resets it in a process.
        module("models.ring_attn_utils").set_ring_attn_group(None)
        forget_engines()
        capacity = probe_capacity(batch.probe_size + 1)
        with cuda_on_cpu.redirected():
            made = {"actor": policy(self._args, capacity)}
            if settings.has_critic(job):
                made["critic"] = critic(self._args, capacity)
        SEAM.start(batch)
        SEAM.has_router = job.objective is Objective.ROUTER
        self._actors = {role: one.actor for role, one in made.items()}
        trained = made[settings.trained_model(job, "actor")]
        if Option.SHORT_BATCH in job.layout.options:
            # Train one micro-batch per rank, which has too few samples for a train batch.
            rows = importing.value(self._args, "--train.micro_batch_size")
            self._train(range(job.layout.dp * rows))
            trained.passes.drain()
        of_rollouts = self._train(range(len(batch.responses)))
        self.gradients = settings.last_epoch(trained.gradients.drain(), job)
        self.passes = settings.last_epoch(trained.passes.drain(), job)
        self.logs = self._logs_of_steps(of_rollouts)
        found = OPENRLHF.reported(self.logs, rollouts=of_rollouts)
        self.reported = {one: of for one, of in found.items() if one not in self._never_computed}

    def _train(self, samples: range) -> Mapping[str, Any]:
        """Train on samples as a batch of rollouts; returns the log, by OpenRLHF's names."""
        rollouts = OpenRLHFRollouts(self._batch, self._job, samples, self._is_corrected)
        with cuda_on_cpu.redirected():
            trainer = self._trainer(rollouts)
            status, _ = trainer.train_step(rollouts.experiences(), 0)
        return {**status, "kl_ctl": trainer.kl_ctl.value}

    def _logs_of_steps(self, logged: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The log of each step, given the log of a batch of rollouts.

        OpenRLHF logs one mean over all steps of a batch. If there are several steps, each is
        trained once more, as a separate batch.
        """
        if len(self._job.steps) == 1:
            return [logged]
        sizes = np.cumsum([0, *(step.size for step in self._job.steps)]).tolist()
        return [self._train(range(*ends)) for ends in pairwise(sizes)]

    def _trainer(self, rollouts: OpenRLHFRollouts) -> Any:
        """The trainer with the groups that OpenRLHF's script starts for these arguments."""
        group_of = partial(group, rollouts=rollouts, rank=self._rank.index)
        trained_critic, job = self._actors.get("critic"), self._job
        trainer = module("trainer.ppo_trainer").BasePPOTrainer(
            module("utils").get_strategy(self._args),
            group_of("actor", self._actors["actor"]),
            group_of("critic", trained_critic) if trained_critic else None,
            None,
            group_of("reference", None) if settings.has_reference(job) else None,
            None,
            SimpleNamespace(pad_token_id=0, decode=lambda *_, **__: [""]),
        )
        if settings.gives_advantages(job):
            _give_advantages(trainer.experience_maker, rollouts)
        return trainer

    @property
    def _never_computed(self) -> set[Metric]:
        """Metrics of divergences that OpenRLHF logs as 0 because the job has no such term."""
        computed = {
            Metric.KL: settings.has_kl_term(self._job),
            Metric.DIVERGENCE: self._job.objective in PENALISING,
            Metric.KL_COEFFICIENT: self._job.objective is Objective.ADAPTIVE_KL,
        }
        return {metric for metric, is_computed in computed.items() if not is_computed}


def _give_advantages(maker: Any, rollouts: OpenRLHFRollouts) -> None:
    """Replace OpenRLHF's advantages by ours, and skip its slow loop over tokens."""
    compute = maker.compute_advantages_and_returns
    maker.get_cumulative_returns = lambda rewards, *_: rewards
    maker.get_advantages_and_returns = lambda values, rewards, *_: (rewards, rewards)
    maker.compute_advantages_and_returns = lambda experiences: rollouts.given(compute(experiences))


@dataclass(frozen=True, eq=False)
class TrainedActor:
    """An actor of OpenRLHF, with the gradients of its optimizer's steps and its forward passes."""

    actor: Any
    gradients: Records[Gradient]
    passes: ForwardPasses


def policy(args: Any, capacity: int) -> TrainedActor:
    """The actor that trains the policy."""
    passes = ForwardPasses()
    made = _initialised(
        args,
        "trainer.ray.ppo_actor",
        "PolicyModelActor",
        None,
        Actor=lambda *_, **__: model.actor(capacity, passes, args),
        get_tokenizer=lambda *_, **__: None,
    )
    return _observed(made, made.actor.model, passes)


def critic(args: Any, capacity: int) -> TrainedActor:
    """The actor that trains the critic."""
    passes = ForwardPasses()
    made = _initialised(
        args,
        "trainer.ray.ppo_critic",
        "CriticModelActor",
        get_llm_for_sequence_regression=lambda *_, **__: model.critic(capacity, passes, args),
    )
    return _observed(made, made.critic, passes)


def _initialised(args: Any, path: str, name: str, *more: Any, **replaced: Any) -> Any:
    """An initialised actor; Ray would start a process with an actor of the same class.

    Each actor gets its own strategy object, because Ray would send each a copy.
    """
    home = module(path)
    made = object.__new__(getattr(home, name).__ray_metadata__.modified_class)
    with mock.patch.multiple(home, **replaced), refusals_of_sizes():
        strategy = module("utils").get_strategy(args)
        made.init_model_from_pretrained(strategy, "probe", LEARNING_STEPS, *more)
    return made


def _observed(actor: Any, engine: Any, passes: ForwardPasses) -> TrainedActor:
    [probe] = [one for one in engine.module.parameters() if one.requires_grad]
    return TrainedActor(actor, gradients_of_steps(engine, probe), passes)


@dataclass(frozen=True, eq=False)
class Handle:
    """A stub of Ray's handle of an actor; ``actor`` is None unless it is trained on this rank.

    Every rank runs the trainer, so all ranks call an actor's collectives at the same time.
    """

    role: str
    actor: Any
    rollouts: OpenRLHFRollouts

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, method))

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        if method == "execute_batch" and args[0] == "forward":
            return self.rollouts.answers(self.role, args[1])
        if self.actor is None:
            return {}
        return getattr(self.actor, method)(*deepcopy(args), **options)


def group(role: str, actor: Any, rollouts: OpenRLHFRollouts, rank: int) -> Any:
    """OpenRLHF's group of all ranks' actors, which calls only this rank's actor."""
    layout = rollouts.job.layout
    made = object.__new__(module("trainer.ray.launcher").RayActorGroup)
    made.duplicate_actors = layout.cp
    made._actor_handlers = [
        Handle(role, actor if index == rank else None, rollouts)
        for index in range(layout.world_size)
    ]
    if len(rollouts.job.steps) > 1:
        made.async_run_method_batch = partial(_call_in_steps, made.async_run_method_batch, rollouts)
    return made


def _call_in_steps(call: Any, rollouts: OpenRLHFRollouts, method_name: str, **data: Any) -> Any:
    """Call a method of all actors, distributing experiences step by step."""
    if method_name == "append":
        data = {"experience": _dealt(data["experience"], rollouts)}
    return call(method_name, **data)


def _dealt(experiences: Sequence[Any], rollouts: OpenRLHFRollouts) -> list[Any]:
    """The experiences, in an order that gives each rank its part of every step.

    Each rank cuts its own contiguous part of a batch of rollouts into train batches, so each part
    must hold samples of every step.
    """
    functions, layout = module("trainer.ppo_utils.experience"), rollouts.job.layout
    rows = [row for one in experiences for row in functions.split_experience_batch(one)]
    rows.sort(key=lambda row: int(row.sequences[0]))
    steps = len(rows) // rollouts.job.steps[0].size
    parts = np.arange(len(rows)).reshape(steps, layout.dp, -1).swapaxes(0, 1)
    return [functions.make_experience_batch([rows[index]]) for index in parts.ravel()]


@dataclass(frozen=True, eq=False)
class OpenRLHFRollouts:
    """The ``samples`` of a batch, by index, in the form of a rollout engine's responses."""

    batch: ProbedBatch
    job: Job
    samples: range
    are_corrected: bool
    """Whether the rollout policy's log-probabilities are compared with the old policy's."""

    def experiences(self) -> list[Any]:
        """One experience per sample, made by OpenRLHF's generator from an engine's response."""
        generator_class = module("trainer.ppo_utils.samples_generator").SamplesGenerator
        generator = object.__new__(generator_class)
        return [
            generator._process_response_into_experience(
                self._response(index), max_len=self.batch.probe_size
            )
            for index in self.samples
        ]

    def answers(self, role: str, data: dict[str, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """A model's outputs for sequences; 0 for inactive tokens, as in OpenRLHF."""
        values = {
            "actor": self.batch.old_log_probs,
            "reference": self.batch.reference_log_probs,
            "critic": settings.given_values(self.batch),
        }
        pairs = zip(data["sequences"], data["action_mask"], strict=True)
        return [self.laid_out(values[role], ids) * mask.float() for ids, mask in pairs]

    def laid_out(self, values: Sequence[Values], sequences: torch.Tensor) -> torch.Tensor:
        """Values of response tokens at the positions predicting them, else 0: [rows, width - 1]."""
        return token_table(self.batch, values)[sequences[:, 1:]]

    def given(self, experiences: Sequence[Any]) -> Sequence[Any]:
        """The experiences with our advantages and, for a critic, our returns."""
        for experience in experiences:
            experience.advantages = self.laid_out(self.batch.advantages, experience.sequences)
            if self.job.objective in OF_CRITIC:
                returns = settings.doubled_returns(self.batch)
                experience.returns = self.laid_out(returns, experience.sequences)
        return experiences

    def _response(self, index: int) -> dict[str, Any]:
        """A sample as a rollout engine returns it: active tokens are ranges of actions."""
        prompt = self.batch.prompts[index]
        active = np.concatenate([np.zeros(len(prompt), bool), self.batch.original_masks[index]])
        log_probs = np.concatenate([np.zeros(len(prompt)), self.batch.rollout_log_probs[index]])
        return {
            "prompt": str(self.batch.groups[index]),
            "label": "",
            "observation_tokens": self.batch.sequences[index].tolist(),
            "action_ranges": _ranges(active),
            "rollout_log_probs": log_probs.tolist() if self.are_corrected else None,
            "reward": float(self.batch.rewards[index]),
        }


def _ranges(active: Mask) -> list[tuple[int, int]]:
    """The first index and the end of each run of active tokens."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
