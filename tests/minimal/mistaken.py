"""Right adapters for trainers with a mistake, and for versions that lack a layout or a mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from adapters.contract import Description, Job, Layout, Observation, Rank, Unsupported
from adapters.contract.job import Setting
from adapters.contract.objective import Objective
from adapters.native.adapter import NativeAdapter
from reference.aggregation import Mode
from tests.minimal.right import MinimalAdapter, Trainer


class TrainerThatCountsASample(Trainer):
    """Counts one sample too many in one of its modes."""

    def token_weights(self, mask: torch.Tensor, mode: Mode) -> torch.Tensor:
        weights = super().token_weights(mask, mode)
        return weights if mode is Mode.TOKEN_MEAN else weights * len(mask) / (len(mask) + 1)


class DrivingAMistake(MinimalAdapter):
    """Drives a trainer with a mistake, rightly."""

    trainer = TrainerThatCountsASample


class ListingALayoutOfOtherVersions(MinimalAdapter):
    """Lists a layout of packed rows, which this version does not support."""

    def layouts(self) -> Sequence[Layout]:
        return [Layout(format="thd"), *super().layouts()]

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.layout.format == "thd":
            raise Unsupported("no format thd")
        return super().observe(job, rank)


class HavingALossOfOneMode(NativeAdapter):
    """Has CISPO in only one mode, which is not the first."""

    def layouts(self) -> Sequence[Layout]:
        return [Layout(micro_batches=2)]

    def describe(self) -> Description:
        objectives = frozenset({Objective.POLICY, Objective.OFF_POLICY, Objective.CISPO})
        found = super().describe()
        others = {k: v for k, v in found.configurations.items() if k is not Setting.DISTILLATION}
        return replace(found, objectives=objectives, metrics=frozenset(), configurations=others)

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.objective is Objective.CISPO and job.aggregation.mode is not Mode.TOKEN_MEAN:
            raise Unsupported("CISPO is by tokens")
        return super().observe(job, rank)


class HavingTokenMeanAlone(NativeAdapter):
    """Computes advantages, and has only one mode, with a name of its own."""

    mode_names: ClassVar[Mapping[str, str]] = {"default": "token_mean"}

    def describe(self) -> Description:
        return replace(super().describe(), modes=frozenset({Mode.TOKEN_MEAN}))


class NamingNoMode(HavingTokenMeanAlone):
    """Has no names of modes, so its modes are known only when the framework is loaded."""

    mode_names: ClassVar[Mapping[str, str]] = {}


class ComputingNoAdvantages(NamingNoMode):
    """Does not compute advantages."""

    def describe(self) -> Description:
        return replace(super().describe(), objectives=frozenset({Objective.POLICY}))
