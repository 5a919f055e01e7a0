"""Adapters whose defect shows only in rare steps, which generated steps are meant to find."""

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from adapters.contract import Job, Observation, Rank, Refused
from adapters.native.adapter import NativeAdapter
from reference.step import Step
from tests.broken import TwoLayouts


class _Miscounting(TwoLayouts, ABC):
    """Multiplies the weights of each sample by a wrong factor."""

    @abstractmethod
    def factors(self, step: Step) -> NDArray[np.float64]:
        """The factor of each sample: [N]."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observation = super().observe(job, rank)
        weights = (
            of_step * np.repeat(self.factors(step), step.response_lengths)
            for step, of_step in zip(job.steps, observation.token_weights, strict=True)
        )
        return replace(observation, token_weights=tuple(weights))


class GroupsOfThree(_Miscounting):
    """Counts a group of three samples as two."""

    def factors(self, step: Step) -> NDArray[np.float64]:
        sizes = [np.count_nonzero(step.groups == group) for group in step.groups]
        return np.where(np.equal(sizes, 3), 3 / 2, 1.0)


class EmptySecond(_Miscounting):
    """Doubles all weights of a step whose second sample has no active token."""

    def factors(self, step: Step) -> NDArray[np.float64]:
        second_is_empty = step.size > 1 and not step.active_tokens[1]
        return np.full(step.size, 2.0 if second_is_empty else 1.0)


class WrongOrRefusing(EmptySecond):
    """Gets the steps of `EmptySecond` wrong, but refuses the smallest of them."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if any(self.is_smallest(step) for step in job.steps):
            raise Refused("ValueError: too small")
        return super().observe(job, rank)

    def is_smallest(self, step: Step) -> bool:
        return step.size > 1 and not step.active_tokens[1] and step.prompt_lengths.max() == 1


class RefusingOddTotals(TwoLayouts):
    """Refuses steps with an odd number of active tokens, if there are five or more."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for tokens in (int(step.active_tokens.sum()) for step in job.steps):
            if tokens >= 5 and tokens % 2:
                raise Refused(f"ValueError: {tokens} tokens cannot be halved")
        return super().observe(job, rank)


class CrashingOnSilence(TwoLayouts):
    """Crashes on a step in which a prompt group of several samples has no active token."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for step in job.steps:
            for group in np.unique(step.groups):
                tokens = step.active_tokens[step.groups == group]
                if len(tokens) > 1 and not tokens.any():
                    raise RuntimeError("empty reduction")
        return super().observe(job, rank)


class Unsteady(TwoLayouts):
    """Wrong in the tenth job only."""

    jobs = 0

    def observe(self, job: Job, rank: Rank) -> Observation:
        self.jobs += 1
        observation = super().observe(job, rank)
        factor = 2 if self.jobs == 10 else 1
        return replace(
            observation, token_weights=tuple(factor * w for w in observation.token_weights)
        )


class Mood(IntEnum):
    """The mood of `Temperamental`, given as the prompt length of a step's first sample."""

    FINE = 1
    RAISE = 2
    EXIT = 3
    DECLINE = 4


class Temperamental(NativeAdapter):
    """Fails as its `Mood` says: on the last rank of its layout, or declines on all ranks."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        mood = Mood(job.steps[0].prompt_lengths[0])
        is_last = rank.index == rank.world_size - 1
        if mood is Mood.RAISE and is_last:
            error = RuntimeError("no kernel image")
            raise error
        if mood is Mood.EXIT and is_last:
            os._exit(7)
        if mood is Mood.DECLINE:
            raise Refused("ValueError: not today")
        return super().observe(job, rank)
