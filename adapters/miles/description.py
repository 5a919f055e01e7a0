"""The description of miles and its logs of micro-batches, which its engines share."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from adapters.contract import Assumed, CodeLocation, Depth, Documented, Job, Layout, LogEntry
from adapters.contract.description import parse_departures
from adapters.contract.objective import Objective
from adapters.miles import rollouts
from adapters.miles.importing import module, module_if_any
from adapters.slime_family import description
from adapters.slime_family.framework import as_dictionaries
from reference.aggregation import Aggregation, Mode, SampleUnit
from reference.step import Sample, Step

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from adapters.contract.description import Convention
    from adapters.toolkit.calls import Candidates

ALONE = Job(
    steps=(Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)]),),
    aggregation=Aggregation(Mode.SAMPLE_MEAN),
    layout=Layout(format="thd"),
    depth=Depth.STEP,
)
"""The job that miles is configured for to aggregate log entries."""

OBSERVED_ENTROPY = parse_departures(
    """
    set: --observe-training-entropy, if the option exists
        newer versions log no entropy without it; it has no gradient unless it is trained on
    """
)


def declared(
    parser: argparse.ArgumentParser, sample_unit: Convention | None = None
) -> dict[str, Convention]:
    """miles' conventions; groups are whole on a rank if the rollout side deals them.

    The version decides the sample unit, unless the engine counts something else.
    """
    conversion = module("ray.rollout.train_data_conversion")
    estimators = module_if_any("backends.training_utils.loss_hub.math_utils")
    return {
        **description.conventions(parser, estimators, sample_unit or _sample_unit()),
        "whole_groups": Assumed(hasattr(conversion, "_prompt_group_partitions")),
    }


def _sample_unit() -> Convention:
    """The sample unit; miles tests it since samples name their rollout."""
    if rollouts.rollout_field() is None:
        return Assumed(SampleUnit.SAMPLE)
    return Documented(
        SampleUnit.ROLLOUT, "tests/fast/backends/training_utils/test_rollout_mask_sums.py"
    )


def unsupported_objectives() -> frozenset[Objective]:
    """The objectives that miles' validation declares unsupported."""
    validation = inspect.getsource(module("utils.arguments").miles_validate_args)
    declared = "does not support reward-level KL" in validation
    return frozenset({Objective.PENALISED_GAE} if declared else ())


def losses() -> Any:
    """Return the module of the loss functions."""
    return module("backends.training_utils.loss_hub.losses")


def candidates() -> Candidates:
    """Functions that may contain a mistake, newer versions first."""
    utils = "backends.training_utils"
    conversion = module("ray.rollout.train_data_conversion")
    arguments = module("utils.arguments")
    return {
        CodeLocation.TOKEN_COUNT: ((module(f"{utils}.loss"), "loss_function"),),
        CodeLocation.LOG: ((module(f"{utils}.log_utils"), "aggregate_train_losses"),),
        CodeLocation.ARGUMENTS: (
            (arguments, "_validate_loss_aggregation_args"),
            (arguments, "miles_validate_args"),
        ),
        CodeLocation.SHARDING: (
            (conversion, "split_train_data_by_dp_scheduled_raw"),
            (conversion, "split_train_data_by_dp_raw"),
            (conversion, "split_train_data_by_dp"),
        ),
    }


def keepers() -> list[Any]:
    """Functions that may enforce rules of configurations and logs; None for missing ones."""
    arguments = module("utils.arguments")
    conversion = module("ray.rollout.train_data_conversion")
    return [
        getattr(arguments, "_validate_loss_aggregation_args", None),
        arguments.miles_validate_args,
        conversion.convert_samples_to_train_data,
        getattr(conversion, "_prompt_group_partitions", None),
        getattr(losses(), "get_pg_loss_reducer", None),
        module("backends.training_utils.log_utils").aggregate_train_losses,
    ]


def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """Aggregate entries with miles' own function."""
    make = module("backends.training_utils.log_utils").aggregate_train_losses
    knows_normalizers = "normalizers" in make.__code__.co_consts
    return make(as_dictionaries(entries, with_normalizers=knows_normalizers))
