"""Adapters of radixark/miles, one for each of its training engines."""

from adapters.miles.engines import MilesFsdpAdapter, MilesMegatronAdapter

ENGINES = (MilesMegatronAdapter, MilesFsdpAdapter)
