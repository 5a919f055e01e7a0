"""One step of a user's loop: samples, advantages and a model go in, a gradient comes out."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from adapters.contract import Observation
from adapters.contract.batch.altered import painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric
from adapters.toolkit.probe import CERTAIN_LOGIT
from conformance.findings.errors import WrongUseError
from conformance.own_trainer.estimators import ESTIMATORS, rewards_over_advantages
from conformance.own_trainer.jobs import METRIC_SPECS
from conformance.own_trainer.model import StandIn
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import nn

    from adapters.contract import Job

NEVER = 2.0**13
"""An old log-probability so large that a token's ratio, and thus its loss, is exactly 0."""

UNITS = {"token": AdvantageUnit.TOKEN, "sample": AdvantageUnit.SAMPLE}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A prompt with its response, on the CPU.

    ``prompt`` is int64 [P]; ``response`` int64 [R], ``mask`` bool [R], and the log-probabilities
    of the old and of the reference policy are float32 [R]. Token ids begin at 1; 0 is padding.
    ``group`` identifies the prompt.
    """

    prompt: torch.Tensor
    response: torch.Tensor
    mask: torch.Tensor
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    group: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """The observation of one step on one rank."""

    gradient: NDArray[np.float32] | None
    dtype: str
    passes: list[NDArray[np.int64]]
    logged: dict[Metric, float]
    unit: AdvantageUnit
    misuse: str | None
    """The change that the user has to make before anything can be said about the trainer, if
    any."""


class Step:
    """The data of one optimizer step for a trainer on one rank.

    ``samples`` are those of this rank, to be cut into ``micro_batches`` of equal numbers of
    samples; ``batch`` has the samples of all ``dp`` ranks. ``watched`` is a context for the time in
    which a step is watched. ``estimator`` is given if the trainer computes advantages from
    ``rewards``.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        rank: int,
        unit: AdvantageUnit,
        watched: AbstractContextManager[Any],
        estimator: str | None = None,
    ) -> None:
        self.micro_batches, self.dp, self.rank = int(job.layout.micro_batches), job.layout.dp, rank
        with painting(job.painted):
            self._probed = ProbedBatch.of(job)
        self._advantages = self._probed.raw_advantages
        ends = np.cumsum([0, *(step.size for step in job.steps)])
        self._of_step = slice(int(ends[index]), int(ends[index + 1]))
        self._is_painted = job.painted is not None
        self._painted = job.painted if unit is AdvantageUnit.SAMPLE else None
        self._unit: AdvantageUnit | None = None
        self._stand_in: StandIn | None = None
        self._gradients: list[NDArray[np.float32]] = []
        self._others_stepped = self._copies_stepped = False
        self._logged: dict[Metric, float] = {}
        self._watched = watched
        self._estimator = estimator
        self.batch = [self._sample(i) for i in range(self._of_step.start, self._of_step.stop)]
        size = len(self.batch) // self.dp
        self.samples = self.batch[rank * size : (rank + 1) * size]

    def _sample(self, index: int) -> Sample:
        probed = self._probed
        log_probs = torch.from_numpy(probed.log_probs[index]).float() - CERTAIN_LOGIT
        old = log_probs.clone()
        if self._painted is not None and self._painted[0] == index:
            others = torch.arange(len(old)) != self._painted[1]
            old[others] = NEVER
        return Sample(
            prompt=torch.from_numpy(probed.prompts[index].copy()),
            response=torch.from_numpy(probed.responses[index].copy()),
            mask=torch.from_numpy(probed.masks[index].copy()),
            old_log_probs=old,
            reference_log_probs=log_probs,
            group=int(probed.groups[index]),
        )

    def model(self, returns: str = "logits", vocabulary: int | None = None) -> nn.Module:
        """The model to train: it maps token ids, int64 [*, T], to logits, [*, T, vocabulary].

        ``returns`` is one of ``logits``, ``output`` (with `.logits`), ``tuple``, ``dict``,
        ``hugging_face`` (a `transformers.PreTrainedModel`), or ``log_probs``, [*, T - 1].

        Raises:
            WrongUseError: the form is unknown, or the vocabulary too small.
        """
        self._stand_in = StandIn(returns, vocabulary, self._probed.probe_size)
        return self._stand_in.module

    def advantages(
        self, per: str = "token", samples: Sequence[Sample] | None = None
    ) -> list[torch.Tensor] | torch.Tensor:
        """The advantages of samples, this rank's by default: float32 [R] for each, or [samples].

        Raises:
            WrongUseError: ``per`` is neither ``token`` nor ``sample``, or an estimator is stated.
        """
        if self._estimator is not None:
            raise WrongUseError(
                f"the trainer has to compute its advantages itself, by {self._estimator}",
                "give it step.rewards, or leave advantages= out",
            )
        if per not in UNITS:
            raise WrongUseError(f"advantages per {per!r} are unknown", "say token or sample")
        self._unit = UNITS[per]
        every = self._advantages_per(self._unit)
        chosen = self.samples if samples is None else samples
        of_tokens = [every[self.batch.index(sample)] for sample in chosen]
        if self._unit is AdvantageUnit.TOKEN:
            return [torch.from_numpy(one.copy()).float() for one in of_tokens]
        return torch.tensor([float(max(one, key=abs)) for one in of_tokens])

    @property
    def rewards(self) -> torch.Tensor:
        """The rewards of this rank's samples, [samples], for trainers that compute advantages.

        Raises:
            WrongUseError: no estimator was stated.
        """
        if self._estimator is None:
            raise WrongUseError(
                "the estimator that makes advantages from rewards is not stated",
                f"state it, as loss_conformance(advantages={next(iter(ESTIMATORS))!r})",
            )
        self._unit = AdvantageUnit.SAMPLE
        rewards = self._rewards
        return torch.from_numpy(rewards[self.batch.index(self.samples[0]) :][: len(self.samples)])

    @property
    def _rewards(self) -> NDArray[np.float32]:
        """The rewards of all samples, [N]: the numbers that are advantages in other checks."""
        of_samples = self._advantages_per(AdvantageUnit.SAMPLE)
        return np.array([max(one, key=abs) for one in of_samples], np.float32)

    def _as_given(self, gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        """The gradient that the step would have if rewards had been the advantages."""
        if self._estimator is None:
            return gradient
        rewards = self._rewards.astype(np.float64)
        groups = np.array([sample.group for sample in self.batch])
        factors = rewards_over_advantages(self._estimator, rewards, groups)
        for sample, factor in zip(self.batch, factors, strict=True):
            gradient[sample.response.numpy()] *= factor
        return gradient

    def _advantages_per(self, unit: AdvantageUnit) -> Sequence[NDArray[np.float64]]:
        if unit is AdvantageUnit.SAMPLE and not self._is_painted:
            probed = ProbedBatch(self._probed.steps, advantage_unit=unit)
            return probed.raw_advantages[self._of_step]
        return self._advantages[self._of_step]

    @contextmanager
    def watch(self, optimizer: Any = None) -> Iterator[None]:
        """Read the gradient at each optimizer step in the context.

        The gradient is read right before the optimizer uses it, after clipping and unscaling.
        Without an ``optimizer``, as for a trainer that makes its own, every optimizer is watched.

        Raises:
            WrongUseError: ``optimizer`` is not a torch optimizer and wraps none.
        """
        watched = optimizer
        while hasattr(watched, "optimizer"):  # Accelerate and DeepSpeed wrap optimizers
            watched = watched.optimizer
        if not isinstance(watched, torch.optim.Optimizer | None):
            raise WrongUseError(
                f"step.watch() was given a {type(watched).__name__}, no optimizer of torch",
                "give it the optimizer or engine that the trainer steps; trainers in JAX need an"
                " adapter, as tunix has",
            )

        def read(stepping: torch.optim.Optimizer, *_: Any) -> None:
            if watched is not None and stepping is not watched:
                self._others_stepped = True
                return
            stand_in = self._stand_in
            if stand_in is None:
                return
            self._copies_stepped |= not stand_in.is_held(stepping)
            gradient = stand_in.gradient(stepping)
            if gradient is not None:
                self._gradients.append(self._as_given(gradient))

        hook = register_optimizer_step_pre_hook(read)
        try:
            with self._watched:
                yield
        finally:
            hook.remove()

    def logged(self, **numbers: float) -> None:
        """Record the numbers that the trainer logs for the step: ``policy_loss``.

        Raises:
            WrongUseError: a number has another name.
        """
        for name, number in numbers.items():
            if name not in [*METRIC_SPECS] or self._estimator is not None:
                taken = ", ".join(map(str, METRIC_SPECS)) if self._estimator is None else "none"
                raise WrongUseError(
                    f"{name} is not among the numbers that are compared",
                    f"leave it out of step.logged(), which takes {taken}",
                )
            self._logged[Metric(name)] = float(number)

    def shown(self) -> Shown:
        """The observation of the step on this rank."""
        stand_in, misuse = self._stand_in, self._misuse()
        return Shown(
            gradient=self._gradients[0] if self._gradients else None,
            dtype="float32" if stand_in is None else str(stand_in.probe.dtype).partition(".")[2],
            passes=[] if stand_in is None else [*stand_in.passes],
            logged=self._logged,
            unit=self._unit or AdvantageUnit.TOKEN,
            misuse=misuse,
        )

    def _misuse(self) -> str | None:
        """The change to make if the step was not used as documented; None if it was."""
        stand_in = self._stand_in
        if stand_in is None:
            return "the step's model was not made; build the trainer around step.model()"
        if not stand_in.passes:
            return (
                "the step's model made no forward pass with gradients; let the trainer train"
                " step.model(), and not a model of its own"
            )
        if stand_in.is_frozen:
            return (
                "the step's model is frozen, as peft freezes what it adapts; leave adapters out of"
                " the test: they change no token's weight"
            )
        if self._unit is None and self._estimator is not None:
            return "the step's rewards were not asked for; train on step.rewards"
        if self._unit is None:
            return "the step's advantages were not asked for; train on step.advantages(per=…)"
        if len(self._gradients) > 1:
            return (
                f"the optimizer stepped {len(self._gradients)} times in one step; accumulate all"
                " step.micro_batches into one optimizer step, and train one epoch"
            )
        if not self._gradients and self._others_stepped:
            return (
                "an optimizer other than the watched one stepped; give step.watch() the optimizer"
                " that the trainer steps, or nothing"
            )
        if not self._gradients and self._copies_stepped:
            return (
                "the optimizer that stepped does not hold the model's parameters, but may hold"
                " copies of them, as in mixed precision; turn mixed precision off for the test"
                " (DeepSpeed's is read with ZeRO 1 to 3), or look at a real step with"
                " conformance.watch"
            )
        if not self._gradients:
            return (
                "no optimizer step on the model's parameters was seen; make the train step inside"
                " `with step.watch(optimizer)`, with an optimizer of step.model().parameters()"
            )
        return None


def observation(batch: ProbedBatch, shown: Sequence[Shown]) -> Observation:
    """The observation of all steps of a job on one rank."""
    gradients = [one.gradient for one in shown]
    passes = [each for one in shown for each in one.passes]
    reported = {
        metric: tuple(one.logged.get(metric) for one in shown) for metric in shown[0].logged
    }
    return Observation(
        token_weights=batch.weights_of_steps(gradients),
        forward_passes=batch.forward_passes(passes),
        rows=batch.rows(passes),
        reported=reported,
    )
