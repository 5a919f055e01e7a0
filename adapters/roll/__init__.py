"""Adapters of alibaba/ROLL, one for each of its training engines."""

from adapters.roll.engines import RollFsdpAdapter, RollMegatronAdapter

ENGINES = (RollFsdpAdapter, RollMegatronAdapter)
