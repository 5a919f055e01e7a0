"""The command line: ``rl-loss-conformance COMMAND``.

`parser` has the options of each command, and `commands` its function, a generator of lines.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from conformance.cli.commands import WORSE as WORSE
from conformance.cli.parser import parser
from conformance.findings.errors import ConformanceError, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

USAGE_ERROR = 2

INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status, 2 if the command cannot be carried out."""
    typed, words = _split([*(sys.argv[1:] if arguments is None else arguments)])
    options = parser().parse_args(typed)
    options.words = words
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        return _print(options.lines(options))
    except StartError as error:
        print(f"rl-loss-conformance: {error}\n{error.details}", file=sys.stderr)
        return USAGE_ERROR
    except ConformanceError as error:
        print(f"rl-loss-conformance: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        # a second Ctrl-C must not stop waiting threads
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader is gone
        return 0
    except OSError as error:
        from conformance.sources.source import UNWRITABLE

        if error.errno not in UNWRITABLE:
            raise
        where = f"{error.filename} cannot be written" if error.filename else "not all was written"
        print(f"rl-loss-conformance: {where}: {error.strerror}", file=sys.stderr)
        return USAGE_ERROR


def _split(typed: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The arguments of this command, and the words after ``--``, for a recipe's framework."""
    if typed[:1] != ["recipe"] or "--" not in typed:
        return typed, ()
    place = typed.index("--")
    return typed[:place], tuple(typed[place + 1 :])


def _end(number: int, frame: FrameType | None) -> None:
    """End as on Ctrl-C, and interrupt child runs, which a terminal would have signalled as well."""
    from conformance.runs.versions import history

    history.end_all()
    raise KeyboardInterrupt


def _print(lines: Iterator[str]) -> int:
    """Prints the lines as they come; returns the return value of their generator, or else 0."""
    while True:
        try:
            line = next(lines)
        except StopIteration as end:
            return end.value or 0
        try:
            print(line, flush=True)
        except OSError as error:
            error.filename = "the output"
            raise
