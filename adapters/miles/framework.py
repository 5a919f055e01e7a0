"""The records of miles, one for each of its engines, and the places of its conventions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.tables import RecordFile
from adapters.engines.shells import ZEROED
from adapters.slime_family.framework import FAMILY, ON_MEGATRON, icepop_record
from adapters.toolkit.settings import WITH_CRITIC

if TYPE_CHECKING:
    from adapters.contract.framework import Framework

TRAIN_DATA = "ray.rollout.train_data_conversion"
HUB = "backends.training_utils.loss_hub"
BEFORE_HUB = "backends.training_utils.loss"
LOSSES = (f"{HUB}.losses", BEFORE_HUB)
LOG_PROBS = (f"{HUB}.logit_processors", f"{HUB}.logits", BEFORE_HUB)
CORRECTIONS = (f"{HUB}.corrections", BEFORE_HUB)

KEEPERS = (
    "utils.arguments:_validate_loss_aggregation_args",
    "utils.arguments:miles_validate_args",
    f"{TRAIN_DATA}:convert_samples_to_train_data",
    f"{TRAIN_DATA}:_prompt_group_partitions",
    f"{HUB}.losses:get_pg_loss_reducer",
    "backends.training_utils.log_utils:aggregate_train_losses",
)
"""Functions of miles that may enforce rules of configurations and logs."""

_FILE = RecordFile("adapters.miles")


def _miles_record(record: Framework) -> Framework:
    """An engine's record, with the fields that all engines of miles share."""
    return icepop_record(
        _FILE.variant("miles", base=record), "miles.backends.training_utils.loss_hub.corrections"
    )


_OBJECTIVES = {one: of for one, of in FAMILY.objectives.items() if one not in WITH_CRITIC}

MEGATRON = _FILE.variant("megatron", base=_miles_record(ON_MEGATRON))
FSDP = _FILE.variant("fsdp", ZEROED, base=_miles_record(replace(FAMILY, objectives=_OBJECTIVES)))


def ci_record(record: Framework) -> Framework:
    """The record of versions that allow an engine only in tests."""
    return _FILE.variant("ci", base=record)
