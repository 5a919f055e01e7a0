"""The adapter of `tests.drifting.framework`: each failure is a function, which a job calls."""

import sys
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
    """A stub of what loads a model."""


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


OURS = {
    reads_what_the_stub_lacks: "AttributeError: 'Bridge' object has no attribute"
    " 'TransformerConfigClass', at tests/drifting/framework.py:30 (read_new_attribute)",
    reads_what_the_namespace_lacks: "AttributeError: 'types.SimpleNamespace' object has no"
    " attribute 'TransformerConfigClass', at tests/drifting/framework.py:30 (read_new_attribute)",
    passes_what_the_callback_does_not_take: "TypeError:"
    " passes_what_the_callback_does_not_take.<locals>.<lambda>() got an unexpected keyword argument"
    " 'losses', at tests/drifting/framework.py:35 (call_with_losses)",
    passes_what_the_patch_does_not_take: "TypeError:"
    " passes_what_the_patch_does_not_take.<locals>.<lambda>() got an unexpected keyword argument"
    " 'losses', at tests/drifting/framework.py:92 (call_setup)",
    passes_what_the_model_does_not_take: "TypeError: Model.forward() got an unexpected keyword"
    " argument 'attention_mask', at tests/drifting/framework.py:40 (call_module)",
    lacks_the_constructor: "AttributeError: 'Actor' object has no attribute 'mesh', at"
    " tests/drifting/framework.py:21 (Actor.size)",
    sets_an_option_that_is_gone: "omegaconf.errors.ConfigKeyError: Key 'loss' is not in struct, at"
    " tests/drifting/adapter.py (sets_an_option_that_is_gone)",
    reads_a_function_that_is_gone: "AttributeError: module 'tests.drifting.framework' has no"
    " attribute 'compute_loss', at tests/drifting/adapter.py (reads_a_function_that_is_gone)",
    fails_when_called_back: "IndexError: list index out of range, at tests/drifting/adapter.py"
    " (fails_when_called_back.<locals>.<lambda>)",
    has_no_package: "ModuleNotFoundError: No module named 'werkzeug_of_a_later_release', at"
    " tests/drifting/framework.py:45 (import_new_package)",
    has_no_extra: "ModuleNotFoundError: No module named 'megatron'; pip install"
    " 'rl-loss-conformance[megatron]', at tests/drifting/framework.py:97 (import_megatron)",
    has_an_old_python: "SyntaxError: invalid syntax (newer.py, line 1); this is Python"
    f" {sys.version_info.major}.{sys.version_info.minor}, at tests/drifting/framework.py:102"
    " (read_newer_python)",
}
"""Failures that are the adapter's, each with what a user reads."""

REFUSALS = {
    is_refused: "ValueError: seq-mean is not supported with per-token losses;, at"
    " tests/drifting/framework.py:55 (refuse)",
    is_refused_by_an_assert: "AssertionError: Sequence at index 0 is fully masked., at"
    " tests/drifting/framework.py:62 (insist)",
}
"""Failures that the framework means."""

CRASHES = {
    lacks_a_module_of_its_own: "ModuleNotFoundError: No module named"
    " 'tests.drifting.framework.moved'; 'tests.drifting.framework' is not a package, at"
    " tests/drifting/framework.py:50 (import_moved_module)",
    breaks_an_invariant: "AssertionError: 0 1, at tests/drifting/framework.py:67"
    " (insist_without_words)",
    lacks_a_metric: "KeyError: 'global_valid_toks', at tests/drifting/framework.py:72 (look_up)",
    lacks_an_attribute_of_its_own: "AttributeError: 'Actor' object has no attribute 'local_rank',"
    " at tests/drifting/framework.py:25 (Actor.rank)",
    calls_torch_wrongly: "RuntimeError: zero-dimensional tensor (at position 0) cannot be"
    " concatenated, at tests/drifting/framework.py:77 (concatenate)",
}
"""Failures that are the framework's."""


class DriftingAdapter(NativeAdapter):
    """Drives the framework of before; every job fails in its own way, or some do."""

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
    """Only the steps of `token_mean` need what is new."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.aggregation.mode != "token_mean":
            return NativeAdapter.observe(self, job, rank)
        return super().observe(job, rank)


class Crashing(DriftingAdapter):
    failure = calls_torch_wrongly


class Refusing(DriftingAdapter):
    failure = is_refused


class RefusingOnOneRank(Refusing):
    """The other ranks wait for it."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if rank.index:
            return NativeAdapter.observe(self, job, rank)
        return super().observe(job, rank)


class RefusingAfterAMicroBatch(Refusing):
    """Both ranks have trained a micro-batch, and the error is over the second."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for ids in torch.arange(4).split(2):
            ForwardPasses().note(ids)
        return super().observe(job, rank)


class RefusingTooLate(Refusing):
    """The other ranks have made the step."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return Observation(token_weights=()) if rank.index else super().observe(job, rank)
