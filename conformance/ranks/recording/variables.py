"""The kinds of a function's values, by the expressions with which its source can read them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from conformance.findings.trace import KindsOfLines

MOST_READABLE = 512
"""The most values of a function that are inspected."""

MOST_PARTS = 64
"""The most values of a mapping or an object that are inspected."""

DEEPEST = 2
"""The most steps from a variable to a value, as in ``self.config.clip``."""


KINDS_OF_ARRAYS = {"f": "numbers", "i": "integers", "b": "truths"}
"""The kinds of arrays and tensors, by the letter that numpy has for the kind of their entries."""


def look_at(frame: FrameType, known: KindsOfLines) -> None:
    """Note the kinds of a function's new variables, and of their attributes and entries.

    Values of one kind can replace each other. The kind is None for a value that no other can
    replace. ``known`` has the kinds by the numbers of the lines at which they were noted; a
    variable is new again if it is of another kind than before.
    """
    named = frame.f_locals.items()
    several = [
        (name, held) for name, held in named if name.isidentifier() and _is_new(name, held, known)
    ]
    with suppress(Exception):  # a framework's own mapping may raise anything when it is read
        for text, held in islice(_readable(several), MOST_READABLE if several else 0):
            known.setdefault(text, {})[frame.f_lineno] = _kind(held)


def _is_new(name: str, held: object, known: KindsOfLines) -> bool:
    return name not in known or _kind(held) != [*known[name].values()][-1]


def _readable(several: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Yield variables, then their attributes and entries, and so on down to `DEEPEST` steps."""
    for _ in range(DEEPEST):
        yield from several
        several = [
            inner for text, held in several for inner in islice(_inside(text, held), MOST_PARTS)
        ][:MOST_READABLE]
    yield from several


def _inside(text: str, held: object) -> Iterator[tuple[str, object]]:
    if isinstance(held, Mapping):
        keys = [key for key in held if type(key) is str]  # an enum's member has no literal
        yield from ((f"{text}[{key!r}]", held[key]) for key in keys)
        if hasattr(type(held), "__getattr__"):
            yield from ((f"{text}.{key}", held[key]) for key in keys if key.isidentifier())
    elif not isinstance(held, (type, torch.Tensor, torch.nn.Module)) and hasattr(held, "__dict__"):
        named = vars(held).items()
        yield from ((f"{text}.{name}", one) for name, one in named if name.isidentifier())


def _kind(held: object) -> str | None:
    if isinstance(held, torch.Tensor):
        kind = "truths" if held.dtype is torch.bool else "integers"
        return f"{'numbers' if held.is_floating_point() else kind} of {tuple(held.shape)}"
    if isinstance(held, np.ndarray) and held.dtype.kind in KINDS_OF_ARRAYS:
        return f"{KINDS_OF_ARRAYS[held.dtype.kind]} of {held.shape}"
    if isinstance(held, (list, tuple)) and held and isinstance(held[0], torch.Tensor):
        return f"{len(held)} tensors"
    is_value = type(held) in (int, float) or isinstance(
        held, (Enum, torch.distributed.ProcessGroup)
    )
    return type(held).__name__ if is_value else None
