"""The conventions of a framework, each with the place where the framework states it.

`reference.aggregation.Conventions` says what the modes leave open. An adapter gives its answers by
the names of the fields of that class; what it does not name has the default value, which is that
of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from reference.aggregation import Conventions

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = TypeVar("Value")


@dataclass(frozen=True)
class Documented(Generic[Value]):
    """A convention that the framework states.

    ``where`` is a document with its section, a help text, a validation or a test of the framework.
    """

    value: Value
    where: str


@dataclass(frozen=True)
class Assumed(Generic[Value]):
    """A convention that is read off the framework's code or its comments alone."""

    value: Value


Convention = Documented[Any] | Assumed[Any]


def conventions_of(declared: Mapping[str, Convention]) -> Conventions:
    """Returns the conventions without their sources, as the reference takes them."""
    return Conventions(**{name: convention.value for name, convention in declared.items()})


def sources(declared: Mapping[str, Convention]) -> dict[str, str]:
    """Returns where each documented convention is stated."""
    return {
        name: convention.where
        for name, convention in declared.items()
        if isinstance(convention, Documented)
    }


def answers(conventions: Conventions, documented: Mapping[str, str]) -> dict[str, str]:
    """Returns each convention in words, with the place that states it, or that it is assumed."""
    return {
        name: f"{value} ({documented.get(name, 'assumed')})"
        for name, value in vars(conventions).items()
        if value is not None
    }
