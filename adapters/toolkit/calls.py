"""Calls functions that differ between versions, and converts errors of a framework's validation."""

from __future__ import annotations

import inspect
from argparse import ArgumentError, ArgumentParser
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

from adapters.contract import Job, Refused
from adapters.contract.job import DEFAULT_CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Exceptions that validation raises.
OBJECTIONS = (ArgumentError, AssertionError, ValueError, NotImplementedError)


@contextmanager
def refusals(*more: type[Exception]) -> Iterator[None]:
    """Turn a framework's validation errors, and exceptions of ``more`` types, into `Refused`."""
    try:
        with patch.object(ArgumentParser, "error", _argument_error):
            yield
    except SystemExit as ended:
        if not isinstance(ended.__cause__, ArgumentError):
            raise
        raise Refused(f"ArgumentError: {ended.__cause__}") from ended
    except Exception as error:
        if not isinstance(error, (*OBJECTIONS, *more)):
            raise
        raise Refused(f"{type(error).__name__}: {error}") from error


def refusals_of_configuration(job: Job) -> AbstractContextManager[None]:
    """`refusals` for a non-default configuration, which a framework may decline during a step."""
    return nullcontext() if job.configuration == DEFAULT_CONFIGURATION else refusals()


def _argument_error(_: ArgumentParser, message: str) -> NoReturn:
    """Exit as argparse does, with the message that it would print as the cause.

    A framework may parse only some of its arguments, and continue when argparse exits. Raises
    `LookupError` for an argument unknown to the parser: the adapter sets an option that this
    version lacks.
    """
    if message.startswith("unrecognized arguments"):
        options = [word for word in message.split() if word.startswith("-")]
        more = f" and {len(options) - 3} more" if len(options) > 3 else ""
        raise LookupError(f"this version has no {', '.join(options[:3])}{more}")
    raise SystemExit(2) from ArgumentError(None, message)


def nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of a service that does not run."""


def call_supported(function: Any, *args: Any, **offered: Any) -> Any:
    """Call a function with the keyword arguments that this version knows, dropping the others."""
    known = _parameters(getattr(function, "__func__", function))
    return function(*args, **{name: value for name, value in offered.items() if name in known})


@cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
