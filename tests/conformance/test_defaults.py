"""Documented defaults are those of the configuration, and those that a step is trained with."""

import numpy as np
import pytest

from adapters.contract import Description, Layout, Observation
from adapters.contract.description import DefaultValue, documented
from adapters.contract.job import Defaults
from adapters.contract.objective import Objective
from conformance.findings.verdict import Check, Verdict
from conformance.judging.defaults import judge_defaults
from conformance.plan.plan import Plan
from tests.jobs import job_of, step_of

JOB = job_of(step_of([1, 1]), objective=Objective.CISPO)
DOCUMENTED = documented("config.mdx", {"cispo.low": 1.0})["cispo.low"]
RIGHT = np.array([0.5, 0.25])


def of(gradient: np.ndarray) -> list[Observation]:
    return [Observation(token_weights=(gradient,))]


@pytest.mark.parametrize(
    ("actual", "gradient", "words"),
    [
        (1.0, RIGHT, None),
        (0.0, RIGHT, "`cispo.low` is 0.0 by default instead of 1.0; see config.mdx"),
        (1.0, 2 * RIGHT, "without `cispo.low` the gradient is another than with documented"),
    ],
)
def test_a_default_is_what_is_documented_in_the_configuration_and_in_the_gradient(
    actual: float, gradient: np.ndarray, words: str | None
) -> None:
    defaults = {Objective.CISPO: (DefaultValue("cispo.low", DOCUMENTED, actual),)}
    judgement = judge_defaults(JOB, of(gradient), of(RIGHT), Description(defaults=defaults))

    if words is None:
        assert judgement.verdict is Verdict.CONFORMS
    else:
        assert judgement.verdict is Verdict.MISMATCH
        assert judgement.diagnosis is not None
        assert judgement.diagnosis.name == "another_default"
        assert words in judgement.diagnosis.explanation


def test_a_plan_leaves_out_options_with_documented_defaults_on_the_smallest_layout() -> None:
    layouts = (Layout(dp=2), Layout(micro_batches=2), Layout())
    plan = Plan(layouts=layouts, with_defaults=frozenset({Objective.CISPO}))
    [cell] = [cell for cell in plan.cells() if cell.spec.check is Check.DEFAULTS]

    assert cell.id.startswith("defaults.cispo/sample_mean/split_groups/dp1-cp1-mb1")
    assert cell.job.defaults is Defaults.LEFT_OUT
