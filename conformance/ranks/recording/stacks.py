"""The packages that the frames of a stack belong to, and the call that a rank waits in.

A rank that hangs is sent a signal, on which `faulthandler` prints the stacks of its threads, even
while the rank is in native code. A rank that gave up has a traceback.
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
"""Packages whose frames are passed by, since a framework or its engine called them."""

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
    """A function that returns whether a module is ours or a library's, and not the framework's.

    An adapter without a package is its own framework, including the modules next to its classes.
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
    """The activity of a rank that waits for other ranks, or that other ranks wait for.

    ``collective`` is torch's function that the rank waits in, if any; ``place`` is the line of the
    framework that the rank is at. Both are None if the rank's stack is not known.
    """

    collective: str | None = None
    place: str | None = None

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place is not None else " at an unknown place"
        return f"waits in {self.collective}{at}" if self.collective is not None else f"is{at}"


UNKNOWN = Waiting()
"""The activity of a rank whose stack is not known."""


def waiting(stack: str, adapter: Adapter, source: Path | None) -> Waiting:
    """The activity of a rank, given a traceback or the stacks of its threads, the main one last.

    A thread of a backward pass has only frames of torch; its outermost frame is the place.
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
    """The collective among the calls of libraries, which are given from the innermost."""
    for file, function in calls:
        if file.endswith(COLLECTIVES) and not function.startswith("_") and function != "wrapper":
            return function
        if file.endswith(BACKWARD):
            return "a backward pass"
    return None


def told(states: Mapping[int, str]) -> str:
    """The activities of all ranks, in one sentence that groups ranks with the same activity.

    The order is by activity, waiting ranks first, since the ranks of an activity may vary by run.
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
