"""The line that makes a weight wrong is among the suspects."""

import linecache
from collections.abc import Iterator
from typing import Protocol

import pytest

from adapters.contract import Layout
from adapters.contract.job import Configuration
from adapters.contract.objective import Metric, Objective
from conformance.ranks.pool import RankPool
from conformance.tracing.right_counts import RightCounts
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from conformance.tracing.tracer import trace
from reference.aggregation import Mode
from reference.step import Step
from tests.conformance.given import Given
from tests.jobs import job_of, step_of
from tests.tracing.mistaken import MistakenAdapter

EMPTY = step_of([1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1])
UNEQUAL = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])
ON_ONE_RANK = step_of([1, 1, 0], [1, 1, 1], [1, 0, 0])
IN_PARTS = step_of([1, 1], [1, 1])
IN_SAMPLES = step_of([1, 1], [1, 1])
OF_EIGHT = step_of([1, 1, 1, 1], [1, 1, 0, 0])
OF_ONE = step_of([1, 0, 0])
OF_THIRTEEN = step_of([1, 1, 1] + [0] * 10, [1] * 5 + [0] * 7)
TWICE = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])
OF_SEQUENCES = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])
CLIPPED = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])


LAYOUTS = {
    **{id(step): Layout() for step in (ON_ONE_RANK, OF_EIGHT, OF_ONE, OF_THIRTEEN)},
    **{id(step): Layout(micro_batches=2) for step in (IN_PARTS, IN_SAMPLES)},
    id(TWICE): Layout(dp=2, micro_batches=2),
}
"""The layouts of steps that are not trained on two ranks with one micro-batch each."""

MODES = {id(IN_SAMPLES): Mode.SAMPLE_MEAN}
"""The modes of steps that are not trained in `token_mean`."""

OBJECTIVES = {id(OF_SEQUENCES): Objective.GSPO, id(CLIPPED): Objective.OFF_POLICY}
"""The objectives of steps whose ratios to the old policy differ from 1."""


class Traced(Protocol):
    """A function that traces the most wrong token of a step trained in one of the toy's ways."""

    def __call__(self, way: str, step: Step, metric: Metric | None = None) -> Trace: ...


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with RankPool(MistakenAdapter(), None, 2) as pool:

        def run(way: str, step: Step, metric: Metric | None = None) -> Trace:
            layout = LAYOUTS.get(id(step), Layout(dp=2))
            mode = MODES.get(id(step), Mode.TOKEN_MEAN)
            configuration = Configuration(divisor=way)
            objective = OBJECTIVES.get(id(step), Objective.POLICY)
            fields = {"layout": layout, "configuration": configuration, "objective": objective}
            job = job_of(step, mode=mode, **fields)
            found = trace(job, pool, metric=metric)
            assert isinstance(found, TracedJob), found
            return Trace.of(way, found, None, None)

        yield run


def lines(trace: Trace) -> str:
    """The source text of all suspected lines."""
    suspected = [one.line for one in trace.suspects]
    return "".join(linecache.getline(line.file, line.number) for line in suspected)


@pytest.mark.parametrize(
    ("way", "step", "text"),
    [
        ("clamped", EMPTY, "torch.clamp_min(mask.sum(), 1)"),
        ("averaged", UNEQUAL, "self.gradient.div_("),
        ("function", UNEQUAL, "return gradients[0] * 3"),
        ("in_another_thread", UNEQUAL, "return gradients[0] * 3"),
        ("once_more", UNEQUAL, "dist.all_reduce(count)"),
        ("of_a_rank", UNEQUAL, 'count = rows["mask"].sum()'),
        ("times_one", UNEQUAL, "self.tokens(rows) * 1"),
        ("times_ranks", UNEQUAL, "count * dist.get_world_size()"),
        ("rounded", EMPTY, "// 2"),
        ("multiplied", EMPTY, "// 2"),
        ("of_all", UNEQUAL, "torch.ones_like"),
        ("of_all_by_chance", UNEQUAL, "torch.ones_like"),
        ("setting", UNEQUAL, ".sum() / steps)"),
        ("built", EMPTY, "torch.clamp_min(row.sum(), 1)"),
        ("unread", UNEQUAL, "loss, count = self.counted(rows)"),
        ("on_its_own", UNEQUAL, "group = alone"),
        ("in_a_group", UNEQUAL, "dist.new_group([rank])"),
        ("of_pieces", UNEQUAL, "own = pieces.sum()"),
        ("by_width", OF_THIRTEEN, "size(-1)"),
        ("of_all", OF_ONE, "torch.ones_like"),
        ("without_weight", IN_SAMPLES, "(mean * 1)"),
        ("handed_setting", UNEQUAL, ".sum() / steps)"),
        ("less", ON_ONE_RANK, "own = row.sum() - 1"),
        ("divided_too_often", UNEQUAL, "loss = loss / torch.full("),
        ("doubled", UNEQUAL, ".sum() * 2"),
        ("bounded", IN_PARTS, "count * len("),
    ],
)
def test_the_line_is_suspected(traced: Traced, way: str, step: Step, text: str) -> None:
    found = traced(way, step)

    assert text in lines(found)
    assert found.objection is None
    assert len(found.suspects) <= 3


