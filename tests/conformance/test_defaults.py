"""Documented defaults are those of the configuration, and those with which a step is trained."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Job, Layout, Observation
from adapters.contract.description import DefaultValue, Documented
from adapters.contract.job import Defaults
from adapters.contract.objective import Objective
from conformance.findings.verdict import Check, Verdict
from conformance.judging.laws import judge_same
from conformance.judging.weights import Judgement
from conformance.plan.checks import check_spec
from conformance.plan.plan import Plan
from conformance.ranks.pool import Crashed, Ran
from tests.conformance.cells import answered
from tests.jobs import job_of, step_of

JOB = job_of(step_of([1, 1]), objective=Objective.CISPO)
DOCUMENTED = Documented(1.0, "config.mdx")
RIGHT = np.array([0.5, 0.25])


def judged(run: Callable[[Job], Ran | Crashed], actual: float = 1.0) -> Judgement:
    """The judgement of a step that leaves out an option, whose default is ``actual``."""
    defaults = {Objective.CISPO: (DefaultValue("cispo.low", DOCUMENTED, actual),)}
    job = replace(JOB, defaults=Defaults.LEFT_OUT)
    return judge_same(check_spec("defaults.cispo"), job, run(job), answered(run, defaults=defaults))


@pytest.mark.parametrize(
    ("actual", "gradient", "words"),
    [
        (1.0, RIGHT, None),
        (0.0, RIGHT, "`cispo.low` is 0.0 by default instead of 1.0; see config.mdx"),
        (
            1.0,
            2 * RIGHT,
            "`gradient` changes from 0.5 to 1 when the documented default of `cispo.low` is left"
            " out; see config.mdx",
        ),
    ],
)
def test_a_default_is_what_is_documented_in_the_configuration_and_in_the_gradient(
    actual: float, gradient: np.ndarray, words: str | None
) -> None:
    def run(job: Job) -> Ran:
        trained = gradient if job.defaults is Defaults.LEFT_OUT else RIGHT
        return Ran((Observation(token_weights=(trained,)),), 0.0)

    judgement = judged(run, actual)

    if words is None:
        assert judgement.verdict is Verdict.CONFORMS
    else:
        assert judgement.verdict is Verdict.MISMATCH
        assert judgement.diagnosis is not None
        assert judgement.diagnosis.name == "another_default"
        assert words in judgement.diagnosis.explanation


@pytest.mark.parametrize("crashing", Defaults)
def test_a_step_that_crashes_with_or_without_documented_defaults_is_a_crash(
    crashing: Defaults,
) -> None:
    def run(job: Job) -> Ran | Crashed:
        if job.defaults is crashing:
            return Crashed("ValueError: no bound", place="loss.py:7 (cispo)")
        return Ran((Observation(token_weights=(RIGHT,)),), 0.0)

    judgement = judged(run)

    assert judgement.verdict is Verdict.CRASHED
    assert judgement.place == "loss.py:7 (cispo)"


def test_a_plan_leaves_out_options_with_documented_defaults_on_the_smallest_layout() -> None:
    layouts = (Layout(dp=2), Layout(micro_batches=2), Layout())
    plan = Plan(layouts=layouts, with_defaults=frozenset({Objective.CISPO}))
    [cell] = [cell for cell in plan.cells() if cell.spec.check is Check.DEFAULTS]

    assert cell.id.startswith("defaults.cispo/sample_mean/split_groups/dp1-cp1-mb1")
    assert cell.job.defaults is Defaults.LEFT_OUT
