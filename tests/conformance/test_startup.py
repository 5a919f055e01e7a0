"""Outcomes of configurations are compared with the demands of the checks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Depth, Description, Job, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import DEFAULT_CONFIGURATION, Configuration, Setting
from adapters.contract.objective import ENTROPY_COEFFICIENT
from conformance.corpus.cases import CORPUS
from conformance.corpus.configurations import CONFIG_CASES, ConfigCase
from conformance.findings.verdict import Verdict
from conformance.judging.startup import (
    by_own_rules,
    compared_with,
    judge_acceptance,
    judge_crash,
    judge_refusal,
    judge_startup,
)
from conformance.judging.weights import Judgement, Trained, unjudged
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    Conventions,
    DenominatorMask,
    Mode,
    auxiliary_aggregation,
)
from reference.weights import token_weights
from tests.conformance.cells import answered

BY_NAME = {config_case.name: config_case for config_case in CONFIG_CASES}
ZERO = BY_NAME["divisor_zero"]
LEGACY = BY_NAME["legacy_flag"]
REDUCER = BY_NAME["custom_reducer"]

NAMING = Description(
    configurations={
        Setting.DIVISOR: ("divisor",),
        Setting.PER_TOKEN: ("per-token",),
        Setting.REDUCER: ("reducer",),
    }
)


def job_of(config_case: ConfigCase, mode: Mode) -> Job:
    return Job(
        steps=config_case.given.steps,
        aggregation=config_case.given.aggregation(mode),
        layout=Layout(),
        depth=Depth.STEP,
        configuration=config_case.configuration,
    )


def observed(job: Job, aggregation: Aggregation, factor: float = 1.0) -> list[Observation]:
    """The observation of the right weights of an aggregation, times a factor."""
    return [
        Observation(
            token_weights=tuple(factor * token_weights(step, aggregation) for step in job.steps)
        )
    ]


def accepted(case: ConfigCase, mode: Mode, *seen: Observation, factor: float = 1.0) -> Judgement:
    """The judgement of an observation; by default, of the right weights times a factor."""
    job = job_of(case, mode)
    weights = list(seen) or observed(job, job.aggregation, factor)
    return judge_acceptance(case, Trained(job, weights, Description()), None)


def weighing(weights: NDArray[np.float64], **others: Any) -> Observation:
    return Observation(token_weights=(weights,), **others)


def name_of(judgement: Judgement) -> str:
    assert judgement.verdict is Verdict.MISMATCH
    return judgement.diagnosis.name


def test_rows_have_names_and_cases_of_their_own() -> None:
    assert len(BY_NAME) == len(CONFIG_CASES)
    assert {config_case.case for config_case in CONFIG_CASES} <= {case.name for case in CORPUS}


@pytest.mark.parametrize("config_case", CONFIG_CASES, ids=lambda config_case: config_case.name)
def test_every_configuration_sets_something_in_some_mode(config_case: ConfigCase) -> None:
    assert config_case.configuration.settings
    assert config_case.modes


def test_refusal_that_names_the_option_is_right() -> None:
    message = "ValueError: --loss-aggregation-DIVISOR must be positive"
    judgement = judge_refusal(ZERO, message, NAMING)

    assert judgement.verdict is Verdict.REFUSED
    assert judgement.message == message


def test_names_of_options_are_the_framework_s() -> None:
    """The word "divisor" does not name the option if the framework calls it `max_seq_len`."""
    message = "ValueError: divisor must be positive"
    other = Description(configurations={Setting.DIVISOR: ("max_seq_len",)})
    judgement = judge_refusal(ZERO, message, other)

    assert name_of(judgement) == "refused_without_naming"
    assert judgement.diagnosis.explanation.endswith("names none of max_seq_len")


def test_refusal_that_names_nothing_is_not() -> None:
    assert name_of(judge_refusal(ZERO, "AssertionError: ", NAMING)) == "refused_without_naming"


def test_what_must_be_accepted_may_not_be_refused() -> None:
    message = "ValueError: per-token flag"

    judgement = judge_refusal(LEGACY, message, NAMING)

    assert name_of(judgement) == "refused_what_it_supports"
    assert judgement.message == message


def test_what_is_accepted_is_told_with_what_is_then_trained() -> None:
    right, wrong = (accepted(ZERO, Mode.CONSTANT, factor=factor) for factor in (1.0, 40.0))

    assert name_of(right) == name_of(wrong) == "accepted"
    assert right.error is None
    assert wrong.error == pytest.approx(39)
    assert right.diagnosis.explanation.endswith("then weights are those of constant")
    assert "40" in wrong.diagnosis.explanation


def test_divisor_that_a_framework_chooses_is_one_for_all_tokens_of_a_step() -> None:
    """In the wrong case, half of the samples are divided by 6 and the others by 8."""
    by_default = BY_NAME["divisor_by_default"]
    [step] = by_default.given.steps
    half = step.mask & (np.arange(len(step.mask)) < step.offsets[step.size // 2])
    one = step.mask / (8.0 * step.size)
    several = np.where(half, step.mask / (6.0 * step.size), one)
    none = np.where(half, 0.0, one)
    right, wrong, missing = (
        accepted(by_default, Mode.CONSTANT, weighing(weights)) for weights in (one, several, none)
    )

    assert right.verdict is Verdict.CONFORMS
    assert name_of(wrong) == "several_divisors"
    assert wrong.error == pytest.approx(1 / 3)
    assert wrong.diagnosis.explanation.endswith("are divided by 6 to 8")
    assert wrong.scale == pytest.approx(1)
    assert wrong.cosine is not None
    assert wrong.cosine < 0.999
    assert wrong.picture is not None
    assert name_of(missing) == "tokens_missing"


def test_divisor_that_is_left_to_a_micro_batch_is_named_after_its_width() -> None:
    """The longest responses of the two micro-batches have 5 and 13 tokens."""
    by_default = BY_NAME["divisor_by_default"]
    [step] = by_default.given.steps
    second = np.arange(len(step.mask)) >= step.offsets[step.size // 2]
    weights = step.mask / (np.where(second, 13.0, 5.0) * step.size)
    seen = weighing(weights, forward_passes=(second.astype(np.int32),))

    wrong = accepted(by_default, Mode.CONSTANT, seen)

    assert name_of(wrong) == "padded_width_as_divisor"
    assert wrong.diagnosis.explanation.endswith(
        "are divided by 5 to 13: the divisor is the longest response of a micro-batch"
    )


def test_legacy_flag_is_compared_bit_for_bit() -> None:
    job = job_of(LEGACY, Mode.TOKEN_MEAN)
    plain = observed(job, job.aggregation)
    last_bit = [replace(plain[0], token_weights=(np.nextafter(plain[0].token_weights[0], 1),))]
    default = Trained(job, plain, Description())
    same = judge_acceptance(LEGACY, default, default)
    off = judge_acceptance(LEGACY, Trained(job, last_bit, Description()), default)

    assert same.verdict is Verdict.CONFORMS
    assert name_of(off) == "not_the_same"


def test_default_is_compared_with_what_is_documented_to_be_it() -> None:
    config_case = BY_NAME["default_mode"]
    job = job_of(config_case, Mode.SAMPLE_MEAN)
    other = compared_with(config_case, job, Description(default_mode=Mode.TOKEN_MEAN))

    assert other.aggregation == Aggregation(Mode.TOKEN_MEAN)
    assert other.configuration.says_mode
    assert compared_with(config_case, job, Description()).aggregation == Aggregation(
        Mode.SAMPLE_MEAN
    )


@pytest.mark.parametrize("mode", Mode)
def test_custom_reducer_divides_by_its_own_and_by_what_the_step_does(mode: Mode) -> None:
    [step] = REDUCER.given.steps
    units = step.active_tokens.sum() if mode is Mode.TOKEN_MEAN else step.size
    right = accepted(REDUCER, mode, weighing(step.mask / (64.0 * units)))

    assert right.verdict is Verdict.CONFORMS
    assert name_of(accepted(REDUCER, mode)) == "reducer_ignored"


def test_custom_reducer_that_is_used_and_rescaled_is_not_called_ignored() -> None:
    """Token losses are divided by 64, as the reducer does, but not by the step's 35 tokens."""
    [step] = REDUCER.given.steps
    rescaled = accepted(REDUCER, Mode.TOKEN_MEAN, weighing(step.mask / 64.0))

    assert name_of(rescaled) == "reducer_rescaled"
    assert "35 times" in rescaled.diagnosis.explanation


