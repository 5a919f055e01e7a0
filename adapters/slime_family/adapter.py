"""The description of a loaded version of slime or miles, on every engine.

A version states a rule of configurations or logs if its own code enforces it, recognised by the
identifiers in that code, or if an option's documentation says so.
"""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Assumed, Depth, Documented, code_location
from adapters.contract.objective import OF_CRITIC, Objective
from adapters.contract.tables import read_rows
from adapters.slime_family import importing
from adapters.slime_family.framework import (
    DIVISOR,
    FAMILY,
    MODE,
    OLDER_DIVISOR,
    TABLES,
    icepop_record,
    version_record,
)
from adapters.toolkit.imports import found
from adapters.toolkit.settings import CommandLine
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    DenominatorMask,
    EstimatorConventions,
    Lone,
    Rejected,
    SampleUnit,
    TokenSet,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from adapters.contract import Convention, Description, Framework, Layout


class LineageAdapter(Adapter):
    """Drives a framework of the slime lineage on any engine."""

    package: ClassVar[str]
    dependencies = ("megatron-core", "ray", "transformers")
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    recipes = "adapters.slime_family.recipe:read"
    framework: ClassVar[Framework] = FAMILY

    depths: ClassVar[frozenset[Depth]] = frozenset(Depth)
    losses: ClassVar[tuple[str, ...]]  # the paths that the module of losses has had
    # the paths that the module of corrections for another rollout policy has had
    corrections: ClassVar[tuple[str, ...]]
    keepers: ClassVar[tuple[str, ...]]
    """Functions that may enforce rules of configurations and logs, in the order of their calls."""

    @abstractmethod
    def rollout_field(self) -> str | None:
        """The field of a sample object that names its rollout; None if rollouts have no name."""

    @abstractmethod
    def declared(self) -> Mapping[str, Convention]:
        """The conventions that the modes leave open."""

    @abstractmethod
    def validated(self, args: Any, layout: Layout) -> None:
        """Run the framework's own validation, for training without rollouts."""

    @abstractmethod
    def bare_parser(self) -> argparse.ArgumentParser:
        """A parser of the options that are not the framework's own."""

    def module(self, *paths: str) -> Any:
        """A module of the framework, by the paths that it has had, newest first."""
        return importing.home(self.package, *paths)

    def found(self, path: str) -> Any:
        """A module, or a member such as ``utils.data:Sample``; None if a version lacks it."""
        return found(f"{self.package}.{path}")

    @cached_property
    def parser(self) -> argparse.ArgumentParser:
        """The framework's argument parser; cached, as making it takes a tenth of a step's time."""
        parser = self.bare_parser()
        self._provider()(parser)
        return parser

    @cached_property
    def record(self) -> Framework:
        """The record of the loaded version."""
        version = version_record(self.framework, partial(importing.has, self.parser))
        missing = self.missing()
        kept = {one: chosen for one, chosen in version.objectives.items() if one not in missing}
        found = replace(version, objectives=kept)
        if Objective.ICEPOP not in kept:
            return found
        return icepop_record(found, self.module(*self.corrections).__name__)

    def missing(self) -> set[Objective]:
        """The objectives that the framework does not support, although it has their options."""
        has_critic = hasattr(self.module(*self.losses), "value_loss_function")
        return set() if has_critic else {*OF_CRITIC}

    def describe(self) -> Description:
        """Describe the framework by the options of its argument parser."""
        return self.record.description(
            lambda _: True,
            importing.option_names(self.parser, self._provider),
            CommandLine.read(self.parser).default,
            depths=self.depths,
            declared=self.declared(),
            rules={**self.framework.rules, **stated(self.parser, self._all(self.keepers))},
        )

    def _all(self, paths: Iterable[str]) -> list[Any]:
        """The modules and functions with these paths that this version has."""
        return [*filter(None, map(self.found, paths))]

    @property
    def _provider(self) -> Callable[[], Callable[[argparse.ArgumentParser], object]]:
        """The framework's factory of the function that adds its options to a parser."""
        return self.found(f"utils.arguments:get_{self.package}_extra_args_provider")


