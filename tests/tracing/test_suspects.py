"""The line that makes a weight wrong is suspected first."""

import linecache
from collections.abc import Callable, Iterator

import pytest

from adapters.contract import Layout
from adapters.contract.job import Configuration
from conformance.ranks.pool import RankPool
from conformance.tracing.trace import Trace
from conformance.tracing.tracer import TracedJob, trace
from reference.step import Step
from tests.jobs import job_of, step_of
from tests.tracing.toys import ToyAdapter

EMPTY = step_of([1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1])
UNEQUAL = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])
ON_ONE_RANK = step_of([1, 1, 0], [1, 1, 1], [1, 0, 0])

Traced = Callable[[str, Step], Trace]


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    """What traces the most wrong token of a step that is trained in one of the toy's ways."""
    with RankPool(ToyAdapter(), None, 2) as pool:

        def run(way: str, step: Step) -> Trace:
            ranks = 1 if step is ON_ONE_RANK else 2
            job = job_of(step, layout=Layout(dp=ranks), configuration=Configuration(divisor=way))
            found = trace(job, pool)
            assert isinstance(found, TracedJob), found
            return Trace.of(way, found, None, None)

        yield run


@pytest.mark.parametrize(
    ("way", "step", "text"),
    [
        ("clamped", EMPTY, "torch.clamp_min(mask.sum(), 1)"),
        ("unused", UNEQUAL, "dist.all_reduce(count.clone())"),
        ("averaged", UNEQUAL, "self.gradient.div_("),
        ("function", UNEQUAL, "return gradients[0] * 3"),
        ("once_more", UNEQUAL, "dist.all_reduce(count)"),
        ("of_a_rank", UNEQUAL, 'count = rows["mask"].sum()'),
        ("times_one", UNEQUAL, "self.tokens(rows) * 1"),
    ],
)
def test_the_line_is_the_first_suspect(traced: Traced, way: str, step: Step, text: str) -> None:
    found = traced(way, step)

    line = found.suspects[0].line
    assert text in linecache.getline(line.file, line.number)
    assert found.objection is None
    assert len(found.suspects) <= 3


def test_a_count_that_is_changed_behind_torch_is_suspected_where_it_divides(traced: Traced) -> None:
    line = traced("behind_torch", UNEQUAL).suspects[0].line

    assert "self.losses(rows).sum() / count" in linecache.getline(line.file, line.number)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("in_python", "sum(len(row) for row"),
        ("read_one_by_one", "count += int(row.sum())"),
        ("counted_elsewhere", "total += int(row.sum())"),
        ("meant", "self.losses(rows).mean()"),
    ],
)
def test_a_count_of_masked_tokens_is_suspected_where_it_is_made(
    traced: Traced, way: str, text: str
) -> None:
    line = traced(way, ON_ONE_RANK).suspects[0].line

    assert text in linecache.getline(line.file, line.number)


def test_a_right_weight_has_no_suspects(traced: Traced) -> None:
    assert traced("reduced", UNEQUAL).suspects == []


def test_a_lost_token_is_followed_to_where_it_is_lost(traced: Traced) -> None:
    found = traced("lost", UNEQUAL)

    assert found.chain is None
    line = found.suspects[0].line
    assert "self.gradient.zero_()" in linecache.getline(line.file, line.number)


def test_a_weight_that_depends_on_other_losses_is_not_explained(traced: Traced) -> None:
    found = traced("by_size", UNEQUAL)

    assert found.objection is not None
    assert "depends on their losses" in found.objection