def test_custom_reducer_may_be_refused_by_name() -> None:
    message = "ValueError: --custom-pg-loss-reducer-function-path and a divisor exclude each other"

    assert judge_refusal(REDUCER, message, NAMING).verdict is Verdict.REFUSED
    assert name_of(judge_refusal(REDUCER, "AssertionError: ", NAMING)) == "refused_without_naming"


@pytest.mark.parametrize(
    ("name", "conventions"),
    [
        ("entropy_per_sample", Conventions(entropy=AuxiliaryAggregation.SAMPLE_MEAN)),
        ("divergence_per_sample_in_file", Conventions(kl=AuxiliaryAggregation.SAMPLE_MEAN)),
        ("correction_across_the_step", Conventions(denominator_mask=DenominatorMask.MODIFIED)),
    ],
)
def test_rules_are_about_frameworks_of_such_conventions(
    name: str, conventions: Conventions
) -> None:
    others = Conventions(denominator_mask=DenominatorMask.ORIGINAL)

    assert BY_NAME[name].applies(conventions)
    assert not BY_NAME[name].applies(others)
    assert ZERO.applies(others)


STATED = Description(rules={"divisor_zero": "the help text of --divisor"})


def test_rule_is_held_against_who_states_it_and_is_advice_to_others() -> None:
    taken = accepted(ZERO, Mode.CONSTANT)
    own, other = (by_own_rules(taken, ZERO, by) for by in (STATED, Description()))

    assert own.verdict is Verdict.MISMATCH
    assert own.diagnosis.explanation.endswith("stated in the help text of --divisor")
    assert other.verdict is Verdict.ADVICE
    assert other.diagnosis.explanation.endswith(
        "the rule is miles' pull request 1498's, and this framework states none"
    )


