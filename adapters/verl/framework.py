"""The records of verl's engines: options as users type them, and verl's documents."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract import Framework, Layout, Option
from adapters.contract.objective import CONSTANTS
from adapters.contract.tables import RecordFile, read_departures
from adapters.engines import router
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES, ZEROED
from adapters.toolkit import settings
from adapters.verl import sizes

if TYPE_CHECKING:
    from collections.abc import Callable


CHECKPOINT = Path(__file__).parent / "checkpoint"
GIVEN = "given"
"""The name under which given advantages are registered as an estimator."""


def _file(ranks: Callable[[Layout], int]) -> RecordFile:
    """The file of records, for an engine that splits mini-batches over this number of ranks."""
    of_engine = sizes.BatchSizes(ranks)
    return RecordFile(
        "adapters.verl",
        settings,
        sizes,
        {name: getattr(of_engine, name) for name in sizes.OF_ENGINE},
        checkpoint=str(CHECKPOINT),
        given=GIVEN,
        kept_bounds=f"{CONSTANTS.kept_low:g}_{CONSTANTS.truncation:g}",
        router={
            f"megatron.override_transformer_config.{name}": value
            for name, value in router.OPTIONS.items()
        },
    )


DEFAULT_TRAINER = read_departures("adapters.verl", "default_trainer")
"""Departures of versions with the default trainer."""

_ON_FSDP = _file(attrgetter("world_size"))
_ON_MEGATRON = _file(attrgetter("dp"))

VERL = _ON_FSDP.record(*DEFAULT_TRAINER)
FSDP = _ON_FSDP.variant("fsdp", base=VERL)
FSDP2 = _ON_FSDP.variant("fsdp2", base=FSDP)
MEGATRON = _ON_MEGATRON.variant(
    "megatron",
    ZEROED,
    CPU_AS_CUDA,
    PIPELINE_STAGES,
    ONE_BY_ONE,
    base=_ON_MEGATRON.record(*DEFAULT_TRAINER),
)


def legacy_record(record: Framework) -> Framework:
    """An engine's record in versions before 0.9.0, whose only trainer is now the legacy one."""
    of_trainer = [one for one in record.departures if one not in DEFAULT_TRAINER]
    of_layout = record.layout.items()
    return replace(
        record,
        layout={part: chosen for part, chosen in of_layout if part != Option.LEGACY_TRAINER},
        departures=(*of_trainer, *read_departures("adapters.verl", "older_versions")),
    )
