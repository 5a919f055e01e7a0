"""Cells of a plan, and a function that answers their jobs instead of ranks."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from adapters.contract import Depth, Job, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import ALL_CASES
from conformance.plan.checks import check_spec
from conformance.plan.matrix import MatrixCell
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode

CASES = {case.name: case for case in ALL_CASES}

ONE_RANK = Layout()


def cell(
    case: str, layout: Layout = ONE_RANK, mode: Mode = Mode.TOKEN_MEAN, check: str = "weights"
) -> MatrixCell:
    """The matrix cell of a case of the corpus, at depth `step`."""
    return MatrixCell(
        aggregation=CASES[case].aggregation(mode),
        case=CASES[case],
        layout=layout,
        depth=Depth.STEP,
        spec=check_spec(check),
    )


def answered(
    run: Callable[[Job], object], adapter: NativeAdapter | None = None, **described: Any
) -> SharedJobs:
    """Shared jobs that ``run`` answers, for an adapter whose description has other fields."""
    driven = adapter or NativeAdapter()
    description = replace(driven.describe(), **described)
    pool = SimpleNamespace(adapter=driven, description=description, run=run, is_running=False)
    return SharedJobs(pool)  # type: ignore[arg-type]
