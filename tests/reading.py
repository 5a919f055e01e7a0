"""A toy framework that reads recipes, and versions of the toy with one mistake each."""

import os
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adapters.contract import Job, Layout, Observation, Rank
from adapters.contract.framework import OptionRow
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.contract.recipe import (
    Recipe,
    RecipeRefused,
    Typed,
    nested_yaml,
    refusals_of_recipes,
)
from adapters.contract.recorded import LOGGED
from adapters.native.adapter import NATIVE, NativeAdapter
from adapters.native.trainer import Trainer
from reference.aggregation import Mode
from tests.mutants.groups import BySquares
from tests.mutants.parts import MeanOfMicroBatchMeans

TOY = replace(
    NATIVE,
    title="Toy",
    modes={
        "tokens": (Mode.TOKEN_MEAN, {"reduction": "tokens"}),
        "samples": (Mode.SAMPLE_MEAN, {"reduction": "samples"}),
        "fixed": (Mode.CONSTANT, {"reduction": "fixed", "longest": lambda _: 40}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: {"clip": CONSTANTS.clip_low},
        Objective.DUAL_CLIP: {"clip": CONSTANTS.clip_low, "dual": CONSTANTS.dual_clip},
        Objective.GSPO: {"clip": CONSTANTS.clip_low, "level": "sequence"},
        Objective.GROUP_NORMALISED: {"scaled": True},
        Objective.GROUP_CENTRED: {"scaled": False},
        Objective.ENTROPY: {"bonus": 0.5},
    },
    options=(
        OptionRow(("reduction", "longest"), "the mode"),
        OptionRow(("dropped",), "tokens that are left out", "not checked yet"),
    ),
)

DEFAULTS: Mapping[str, object] = {
    "reduction": "tokens",
    "longest": 100,
    "clip": 0.2,
    "dual": None,
    "level": "token",
    "scaled": True,
    "bonus": 0.0,
    "dropped": 0.0,
    "ranks": 4,
    "rows": 2,
    "accumulated": 8,
    "group": 4,
}
"""The options of the toy, with their defaults."""


def read(adapter: NativeAdapter, typed: Typed) -> Recipe:
    """Reads words of the form ``name=value``, which override a file or an object's fields."""
    given = dict(typed.fields or nested_yaml(typed.file))
    given |= nested_yaml(typed.file)
    given |= {word.partition("=")[0]: word.partition("=")[2] for word in typed.words}
    unknown = sorted(given.keys() - DEFAULTS.keys())
    if unknown:
        raise RecipeRefused(f"unrecognized arguments: {' '.join(unknown)}")
    with refusals_of_recipes():
        values = {name: _like(DEFAULTS[name], given.get(name)) for name in DEFAULTS}
        ranks, rows, accumulated = (int(values[one]) for one in ("ranks", "rows", "accumulated"))  # type: ignore[call-overload]
    ranks = typed.ranks or ranks
    return Recipe(
        engine=adapter.engine,
        values=values,
        defaults=DEFAULTS,
        layout=Layout(dp=ranks, micro_batches=accumulated),
        samples=ranks * rows * accumulated,
        per_prompt=4,
        steps=2,
        longest=int(values["longest"]),  # type: ignore[call-overload]
    )


def read_with_objects(adapter: NativeAdapter, typed: Typed) -> Recipe:
    """Reads options, one of which has an object of a class that no other process has."""
    unknown = types.new_class("Unknown", exec_body=lambda body: body.update(__str__=lambda _: "it"))
    found = read(adapter, typed)
    return replace(found, values={**found.values, "schedule": {"of": [unknown(), 1]}})


def _like(default: object, given: object) -> object:
    """A value as the toy's parser reads it: a number if the default is a number."""
    if given is None:
        return default
    return type(default)(given) if isinstance(default, int | float) else given  # type: ignore[call-arg]


class Reading(NativeAdapter):
    """Reads recipes, and trains right."""

    framework = TOY
    recipes = "tests.reading:read"

    def layouts(self) -> Sequence[Layout]:
        return [Layout(), Layout(dp=2, micro_batches=2)]


class Miscounting(Reading):
    """Averages the means of micro-batches."""

    def trainer(self, job: Job, rank: int) -> Trainer:
        return MeanOfMicroBatchMeans(job, rank)


class Squaring(Reading):
    """Computes variances as mean squares minus squared means, which only large rewards show."""

    def trainer(self, job: Job, rank: int) -> Trainer:
        trainer = super().trainer(job, rank)
        trainer.estimator = BySquares  # type: ignore[misc]
        return trainer


class Drifting(Reading):
    """Logs a number that grows with the number of micro-batches."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        losses = seen.reported.get(Metric.POLICY_LOSS, ())
        LOGGED.note([{"drift": int(job.layout.micro_batches) * float(one or 0)} for one in losses])
        return seen


class Objecting(Reading):
    """Makes an object of an option in its parser."""

    recipes = "tests.reading:read_with_objects"


class Sharing(Reading):
    """Logs the mean of its micro-batches' shares of the loss, which are to be summed."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        cut = int(job.layout.micro_batches)
        shares = tuple(one and one / cut for one in seen.reported.get(Metric.POLICY_LOSS, ()))
        return replace(seen, reported={**seen.reported, Metric.POLICY_LOSS: shares})


class Mislogging(Reading):
    """Logs its clip fraction three times as large as it is."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        tripled = tuple(3 * value for value in seen.reported.get(Metric.CLIP_FRACTION, ()))  # type: ignore[operator]
        return replace(seen, reported={**seen.reported, Metric.CLIP_FRACTION: tripled})


class Unsteady(Reading):
    """Has a wrong gradient only the first time that a process trains anything."""

    has_trained = False

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        if Unsteady.has_trained:
            return seen
        Unsteady.has_trained = True
        return replace(seen, token_weights=tuple(2 * one for one in seen.token_weights))


class Crashing(Reading):
    """Cannot train anything."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        error = RuntimeError("no kernel image")
        raise error


def read_for_ever(_: NativeAdapter, typed: Typed) -> Recipe:
    """Writes its process id to the file that a word names, and waits."""
    Path(typed.words[0]).write_text(str(os.getpid()))
    time.sleep(300)
    raise AssertionError


class Waiting(Reading):
    """Has a parser that does not end."""

    recipes = "tests.reading:read_for_ever"
