"""Objectives that a framework documents to have a mode of their own."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from adapters.contract import Depth, Description, FixedMode, Job, Layout, Observation
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement
from conformance.plan.checks import check_spec
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import Ran
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights

CASE = next(case for case in CORPUS if case.name == "fully_masked_sample")

SAPO_BY_SAMPLES = {Objective.SAPO: FixedMode(Mode.SAMPLE_MEAN, "its docstring")}


@dataclass
class TrainingBy:
    """Stands where a rank is that weighs tokens by one mode, whatever it is asked for."""

    mode: Mode
    description: Description

    def run(self, job: Job) -> Ran:
        """The gradient of the job's objective by that mode."""
        batch = ProbedBatch(job.steps, job.objective)
        of_ids = np.zeros(batch.probe_size)
        of_ids[np.concatenate(batch.responses)] = (
            token_weights(job.steps[0], Aggregation(self.mode)) * batch.dloss_dlogprob
        )
        weights = batch.split(batch.weights(of_ids))
        return Ran((Observation(token_weights=tuple(weights)),))


def finding(trained: Mode, asked: Mode, fixed: dict[Objective, FixedMode]) -> Judgement:
    cell = MatrixCell(
        aggregation=CASE.aggregation(asked),
        case=CASE,
        layout=Layout(),
        depth=Depth.STEP,
        spec=check_spec("off_policy.sapo"),
    )
    description = replace(NativeAdapter().describe(), fixed_modes=fixed)
    return make(cell, SharedJobs(TrainingBy(trained, description)))  # type: ignore[arg-type]


def test_mode_that_is_ignored_as_documented_is_advice() -> None:
    advised = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, SAPO_BY_SAMPLES)

    assert advised.verdict is Verdict.ADVICE
    assert advised.diagnosis.name == "option_ignored"
    assert advised.diagnosis.explanation == (
        "sapo has the weights of sample_mean, whatever mode is set, as its docstring says:"
        " token_mean is ignored"
    )


@pytest.mark.parametrize("asked", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN])
def test_mode_that_is_heeded_conforms(asked: Mode) -> None:
    assert finding(asked, asked, SAPO_BY_SAMPLES).verdict is Verdict.CONFORMS


def test_mode_that_is_neither_set_nor_documented_is_wrong() -> None:
    wrong = finding(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, SAPO_BY_SAMPLES)

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis.name == "weights_of_prompt_mean"


def test_mode_that_is_ignored_without_a_word_is_wrong() -> None:
    wrong = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, {})

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis.name == "weights_of_sample_mean"
