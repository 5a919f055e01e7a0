"""The interface between adapters and the rest of the project.

An adapter's knowledge of its framework is data, a `Framework`; its code only drives the framework.

An adapter drives one framework. The controlling process creates it, asks only for its properties,
and pickles it to every rank. There the adapter imports the framework and runs steps. It never sees
an expected value.
"""

from adapters.contract.adapter import Adapter as Adapter
from adapters.contract.adapter import Rank as Rank
from adapters.contract.description import Assumed as Assumed
from adapters.contract.description import BatchProperty as BatchProperty
from adapters.contract.description import Convention as Convention
from adapters.contract.description import Departure as Departure
from adapters.contract.description import DepartureKind as DepartureKind
from adapters.contract.description import Description as Description
from adapters.contract.description import Documented as Documented
from adapters.contract.description import FixedMode as FixedMode
from adapters.contract.description import code_location as code_location
from adapters.contract.framework import Framework as Framework
from adapters.contract.framework import Settings as Settings
from adapters.contract.job import Depth as Depth
from adapters.contract.job import Job as Job
from adapters.contract.job import LogEntry as LogEntry
from adapters.contract.job import Observation as Observation
from adapters.contract.job import PendingReduction as PendingReduction
from adapters.contract.job import Refused as Refused
from adapters.contract.job import Unsupported as Unsupported
from adapters.contract.layout import InvalidLayoutError as InvalidLayoutError
from adapters.contract.layout import Layout as Layout
from adapters.contract.layout import Option as Option
from adapters.contract.objective import Metric as Metric
from adapters.contract.objective import Objective as Objective
