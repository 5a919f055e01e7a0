"""The pool of ranks, which changes from job to job."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from adapters.contract import Layout
from conformance.corpus.strategies import aggregations, layouts
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Trained, judge_weights
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import Aggregation
from reference.step import Sample, Step
from tests.broken_rarely import Mood, Temperamental
from tests.jobs import job_of

LAYOUTS = layouts(Temperamental(), max_ranks=4)


class PoolMachine(RuleBasedStateMachine):
    """A pool whose jobs sometimes fail, on any layout, still gives right weights."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = RankPool(Temperamental(), None, size=4, time_limit=30)

    def run(self, mood: Mood, aggregation: Aggregation, layout: Layout) -> object:
        samples = [Sample(prompt_length=mood, loss_mask=[1, 0, 1], group=i // 2) for i in range(5)]
        self.job = job_of(Step.of(samples), aggregation=aggregation, layout=layout)
        return self.pool.run(self.job)

    @rule(aggregation=aggregations(), layout=LAYOUTS)
    def train(self, aggregation: Aggregation, layout: Layout) -> None:
        outcome = self.run(Mood.FINE, aggregation, layout)

        assert isinstance(outcome, Ran)
        assert len(outcome.observations) == layout.world_size
        judgement = judge_weights(Trained(self.job, outcome.observations, self.pool.description))
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


TestPool = PoolMachine.TestCase
TestPool.pytestmark = [pytest.mark.processes]
TestPool.settings = settings(max_examples=4, stateful_step_count=6, deadline=None)
