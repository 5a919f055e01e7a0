"""The tensors that collectives and messages read and write, and their sequence numbers by group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_leaves

from conformance.findings.trace import Collective
from conformance.ranks.recording.groups import made_by

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACES = ("c10d.", "_c10d_functional.")

WITHOUT_RESULT = ("barrier", "check_for_nan", "wait_tensor")
"""Words in the names of operations for several ranks that change no tensor."""

SEND, RECEIVE, BROADCAST = "c10d.send", "c10d.recv_.", "c10d.broadcast_"


class Moved(NamedTuple):
    """The tensors that a collective reads and writes on this rank, except a newly made result."""

    read: list[torch.Tensor]
    written: list[torch.Tensor]
    collective: Collective


def is_collective(name: str) -> bool:
    """Whether an operation exchanges tensors between ranks."""
    return name.startswith(NAMESPACES) and not any(word in name for word in WITHOUT_RESULT)


@dataclass
class Collectives:
    """Numbers the collectives of each group and the messages between each pair of ranks."""

    _begun: Counter[tuple[bool, tuple[int, ...]]] = field(default_factory=Counter)

    def moved(self, operation: Any, args: Sequence[Any]) -> Moved:
        """The tensors of a collective that is about to be called."""
        name, group = str(operation), _group(args)
        ranks = () if group is None else tuple(dist.get_process_group_ranks(group))
        named = zip(operation._schema.arguments, args, strict=False)
        by_role: dict[str, list[torch.Tensor]] = {"": [], "input": [], "output": []}
        for argument, given in named:
            role = next((r for r in ("input", "output") if argument.name.startswith(r)), "")
            by_role[role] += _tensors(given)
        returns = name.startswith("_c10d_functional.")
        written = [] if returns else [*by_role["output"], *by_role[""]]
        read = [*by_role["input"], *by_role[""]]
        numbers = [one for one in args if type(one) is int]
        if name.startswith((BROADCAST, RECEIVE)) and ranks[numbers[0]] != dist.get_rank():
            read = []
        collective = self._next(name, ranks, numbers)
        lines = () if group is None else made_by(group)
        return Moved(read, written, replace(collective, made_by=lines))

    def _next(self, name: str, group: tuple[int, ...], numbers: Sequence[int]) -> Collective:
        """The next collective of its group; the two ranks of a message count as a group."""
        is_message = name.startswith((SEND, RECEIVE))
        if is_message:
            here, there = dist.get_rank(), group[numbers[0]]
            group = (here, there) if name.startswith(SEND) else (there, here)
        sequence = self._begun[is_message, group]
        self._begun[is_message, group] += 1
        return Collective(group, sequence, is_message)


def _tensors(given: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]


def _group(given: Sequence[Any]) -> dist.ProcessGroup | None:
    """The process group among the arguments of a collective, given as an object or by its name."""
    for one in given:
        if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type()):
            return dist.ProcessGroup.unbox(one)
        if isinstance(one, str) and one not in ("sum", "avg", "max", "min"):
            return distributed_c10d._resolve_process_group(one)  # type: ignore[arg-type, attr-defined]
    return None
