"""The owners of the frames of a stack, and the call that a rank waits in.

A rank that hangs is sent a signal, on which `faulthandler` prints the stacks of its threads; that
works while it is in native code. One that gave up has a traceback.
"""

from __future__ import annotations

import re
import signal
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from adapters.contract import Adapter
from conformance.findings.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

OURS = ("adapters", "conformance", "reference", "tests")

LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__", "__mp_main__"} | {
    *("torch", "numpy", "tensordict", "typing_extensions", "jax", "jaxlib", "flax"),
    *("antlr4", "attr", "hydra", "loguru", "omegaconf", "yaml"),
}
"""Packages whose frames are passed by: a framework or its engine asked for what they do."""

PRINTS_STACKS = signal.SIGUSR2
"""The signal on which a rank prints its stacks."""

CALL = re.compile(r'^ *File "([^"]+)"(?:, line (\d+),?)? in (\S+)$', re.MULTILINE)
"""A line of a traceback or of a stack that `faulthandler` prints."""

INNERMOST_FIRST = "most recent call first"

THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)

COLLECTIVES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
)
"""The files whose functions are collectives."""

BACKWARD = "torch/autograd/graph.py"


def passes_by(adapter: Adapter) -> Callable[[str], bool]:
    """Whether frames of a module are ours, or of a library that others ask to do something.

    An adapter without a package is its own framework, with the modules next to its classes.
    """
    classes = [one for one in type(adapter).__mro__ if issubclass(one, Adapter)]
    modules = [one.__module__ for one in classes if one is not Adapter and not adapter.package]
    own = tuple(f"{module.rpartition('.')[0]}." for module in modules)

    @cache
    def is_passed_by(module: str) -> bool:
        if module.startswith(own):
            return False
        return module.partition(".")[0] in LIBRARIES or module.partition(".")[0] in OURS

    return is_passed_by


@dataclass(frozen=True)
class Waiting:
    """The activity of a rank while others wait for it, or it for others.

    ``collective`` is the function of torch that it is in, ``place`` the line that called it. Both
    are None where its stack is not known.
    """

    collective: str | None = None
    place: str | None = None

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place is not None else " at an unknown place"
        return f"waits in {self.collective}{at}" if self.collective is not None else f"is{at}"


UNKNOWN = Waiting()
"""The activity of a rank whose stack is not known."""


def waiting(stack: str, adapter: Adapter, source: Path | None) -> Waiting:
    """The activity of a rank, by a traceback or by the stacks of its threads, the main one last.

    The thread of a backward pass has frames of torch alone; the outermost one is the place.
    """
    is_passed_by = passes_by(adapter)
    calls = CALL.findall(THREAD.split(stack)[-1])
    if INNERMOST_FIRST not in stack:
        calls.reverse()
    passed: list[tuple[str, str]] = []
    place: str | None = None
    for path, number, function in calls:
        file = sanitize(path, source)
        is_of_file = bool(number) and not file.startswith("<")
        is_theirs = is_of_file and not is_passed_by(file.removesuffix(".py").replace("/", "."))
        if is_theirs or file.startswith("torch/"):
            place = f"{file}:{number} ({function})"
        if is_theirs:
            break
        passed.append((file, function))
    return Waiting(_collective(passed), place)


def _collective(calls: Iterable[tuple[str, str]]) -> str | None:
    """The function that calls of libraries were made through, the innermost first."""
    for file, function in calls:
        if file.endswith(COLLECTIVES) and not function.startswith("_") and function != "wrapper":
            return function
        if file.endswith(BACKWARD):
            return "a backward pass"
    return None


def told(states: Mapping[int, str]) -> str:
    """The activities of all ranks, in one sentence; those of ranks that did the same together.

    The order is that of what they did, those that wait first: which ranks do it may change.
    """
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, state in sorted(states.items(), key=_waiting_first):
        ranks[state].append(rank)
    parts = (
        f"rank{'s' if len(several) > 1 else ''} {', '.join(map(str, several))}"
        f" {_plural(state) if len(several) > 1 else state}"
        for state, several in ranks.items()
    )
    return "; ".join(parts)


def _waiting_first(one: tuple[int, str]) -> tuple[bool, str, int]:
    rank, state = one
    return not state.startswith("waits"), state, rank


def _plural(state: str) -> str:
    verb, _, rest = state.partition(" ")
    return f"{ {'waits': 'wait', 'is': 'are', 'has': 'have'}[verb] } {rest}"
