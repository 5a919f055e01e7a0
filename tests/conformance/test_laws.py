"""Changes of a step that must not matter, and the numbers that they must not change."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Job, Layout, Observation, Option, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import NEW_NAME
from adapters.contract.objective import FROM_REWARDS, WITH_REJECTION, Objective
from adapters.contract.recorded import LOGGED
from adapters.native.adapter import NativeAdapter
from conformance.findings.verdict import Check, Verdict
from conformance.judging.weights import Judgement
from conformance.laws.law import LAWS, PLACEHOLDERS, Law, with_other_values
from conformance.laws.rows import rows_of, step_of
from conformance.plan.checks import LAWFUL
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran
from conformance.ranks.worker import _observed
from conformance.runs.check import make
from reference.aggregation import Aggregation, Mode
from tests.conformance.cells import answered
from tests.jobs import job_of
from tests.jobs import step_of as step

STEP = step([1, 0, 1], [1, 1], [1, 1, 1], [1, 0, 1, 1], prompts=[2, 1, 1, 3], groups=[0, 0, 1, 1])
JOB = job_of(STEP, objective=Objective.OFF_POLICY, layout=Layout(micro_batches=2))

Number = Callable[[ProbedBatch, Job], float]


def active(batch: ProbedBatch, values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(values)[np.concatenate(batch.masks)]


def right(batch: ProbedBatch, job: Job) -> float:
    return float(active(batch, batch.entropies).mean())


def of_products(batch: ProbedBatch, job: Job) -> float:
    """The standard deviation of entropies, with zeros at masked tokens."""
    return float((np.concatenate(batch.entropies) * np.concatenate(batch.masks)).std())


def of_padded_width(batch: ProbedBatch, job: Job) -> float:
    widest = max(len(a) + len(b) for a, b in zip(batch.prompts, batch.responses, strict=True))
    return float(active(batch, batch.entropies).sum() / (widest * len(batch.masks)))


def of_first_sample(batch: ProbedBatch, job: Job) -> float:
    return float(batch.entropies[0].mean())


def of_largest_id(batch: ProbedBatch, job: Job) -> float:
    return float(job.steps[0].groups.max() * active(batch, batch.entropies).mean())


def of_micro_batches_added(batch: ProbedBatch, job: Job) -> float:
    assert isinstance(job.layout.micro_batches, int)
    return job.layout.micro_batches * right(batch, job)


def tokens(batch: ProbedBatch, job: Job) -> float:
    return float(sum(map(len, batch.masks)))


TIMES = itertools.count()
WIDTHS = [0, 0]
"""The widest prompts of the last two steps."""


def of_the_step_before(batch: ProbedBatch, job: Job) -> float:
    WIDTHS[:] = [WIDTHS[1], max(map(len, batch.prompts))]
    return right(batch, job) * WIDTHS[0]


class Logging(NativeAdapter):
    """`native`, with one more logged number."""

    def __init__(self, number: Number) -> None:
        self.number = number

    def observe(self, job: Job, rank: Rank) -> Observation:
        batch = ProbedBatch.of(job)
        LOGGED.note([{"its/number": self.number(batch, job), "time": next(TIMES), "note": "none"}])
        return super().observe(job, rank)


def judged(law: Law, number: Number, **described: object) -> Judgement:
    return judged_by(Logging(number), law, Objective.OFF_POLICY, **described)


def judged_by(
    adapter: NativeAdapter, law: Law, objective: Objective, **described: object
) -> Judgement:
    [spec] = [one for one in LAWFUL if one.law is law and one.objective is objective]
    [case] = spec.cases
    cell = MatrixCell(
        aggregation=Aggregation(Mode.TOKEN_MEAN),
        case=replace(case, steps=(STEP,)),
        layout=Layout() if law.fits(Layout()) else Layout(micro_batches=2),
        depth=JOB.depth,
        spec=spec,
    )
    return make(cell, answered(lambda job: trained(adapter, job), adapter, **described))


def trained(adapter: NativeAdapter, job: Job) -> Ran:
    """The observation of one rank."""
    return Ran((_observed(adapter, job, Rank(index=0, world_size=1)),), 0.0)


def of_samples(batch: ProbedBatch, job: Job) -> float:
    """The mean over samples of their mean entropies, 0 for samples without active tokens."""
    pairs = zip(batch.entropies, batch.masks, strict=True)
    return float(np.mean([(values * mask).sum() / max(mask.sum(), 1) for values, mask in pairs]))


ONE_TOKEN = {"masked_token_first", "masked_token_within", "masked_token_last"}
MASKED_TOKENS = {*ONE_TOKEN, "image_within"}
WRONG = {
    of_products: {*MASKED_TOKENS, "masked_twins"},
    of_samples: {"masked_twins"},
    of_padded_width: {*MASKED_TOKENS, "longer_prompt", "masked_twins"},
    of_first_sample: {"sample_order"},
    of_largest_id: {"other_ids", "masked_twins"},
    of_micro_batches_added: {"cut"},
    of_the_step_before: {"again"},
    right: set(),
    tokens: set(),
}
"""Numbers with a mistake, and the laws that they break."""


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("cut", Layout()),
        ("cut_sequences", Layout(dp=2, tp=2, pp=2, micro_batches=2)),
        ("cut_model", Layout(dp=2, cp=2, micro_batches=2)),
    ],
)
def test_a_law_of_cuts_undoes_its_own_cut_alone(name: str, before: Layout) -> None:
    cut = Layout(dp=2, cp=2, tp=2, pp=2, micro_batches=2, options=(Option.ALLGATHER_CP,))

    assert LAWS[name].fits(cut)
    assert not LAWS[name].fits(before)
    assert LAWS[name].before(replace(JOB, layout=cut)).layout == before


INVARIANCES = {name: law for name, law in LAWS.items() if law.is_invariance}


@pytest.mark.parametrize("law", INVARIANCES.values(), ids=INVARIANCES)
@pytest.mark.parametrize("number", WRONG, ids=lambda number: number.__name__)
def test_each_law_sees_the_number_that_breaks_it_and_no_other(number: Number, law: Law) -> None:
    judgement = judged(law, number)

    expected = Verdict.ADVICE if law.name in WRONG[number] else Verdict.CONFORMS
    assert judgement.verdict is expected
    if expected is Verdict.ADVICE:
        assert judgement.diagnosis is not None
        assert judgement.diagnosis.name == law.mistake
        assert judgement.diagnosis.explanation.startswith("`its/number` changes from ")
        assert "time" not in judgement.diagnosis.explanation


def test_a_law_that_the_framework_states_is_broken_by_a_mismatch() -> None:
    law = LAWS["cut"]
    rules = {"laws.cut": "docs/logging.md"}

    assert judged(law, of_micro_batches_added, rules=rules).verdict is Verdict.MISMATCH
    assert judged(law, right, rules=rules).verdict is Verdict.CONFORMS


class OfSquares(NativeAdapter):
    """Computes the variance of rewards as a difference of squares in float32."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        rewards = ProbedBatch.of(job).rewards.astype(np.float32)
        of_squares = float((rewards**2).mean() - rewards.mean() ** 2)
        right = float(rewards.astype(np.float64).var())
        seen = super().observe(job, rank)
        weights = [of_step * right / of_squares for of_step in seen.token_weights]
        return replace(seen, token_weights=tuple(weights))


