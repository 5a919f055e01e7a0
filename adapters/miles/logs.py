"""miles' logs of micro-batches, the same for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Depth, Job, Layout
from adapters.miles.importing import module
from adapters.slime_family.framework import as_dictionaries
from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract import LogEntry

ALONE = Job(
    steps=(Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)]),),
    aggregation=Aggregation(Mode.SAMPLE_MEAN),
    layout=Layout(format="thd"),
    depth=Depth.STEP,
)
"""The job that miles is configured for to make a log."""


def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """Make a log with miles' own function."""
    make = module("backends.training_utils.log_utils").aggregate_train_losses
    knows_normalizers = "normalizers" in make.__code__.co_consts
    log: Mapping[str, float] = make(as_dictionaries(entries, with_normalizers=knows_normalizers))
    return log
