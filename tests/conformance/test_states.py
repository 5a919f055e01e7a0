"""Things that change step by step: the pool of ranks, and a step that grows and shrinks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adapters.contract import Depth, Job, Layout
from conformance.corpus.strategies import aggregations, layouts, masks
from conformance.findings.verdict import Verdict
from conformance.judging.weights import judge_weights
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference import exact
from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step
from reference.weights import sample_weights
from tests.broken_rarely import Mood, Temperamental

LAYOUTS = layouts(Temperamental(), max_ranks=4)


class PoolMachine(RuleBasedStateMachine):
    """A pool whose jobs sometimes fail, on any layout, still gives right weights."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = RankPool(Temperamental(), None, size=4, time_limit=30)

    def run(self, mood: Mood, aggregation: Aggregation, layout: Layout) -> object:
        samples = [Sample(prompt_length=mood, loss_mask=[1, 0, 1], group=i // 2) for i in range(5)]
        self.job = Job(
            steps=(Step.of(samples),), aggregation=aggregation, layout=layout, depth=Depth.STEP
        )
        return self.pool.run(self.job)

    @rule(aggregation=aggregations(), layout=LAYOUTS)
    def train(self, aggregation: Aggregation, layout: Layout) -> None:
        outcome = self.run(Mood.FINE, aggregation, layout)

        assert isinstance(outcome, Ran)
        assert len(outcome.observations) == layout.world_size
        judgement = judge_weights(self.job, outcome.observations, self.pool.description)
        assert judgement.verdict is Verdict.CONFORMS

    @rule(aggregation=aggregations(), layout=LAYOUTS, mood=st.sampled_from([Mood.RAISE, Mood.EXIT]))
    def crash(self, aggregation: Aggregation, layout: Layout, mood: Mood) -> None:
        assert isinstance(self.run(mood, aggregation, layout), Crashed)

    @rule(aggregation=aggregations(), layout=LAYOUTS)
    def decline(self, aggregation: Aggregation, layout: Layout) -> None:
        outcome = self.run(Mood.DECLINE, aggregation, layout)

        assert outcome == Declined("refused", "ValueError: not today")

    def teardown(self) -> None:
        self.pool.__exit__(None, None, None)


class StepMachine(RuleBasedStateMachine):
    """Samples come, go and change places; weights stay the exact ones and keep their meaning."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = [Sample(prompt_length=1, loss_mask=[1], group=0)]

    @rule(mask=masks(), group=st.integers(0, 3), data=st.data())
    def add(self, mask: list[int], group: int, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.samples)))
        before = self.weights(Mode.CONSTANT)
        self.samples.insert(place, Sample(prompt_length=1, loss_mask=mask, group=group))

        size = len(self.samples)
        others = np.delete(self.weights(Mode.CONSTANT), place)
        assert np.allclose(others * size, before * (size - 1), rtol=1e-15, atol=0)

    @precondition(lambda self: len(self.samples) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.samples.pop(data.draw(st.integers(0, len(self.samples) - 1)))

    @rule(data=st.data())
    def permute(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(self.samples))))
        before = {mode: self.weights(mode) for mode in Mode}
        self.samples = [self.samples[i] for i in order]

        for mode in Mode:
            assert self.weights(mode).tolist() == before[mode][order].tolist()

    @rule(data=st.data())
    def mask_one(self, data: st.DataObject) -> None:
        """Of the others only those weigh anything else that share a denominator with it."""
        place = data.draw(st.integers(0, len(self.samples) - 1))
        before = self.weights(Mode.SAMPLE_MEAN)
        masked = self.samples[place]
        self.samples[place] = Sample(
            prompt_length=1, loss_mask=np.zeros_like(masked.loss_mask), group=masked.group
        )

        after = self.weights(Mode.SAMPLE_MEAN)
        assert after[place] == 0
        assert np.delete(after, place).tolist() == np.delete(before, place).tolist()

    @invariant()
    def weights_are_the_exact_ones(self) -> None:
        step = Step.of(self.samples)
        for mode in Mode:
            aggregation = self.aggregation(mode)
            exactly = exact.token_weights(step, aggregation)
            largest = [float(max(sample, default=Fraction(0))) for sample in exactly]
            has_tokens = step.active_tokens > 0
            assert (
                sample_weights(step, aggregation)[has_tokens] == np.array(largest)[has_tokens]
            ).all()

    def weights(self, mode: Mode) -> np.ndarray:
        """Of each sample's active tokens, 0 where it has none."""
        step = Step.of(self.samples)
        return np.where(step.active_tokens > 0, sample_weights(step, self.aggregation(mode)), 0.0)

    def aggregation(self, mode: Mode) -> Aggregation:
        return Aggregation(mode, 40 if mode is Mode.CONSTANT else None)


TestPool = PoolMachine.TestCase
TestPool.pytestmark = [pytest.mark.processes]
TestPool.settings = settings(max_examples=4, stateful_step_count=6, deadline=None)

TestStep = StepMachine.TestCase
TestStep.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