TRACES = {row["code"]: row["rules"].split(", ") for row in read_rows(TABLES, "stated")}
"""The rules that a version states if a regular expression matches its code, by expression."""

[HELP] = read_rows(TABLES, "documented")
"""The options, separated by commas, whose documentation states each rule."""

TYPED = {"divisor_bool": float, "divisor_text": float}
"""Rules that follow from the type of the divisor's option."""


def stated(parser: argparse.ArgumentParser, functions: Iterable[Any]) -> dict[str, str]:
    """Each rule that a version states, with its place.

    ``functions`` may enforce rules, in the order of their calls.
    """
    rules = dict(_documented(parser))
    for function in functions:
        code = inspect.getsource(function)
        kept = (rules_of for trace, rules_of in TRACES.items() if re.search(trace, code))
        for rule in chain.from_iterable(kept):
            rules.setdefault(rule, code_location(function))
    return rules


def _documented(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for rule, options in HELP.items():
        for option in _known(parser, options.split(", ")):
            yield rule, f"the documentation of {option}"
    for divisor in _known(parser, (DIVISOR, OLDER_DIVISOR)):
        for rule, typed in TYPED.items():
            if parser._option_string_actions[divisor].type is typed:
                yield rule, f"the type of {divisor}"


def _known(parser: argparse.ArgumentParser, options: Iterable[str]) -> list[str]:
    """The first of these options that a version has, in a list; empty if it has none."""
    return [option for option in options if option in parser._option_string_actions][:1]


OF_TRAINED_TOKENS = EstimatorConventions(transitions=TokenSet.ACTIVE)
"""The convention of GAE that masked tokens are ignored."""


def sample_unit(rollout_field: str | None, where: str) -> Convention:
    """The sample unit, given how samples name their rollout; ``where`` documents `rollout_id`."""
    if rollout_field == "rollout_id":
        return Documented(SampleUnit.ROLLOUT, where)
    return Assumed(SampleUnit.SAMPLE if rollout_field is None else SampleUnit.ROLLOUT)


def conventions(
    parser: argparse.ArgumentParser, of_version: Convention, of_engine: Convention | None = None
) -> dict[str, Convention]:
    """The conventions that the modes of slime and miles leave open.

    ``of_version`` is the version's sample unit, ``of_engine`` the sample unit of an engine that has
    a different one. The option for the four modes is documented to apply only to the policy loss:
    everything else is a mean over samples. Frameworks and versions differ in whether masked tokens
    matter for advantages. We assume that they must not matter, because pull requests call this a
    mistake and fix it: slime's 1372, and miles' 1383 and 1827.
    """
    sample_unit = of_engine or of_version
    auxiliary: Convention = (
        Documented(AuxiliaryAggregation.SAMPLE_MEAN, f"the documentation of {MODE}")
        if MODE in parser._option_string_actions
        else Assumed(AuxiliaryAggregation.WITH_TOKEN_MEAN)
    )
    return {
        "sample_unit": sample_unit,
        **_denominator_mask(of_version, sample_unit),
        **dict.fromkeys(("entropy", "kl", "diagnostics"), auxiliary),
        "compared": Assumed(Compared.SAMPLES),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "lone_reward": Assumed(Lone.ZERO),
        "of_returns": Assumed(EstimatorConventions()),
        "of_values": Assumed(OF_TRAINED_TOKENS),
    }


def _denominator_mask(of_version: Convention, of_engine: Convention) -> dict[str, Convention]:
    """The convention of the tokens by which every term is divided if tokens are rejected.

    Versions that count the tokens of rollouts before a step is cut have two contradictory comments
    on the reducer of all terms. One says that the mask after rejection corrects denominators, the
    other that it corrects "the numerator only; denominators stay the precomputed rollout_mask_sums"
    (miles' loss_hub/losses.py:policy_loss_function). So neither rule is documented. An engine that
    does not count rollouts counts the remaining tokens.
    """
    if of_version.value is not SampleUnit.ROLLOUT:
        return {}
    by_rollout = of_engine.value is SampleUnit.ROLLOUT
    return {
        "denominator_mask": Assumed(
            DenominatorMask.ORIGINAL if by_rollout else DenominatorMask.MODIFIED
        )
    }
