"""The interface between adapters and the rest of the project.

An adapter's knowledge of its framework is data, a `Framework`; its code only drives the framework.

An adapter drives one framework. It is created in the controlling process, which only asks for its
properties, and pickled to every rank, where it imports the framework and runs steps. It never sees
an expected value.
"""

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import (
    Assumed,
    BatchProperty,
    Convention,
    Departure,
    DepartureKind,
    Description,
    Documented,
    FixedMode,
    code_location,
)
from adapters.contract.framework import Framework, Settings
from adapters.contract.job import (
    Depth,
    Job,
    LogEntry,
    Observation,
    PendingReduction,
    Refused,
    Unsupported,
)
from adapters.contract.layout import InvalidLayoutError, Layout, Option
from adapters.contract.objective import Metric, Objective

__all__ = [
    "Adapter",
    "Assumed",
    "BatchProperty",
    "Convention",
    "Departure",
    "DepartureKind",
    "Depth",
    "Description",
    "Documented",
    "FixedMode",
    "Framework",
    "InvalidLayoutError",
    "Job",
    "Layout",
    "LogEntry",
    "Metric",
    "Objective",
    "Observation",
    "Option",
    "PendingReduction",
    "Rank",
    "Refused",
    "Settings",
    "Unsupported",
    "code_location",
]