@pytest.mark.parametrize("name", ["rewards_shifted", "rewards_scaled"])
def test_a_deviation_that_loses_its_digits_is_seen_with_large_rewards(name: str) -> None:
    of_estimator = LAWS[name], Objective.GROUP_NORMALISED

    assert judged_by(NativeAdapter(), *of_estimator).verdict is Verdict.CONFORMS
    is_seen = judged_by(OfSquares(), *of_estimator).verdict is Verdict.MISMATCH
    assert is_seen is (name == "rewards_shifted")


@pytest.mark.parametrize("law", INVARIANCES.values(), ids=INVARIANCES)
def test_values_follow_tokens_and_samples_into_the_changed_step(law: Law) -> None:
    """This holds for each objective's columns."""
    for objective in (Objective.OFF_POLICY, Objective.GSPO, Objective.GAE, Objective.TIS_TOKEN):
        job = replace(JOB, objective=objective)
        before, after = ProbedBatch.of(job), ProbedBatch.of(law.after(job))
        for column in ("advantages", "old_log_probs", "values", "entropies", "rollout_log_probs"):
            old, new = (by_name(batch, column) for batch in (before, after))
            assert old.items() <= new.items()
        assert {*before.rewards} == {*after.rewards}


def by_name(batch: ProbedBatch, column: str) -> dict[int, float]:
    names, values = np.concatenate(batch.names), np.concatenate(getattr(batch, column))
    return dict(zip(names.tolist(), values.tolist(), strict=True))


