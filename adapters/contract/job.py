"""What the ranks are given to run, and how deep into the framework it goes."""

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
    """How much of the framework's own code an observation goes through."""

    REDUCER = "reducer"
    """Its reduction function alone, fed with token losses."""

    LOSS = "loss"
    """Its whole loss function, own scaling included."""

    STEP = "step"
    """Its whole train step, up to the gradient its optimizer sees."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to run on all ranks of a layout: the optimizer steps of one batch of rollouts."""

    steps: tuple[Step, ...]
    aggregation: Aggregation
    layout: Layout
    depth: Depth
    objective: Objective = Objective.POLICY
    configuration: Configuration = DEFAULT_CONFIGURATION
