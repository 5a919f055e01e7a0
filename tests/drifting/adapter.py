"""The adapter of `tests.drifting.framework`; jobs call functions that each fail in one way."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import torch
from omegaconf import OmegaConf

from adapters.contract import Description, Job, Observation, Rank
from adapters.native.adapter import NativeAdapter
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ForwardPasses
from tests.drifting import framework


class Bridge:
    """A stub of a bridge, which loads a model."""


class Model(torch.nn.Module):
    """A stub of a model."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids


def reads_what_the_stub_lacks() -> object:
    return framework.read_new_attribute(Bridge())


def reads_what_the_namespace_lacks() -> object:
    return framework.read_new_attribute(SimpleNamespace())


def passes_what_the_callback_does_not_take() -> object:
    return framework.call_with_losses(lambda loss: loss)


def passes_what_the_patch_does_not_take() -> object:
    with mock.patch.object(framework, "setup", lambda loss: loss):
        return framework.call_setup()


def passes_what_the_model_does_not_take() -> object:
    return framework.call_module(Model())


def lacks_the_constructor() -> object:
    return object.__new__(framework.Actor).size()


def sets_an_option_that_is_gone() -> object:
    options = OmegaConf.create({"old": 1})
    OmegaConf.set_struct(options, value=True)
    return OmegaConf.update(options, "loss.aggregation", "token_mean")


def reads_a_function_that_is_gone() -> object:
    return framework.compute_loss  # type: ignore[attr-defined]


def fails_when_called_back() -> object:
    return framework.call(lambda: [][0])


def has_no_package() -> object:
    return framework.import_new_package()


def has_no_extra() -> object:
    return framework.import_megatron()


def has_an_old_python() -> object:
    return framework.read_newer_python()


def is_refused() -> object:
    return framework.refuse("seq-mean")


def is_refused_by_an_assert() -> object:
    return framework.insist(0)


def breaks_an_invariant() -> object:
    return framework.insist_without_words(0)


def lacks_a_metric() -> object:
    return framework.look_up({})


def lacks_a_module_of_its_own() -> object:
    return framework.import_moved_module()


def lacks_an_attribute_of_its_own() -> object:
    return object.__new__(framework.Actor).rank()


def calls_torch_wrongly() -> object:
    with cuda_on_cpu.redirected():
        return framework.concatenate()


class DriftingAdapter(NativeAdapter):
    """Drives an older version of the framework; every job fails in the way ``failure``."""

    name = "drifting"
    package = "tests.drifting.framework"
    versions = "drifting 1.0 to 1.2"
    failure: ClassVar[Callable[[], object]] = reads_what_the_stub_lacks

    def describe(self) -> Description:
        return replace(super().describe(), promised={})

    def observe(self, job: Job, rank: Rank) -> Observation:
        type(self).failure()
        return super().observe(job, rank)


class DriftingInOneMode(DriftingAdapter):
    """Fails only in jobs of `token_mean`."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.aggregation.mode != "token_mean":
            return NativeAdapter.observe(self, job, rank)
        return super().observe(job, rank)


class Crashing(DriftingAdapter):
    failure = calls_torch_wrongly


class Refusing(DriftingAdapter):
    failure = is_refused


class RefusingOnOneRank(Refusing):
    """Refuses on rank 0, for which the other ranks wait."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if rank.index:
            return NativeAdapter.observe(self, job, rank)
        return super().observe(job, rank)


class RefusingAfterAMicroBatch(Refusing):
    """Refuses the second micro-batch of a step, after all ranks have trained the first."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for ids in torch.arange(4).split(2):
            ForwardPasses().note(ids)
        return super().observe(job, rank)


class RefusingTooLate(Refusing):
    """Refuses on rank 0 after the other ranks have made the step."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return Observation(token_weights=()) if rank.index else super().observe(job, rank)
