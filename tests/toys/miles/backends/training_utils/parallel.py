"""The framework's own account of process groups."""

from miles.lineage import Grid as ParallelState

_STATE: list[ParallelState] = []


def set_parallel_state(state: ParallelState) -> None:
    _STATE[:] = [state]


def get_parallel_state() -> ParallelState:
    [state] = _STATE
    return state