def test_rule_of_the_command_line_need_not_hold_for_a_file() -> None:
    config_case = BY_NAME["divisor_zero_in_file"]
    crash = judge_crash(
        config_case, Crashed("TypeError: unsupported operand\nTraceback", place=PLACE)
    )
    of_both = Description(rules={**STATED.rules, config_case.name: "the same validation"})

    assert by_own_rules(crash, config_case, STATED).verdict is Verdict.ADVICE
    assert by_own_rules(crash, config_case, of_both).verdict is Verdict.MISMATCH
    assert name_of(crash) == "fails_later"
    assert crash.place == PLACE
    assert crash.diagnosis.explanation.endswith("fails later: TypeError: unsupported operand")


def test_what_keeps_a_rule_is_no_advice_whoever_states_it() -> None:
    refusal = judge_refusal(ZERO, "ValueError: divisor", NAMING)

    assert by_own_rules(refusal, ZERO, Description()) == refusal


ENTROPY = BY_NAME["entropy_per_sample"]


def with_entropy(how: AuxiliaryAggregation) -> str:
    """The explanation for a policy loss of `token_mean` with an entropy term reduced as ``how``."""
    job = job_of(ENTROPY, Mode.TOKEN_MEAN)
    [step] = job.steps
    dloss_dlogprob = ProbedBatch(job.steps).dloss_dlogprob
    term = token_weights(step, auxiliary_aggregation(job.aggregation, how))
    gradient = dloss_dlogprob * token_weights(step, job.aggregation) - ENTROPY_COEFFICIENT * term
    seen = weighing(gradient / dloss_dlogprob)
    return accepted(ENTROPY, Mode.TOKEN_MEAN, seen).diagnosis.explanation


def test_words_on_a_term_come_from_what_was_observed() -> None:
    assert with_entropy(AuxiliaryAggregation.SAMPLE_MEAN).endswith(
        "its entropy term is a mean over samples"
    )
    assert "reduced as token_mean" in with_entropy(AuxiliaryAggregation.TOKEN_MEAN)


def test_steps_that_a_configuration_makes_itself_are_compared_with_nothing() -> None:
    judgement = accepted(BY_NAME["batch_of_partial_groups"], Mode.PROMPT_MEAN, factor=2.0)

    assert judgement.diagnosis.explanation.endswith("is accepted and trained on")


def test_configurations_take_one_rank() -> None:
    assert ZERO.fits(Layout.parse("dp1-cp1-mb2-thd"))
    assert not ZERO.fits(Layout.parse("dp1-cp2-mb2-bshd"))


PLACE = "trainer.py:7 (step)"


def deviating(job: Job) -> Ran | Crashed:
    """Trains in a deviating configuration, and crashes in the default one."""
    if job.configuration == DEFAULT_CONFIGURATION:
        return Crashed("no kernel image", place=PLACE)
    return Ran(tuple(observed(job, job.aggregation)))


def test_what_crashes_in_the_ordinary_configuration_is_a_crash_and_breaks_no_rule() -> None:
    judgement = judge_startup(LEGACY, job_of(LEGACY, Mode.TOKEN_MEAN), answered(deviating))

    assert judgement.verdict is Verdict.CRASHED
    assert (judgement.message, judgement.place) == ("no kernel image", PLACE)
    assert by_own_rules(judgement, LEGACY, Description()) == judgement


def test_crash_is_held_against_a_configuration_that_alone_has_it() -> None:
    job, crash = job_of(ZERO, Mode.CONSTANT), Crashed("Traceback\nTypeError: no number")

    def ordinary(given: Job) -> Ran | Crashed:
        is_ordinary = given.configuration == DEFAULT_CONFIGURATION
        return Ran(tuple(observed(given, given.aggregation))) if is_ordinary else crash

    own, common = (judge_startup(ZERO, job, answered(run)) for run in (ordinary, lambda _: crash))

    assert name_of(own) == "fails_later"
    assert own.message == crash.message
    assert common == unjudged(Verdict.CRASHED, crash.message)


def test_nothing_ordinary_is_run_where_nothing_is_compared() -> None:
    seen: list[Configuration] = []

    def run(job: Job) -> Ran | Crashed:
        seen.append(job.configuration)
        return deviating(job)

    judge_startup(ZERO, job_of(ZERO, Mode.CONSTANT), answered(run))

    assert seen == [ZERO.configuration]