def test_the_tables_of_a_model_have_the_values_of_the_changed_step() -> None:
    batch = ProbedBatch.of(LAWS["sample_order"].after(JOB))
    ids = np.concatenate(batch.responses)

    assert batch.entropy_table[ids].tolist() == np.concatenate(batch.entropies).tolist()
    assert batch.entropy_table[ids].tolist() != ProbedBatch.of(JOB).entropy_table[ids % 4].tolist()


def test_rows_make_the_step_that_they_are_of() -> None:
    [rows] = rows_of([STEP])
    again = step_of(rows, is_rejecting=False)

    assert again.mask.tolist() == STEP.mask.tolist()
    assert again.prompt_lengths.tolist() == STEP.prompt_lengths.tolist()
    assert again.groups.tolist() == STEP.groups.tolist()
    assert ProbedBatch((again,)).rewards.tolist() == ProbedBatch((STEP,)).rewards.tolist()


def test_other_values_are_other_at_every_token_and_leave_the_masks() -> None:
    before, after = ProbedBatch.of(JOB), ProbedBatch.of(with_other_values(JOB))

    assert (np.concatenate(before.entropies) != np.concatenate(after.entropies)).all()
    assert (before.rewards != after.rewards).all()
    assert np.concatenate(before.masks).tolist() == np.concatenate(after.masks).tolist()


def test_where_tokens_are_rejected_other_values_reject_one_more() -> None:
    """Otherwise other values would leave the fraction of rejected tokens as it is."""
    of_rejection = next(spec for spec in LAWFUL if spec.objective in WITH_REJECTION)
    job = replace(JOB, objective=of_rejection.objective, steps=of_rejection.cases[0].steps)
    before, after = ProbedBatch.of(job), ProbedBatch.of(with_other_values(job))

    kept = [int(np.concatenate(batch.masks).sum()) for batch in (before, after)]
    assert kept[0] - kept[1] == 1
    assert np.array_equal(*map(np.concatenate, (before.original_masks, after.original_masks)))


@pytest.mark.parametrize("name", sorted(ONE_TOKEN))
def test_one_more_masked_token_makes_all_other_rows_shorter_than_the_longest(name: str) -> None:
    before, after = STEP.response_lengths, LAWS[name].after(JOB).steps[0].response_lengths

    assert after.max() == before.max() + 1
    assert int((after != before).sum()) == 1


def test_an_image_is_one_masked_token_many_times_before_the_last_turn() -> None:
    """All placeholders have one name and therefore equal values, such as entropies."""
    after = ProbedBatch.of(LAWS["image_within"].after(JOB))

    longest = int(np.argmax(STEP.response_lengths))
    mask, image = after.masks[longest], np.flatnonzero(after.names[longest] >= NEW_NAME)
    assert image.tolist() == [*range(image[0], image[0] + PLACEHOLDERS)]
    assert len({*after.entropies[longest][image].tolist()}) == 1
    assert not mask[image].any()
    assert mask[: image[0]].any()
    assert mask[image[-1] + 1 :].sum() == 1


def test_a_plan_looks_at_each_law_with_each_kind_of_numbers() -> None:
    layouts = (Layout(), Layout(dp=2, micro_batches=2), Layout(cp=2), Layout(tp=2))
    cells = [cell for cell in Plan(layouts=layouts).cells() if cell.spec.check is Check.LAWS]

    assert {cell.spec.name for cell in cells} == {spec.name for spec in LAWFUL}
    assert all(cell.spec.law and cell.spec.law.fits(cell.layout) for cell in cells)


def deviation(batch: ProbedBatch, job: Job) -> float:
    return float(np.std(batch.rewards))


def test_numbers_of_rewards_are_found_on_a_layout_that_trains_them() -> None:
    """One example is ms-swift on Megatron: it declines prompts that do not fill micro-batches."""
    adapter = Logging(deviation)
    smallest = min(adapter.layouts(), key=lambda one: (one.world_size, str(one)))

    def run(job: Job) -> Ran | Declined:
        if job.objective in FROM_REWARDS and job.layout == smallest:
            return Declined("unsupported", "prompts that are no whole micro-batch")
        return trained(adapter, job)

    assert "its/number" in answered(run, adapter).numbers_of_rewards(JOB)