def test_a_small_number_is_none_that_a_called_function_looked_at(traced: Traced) -> None:
    assert any("makes 1 of 1.5" in one.why for one in traced("rounded", EMPTY).suspects)


def test_a_count_that_is_changed_behind_torch_is_suspected_where_it_divides(traced: Traced) -> None:
    assert "self.losses(rows).sum() / count" in lines(traced("behind_torch", UNEQUAL))


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("read_one_by_one", "count += int(row.sum())"),
        ("counted_elsewhere", "total += int(row.sum())"),
        ("meant", "self.losses(rows).mean()"),
    ],
)
def test_a_count_of_masked_tokens_is_suspected_where_it_is_made(
    traced: Traced, way: str, text: str
) -> None:
    assert text in lines(traced(way, ON_ONE_RANK))


@pytest.mark.parametrize(
    ("way", "step", "text"),
    [
        ("halved", UNEQUAL, "dist.all_reduce(logged)"),
        ("divided_in_python", EMPTY, "torch.clamp_min(mask.sum(), 1)"),
        ("logged_alone", UNEQUAL, "return loss.item()"),
        ("logged_unread", UNEQUAL, "dist.all_reduce(logged.clone())"),
        ("named_average", UNEQUAL, "Reduction.MEAN"),
    ],
)
def test_a_wrong_log_of_a_right_gradient_is_suspected_beyond_the_loss(
    traced: Traced, way: str, step: Step, text: str
) -> None:
    assert text in lines(traced(way, step, Metric.POLICY_LOSS))


def test_a_term_that_is_logged_with_its_coefficient_is_suspected_where_it_is_logged(
    traced: Traced,
) -> None:
    assert "logged = term * KL_COEFFICIENT" in lines(traced("scaled_term", UNEQUAL, Metric.KL))


def test_a_right_weight_has_no_suspects(traced: Traced) -> None:
    assert traced("reduced", UNEQUAL).suspects == []


@pytest.mark.parametrize(
    ("way", "texts"),
    [
        ("lost", ["self.gradient.zero_()"]),
        ("left_out", ["(self.losses(rows) * kept)"]),
        ("shared_by_none", ["dist.all_gather(of_ranks, self.gradient)"]),
    ],
)
def test_a_lost_token_is_followed_to_where_it_is_lost(
    traced: Traced, way: str, texts: list[str]
) -> None:
    found = traced(way, UNEQUAL)

    assert found.chain is None
    assert all(text in lines(found) for text in texts)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("logged_without", "rest = "),
        ("logged_of_a_part", "part = self.losses(rows).detach()[:, 1:]"),
    ],
)
def test_a_log_that_lacks_a_token_is_suspected_where_it_is_lost(
    traced: Traced, way: str, text: str
) -> None:
    assert text in lines(traced(way, UNEQUAL, Metric.POLICY_LOSS))


@pytest.mark.parametrize(
    ("way", "text"), [("moved", ".roll(1, -1)"), ("cut", "shifted = padded[:, 1:]")]
)
def test_a_token_whose_gradient_goes_to_another_is_followed_to_where_rows_move(
    traced: Traced, way: str, text: str
) -> None:
    found = traced(way, UNEQUAL)

    assert text in lines(found)
    assert found.objection is not None
    assert "no gradient of it" in found.objection


def test_a_token_that_a_sequence_loses_is_followed_to_where_it_is_cut_off(traced: Traced) -> None:
    assert "shifted = padded[:, 1:]" in lines(traced("cut_in_sequences", OF_SEQUENCES))


def test_a_clipped_token_with_a_gradient_is_traced_to_the_line_of_its_loss(traced: Traced) -> None:
    found = traced("reduced", CLIPPED)

    assert found.job.expected == 0
    assert found.rest == pytest.approx(1)
    assert found.objection is None
    assert 'return -(rows["advantages"] * ratios) * rows["mask"]' in lines(found)


def test_a_weight_that_depends_on_other_losses_is_not_explained(traced: Traced) -> None:
    found = traced("by_size", UNEQUAL)

    assert found.objection is not None
    assert "depends on their losses" in found.objection


def test_nothing_is_left_to_multiply_by_where_factors_are_the_weight_up_to_rounding() -> None:
    assert RightCounts(Given().context, 0).is_size(1 + 2**-52)
