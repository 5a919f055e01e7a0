"""Jobs that ranks run, and the depth at which they enter a framework."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from adapters.contract.configuration import DEFAULT_CONFIGURATION, Configuration
from adapters.contract.objective import Objective

if TYPE_CHECKING:
    from adapters.contract.layout import Layout
    from reference.aggregation import Aggregation
    from reference.step import Step


class Depth(StrEnum):
    """How much of the framework's own code a job runs."""

    REDUCER = "reducer"
    """The reduction function alone, with token losses as input."""

    LOSS = "loss"
    """The whole loss function with its scaling."""

    STEP = "step"
    """The whole train step up to the gradient that the optimizer gets."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The optimizer steps of one batch of rollouts, to run on all ranks of a layout."""

    steps: tuple[Step, ...]
    aggregation: Aggregation
    layout: Layout
    depth: Depth
    objective: Objective = Objective.POLICY
    configuration: Configuration = DEFAULT_CONFIGURATION
