"""Remembers the lines that made a rank's process groups, even long before a traced job."""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup, distributed_c10d

from conformance.ranks.recording.frames import Functions, asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.findings.trace import Line

MAKING = "_new_process_group_helper"
"""The function of torch that makes all groups."""

_made: dict[str, tuple[Line, ...]] = {}


def remember(is_passed_by: Callable[[str], bool]) -> None:
    """From now on, remember the lines that make process groups."""
    make, functions = getattr(distributed_c10d, MAKING), Functions(is_passed_by)

    @wraps(make)
    def remembering(*args: Any, **kwargs: Any) -> tuple[ProcessGroup | int, Any]:
        group, store = make(*args, **kwargs)
        if isinstance(group, ProcessGroup):  # this rank is in the group
            _made[group.group_name] = asked(functions, threading.get_ident()).stack
        return group, store

    setattr(distributed_c10d, MAKING, remembering)


def made_by(group: ProcessGroup) -> tuple[Line, ...]:
    """The lines that made a group, the innermost first; empty for an unknown group."""
    return _made.get(group.group_name, ())
