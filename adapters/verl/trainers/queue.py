"""The batch of rollouts in memory, in place of verl's TransferQueue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryQueue:
    """Keeps the fields of all rows by key, on every rank."""

    def __init__(self, rows: dict[str, dict[str, Any]], tags: dict[str, dict[str, Any]]) -> None:
        self.rows, self.tags = rows, tags

    def batch(self) -> KVBatchMeta:
        """All rows, as the replay buffer returns them."""
        return KVBatchMeta(
            keys=[*self.rows], tags=[*self.tags.values()], partition_id="train", extra_info={}
        )

    def kv_batch_get(
        self,
        keys: Sequence[str],
        partition_id: str | None = None,
        select_fields: Sequence[str] | None = None,
    ) -> TensorDict:
        """Some fields of some rows: jagged tensors, and stacks of anything else."""
        chosen = [self.rows[key] for key in keys]
        names = [name for name in chosen[0] if select_fields is None or name in select_fields]
        fields = {name: _stacked([row[name] for row in chosen]) for name in names}
        return TensorDict(fields, batch_size=len(keys))

    def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str | None = None,
        fields: Any = None,
        tags: Sequence[dict[str, Any]] = (),
    ) -> KVBatchMeta:
        """Add fields, and rows with new keys."""
        for name in fields.keys():  # noqa: SIM118 - iterating over a tensor dictionary gives rows
            for key, value in zip(keys, _rows(fields[name]), strict=True):
                self.rows.setdefault(key, {})[name] = value
        self.tags |= dict(zip(keys, tags, strict=False))
        return KVBatchMeta(
            keys=[*keys],
            tags=[self.tags[key] for key in keys],
            partition_id=partition_id,
            extra_info={},
        )


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return NonTensorStack(*values)


def _rows(field: Any) -> list[Any]:
    if isinstance(field, torch.Tensor):
        return list(field.unbind())
    return list(field.tolist()) if hasattr(field, "tolist") else list(field)
