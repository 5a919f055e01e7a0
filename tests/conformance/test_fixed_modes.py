"""Options that change nothing: modes that an objective is documented to ignore, and others."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Depth, FixedMode, Job, Layout, Observation
from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import CONSTANTS, Objective
from adapters.native.adapter import NativeAdapter
from conformance.explain.causes import causes
from conformance.findings.cause import TermMistake
from conformance.findings.finding import Logged
from conformance.findings.verdict import Verdict
from conformance.judging.advice import named_after_option
from conformance.judging.weights import Judgement
from conformance.ranks.pool import Ran
from conformance.runs.check import make
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights
from tests.adapters import steps
from tests.conformance.cells import answered, cell

CASE = "fully_masked_sample"

SAPO_BY_SAMPLES = {Objective.SAPO: FixedMode(Mode.SAMPLE_MEAN, "its docstring")}


def finding(
    trained: Mode,
    asked: Mode,
    objective: Objective = Objective.SAPO,
    loss: Objective | None = None,
    **described: object,
) -> Judgement:
    """The judgement of a framework that trains in another mode than requested.

    It may also train another loss than requested.
    """

    def run(job: Job) -> Ran:
        batch = ProbedBatch(job.steps, job.objective)
        derivatives = batch.dloss_dlogprob
        if loss is not None:
            derivatives = DERIVATIVES[loss](batch.policy_tokens, CONSTANTS)
        of_ids = np.zeros(batch.probe_size)
        of_ids[np.concatenate(batch.responses)] = (
            token_weights(job.steps[0], Aggregation(trained)) * derivatives
        )
        return Ran((Observation(token_weights=tuple(batch.split(batch.weights(of_ids)))),))

    looked_at = cell(CASE, mode=asked, check=f"off_policy.{objective}")
    return make(looked_at, answered(run, **described))


def test_mode_that_is_ignored_as_documented_is_advice() -> None:
    advised = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, fixed_modes=SAPO_BY_SAMPLES)

    assert advised.verdict is Verdict.ADVICE
    assert advised.diagnosis.name == "option_ignored"
    assert advised.diagnosis.explanation == (
        "sapo has the weights of sample_mean, whatever mode is set, as its docstring says:"
        " token_mean is ignored"
    )


@pytest.mark.parametrize("asked", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN])
def test_mode_that_is_heeded_conforms(asked: Mode) -> None:
    assert finding(asked, asked, fixed_modes=SAPO_BY_SAMPLES).verdict is Verdict.CONFORMS


def test_mode_that_is_neither_set_nor_documented_is_wrong() -> None:
    wrong = finding(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, fixed_modes=SAPO_BY_SAMPLES)

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis.name == "weights_of_prompt_mean"


def test_mode_that_is_ignored_without_a_word_is_wrong() -> None:
    wrong = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis.name == "weights_of_sample_mean"


OPTIONS = {
    Objective.DUAL_CLIP: ("--dual-clip=3.0",),
    Objective.SAPO: ("loss=sapo",),
    Mode.TOKEN_MEAN: ("--mode=token_mean",),
}


@pytest.mark.parametrize(
    ("objective", "trained", "said"),
    [
        (Objective.DUAL_CLIP, Mode.SAMPLE_MEAN, ": losses of negative advantages are not bounded"),
        (Objective.DUAL_CLIP, Mode.PROMPT_MEAN, ": besides, reduced as prompt_mean"),
        (Objective.SAPO, Mode.SAMPLE_MEAN, ": the gradient is that of PPO's loss"),
    ],
)
def test_option_without_which_the_loss_would_be_the_same_is_named(
    objective: Objective, trained: Mode, said: str
) -> None:
    wrong = finding(trained, Mode.SAMPLE_MEAN, objective, Objective.OFF_POLICY, chosen_by=OPTIONS)
    name = f"off_policy.{objective}/sample_mean/{CASE}/{Layout()}"
    [cause] = causes([wrong.finding(name, Depth.STEP)], [], {})

    assert wrong.diagnosis.explanation.endswith(said)
    assert cause.name == "option_ignored"
    assert cause.statement == f"{OPTIONS[objective][0]} is accepted and changes nothing"


def test_mode_that_changes_nothing_is_named_by_its_option() -> None:
    wrong = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, chosen_by=OPTIONS)

    assert wrong.diagnosis.name == "option_ignored"
    assert wrong.diagnosis.explanation == (
        "--mode=token_mean is accepted and changes nothing: reduced as sample_mean"
    )


def test_option_is_not_accused_where_there_is_an_explanation_without_it() -> None:
    wrong = finding(Mode.PROMPT_MEAN, Mode.SAMPLE_MEAN, Objective.DUAL_CLIP, Objective.OFF_POLICY)
    assert wrong.clues is not None
    described = replace(NativeAdapter().describe(), chosen_by=OPTIONS)
    job = steps.job(CASE, Mode.SAMPLE_MEAN, str(Layout()), Objective.DUAL_CLIP)
    without = [[TermMistake.of("policy_loss", "multiplied_by_cp")]]
    explanations = [*wrong.clues.explanations, without]
    unclear = replace(wrong, clues=wrong.clues.model_copy(update={"explanations": explanations}))

    assert named_after_option(wrong, job, described).diagnosis.name == "option_ignored"
    assert named_after_option(unclear, job, described) is unclear


def test_a_logged_number_names_no_option_if_another_mistake_gives_it_too() -> None:
    wrong = finding(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)
    assert wrong.clues is not None
    described = replace(NativeAdapter().describe(), chosen_by=OPTIONS)
    job = steps.job(CASE, Mode.TOKEN_MEAN, str(Layout()))
    number = replace(wrong, logged=Logged(expected=1.0, reported=2.0))
    averaged = [[TermMistake.of("policy_loss", "shares_averaged_by_tokens")]]
    explanations = [*wrong.clues.explanations, averaged]
    unclear = replace(number, clues=wrong.clues.model_copy(update={"explanations": explanations}))

    assert named_after_option(number, job, described).diagnosis.name == "option_ignored"
    assert named_after_option(unclear, job, described) is unclear
