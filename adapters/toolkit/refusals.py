"""Tells the objections of a framework's startup validation from crashes."""

from __future__ import annotations

from argparse import ArgumentError
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from adapters.contract import Refused
from adapters.contract.configuration import DEFAULT_CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from adapters.contract import Job

OBJECTIONS = (ArgumentError, AssertionError, ValueError, NotImplementedError)
"""What validation raises; argparse also exits, in the context of an error of its own."""


@contextmanager
def refusals(*more: type[Exception]) -> Iterator[None]:
    """Turn objections of a framework, and exceptions of ``more`` types, into `Refused`."""
    try:
        yield
    except SystemExit as error:
        objection = error.__context__
        raise _refused(objection if isinstance(objection, ArgumentError) else error) from error
    except Exception as error:
        if not isinstance(error, (*OBJECTIONS, *more)):
            raise
        raise _refused(error) from error


def refusals_of_configuration(job: Job) -> AbstractContextManager[None]:
    """`refusals` for a configuration that is not the default: a framework may decline it late."""
    return nullcontext() if job.configuration == DEFAULT_CONFIGURATION else refusals()


def _refused(error: BaseException) -> Refused:
    return Refused(f"{type(error).__name__}: {error}")
