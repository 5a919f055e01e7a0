"""Several terms in one gradient: a mistake is found in the term that has it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Assumed, Description, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT, Metric, Objective
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_combined
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Judgement, Trained
from reference.aggregation import Aggregation, DenominatorMask, Mode
from reference.weights import token_weights
from tests.conformance.combined import AUXILIARY, BATCH, JOB, POLICY, STEP, judged

REJECTED = replace(STEP, original_mask=np.ones(11, bool))
ALL_TOKENS = token_weights(replace(STEP, mask=np.ones(11, bool)), Aggregation(Mode.SAMPLE_MEAN))
"""The weights of an auxiliary term over the mask before rejection."""


def explained(judgement: Judgement | None) -> tuple[str, str]:
    assert judgement.verdict is Verdict.MISMATCH
    return judgement.diagnosis.name, judgement.diagnosis.explanation


def test_sum_of_terms_conforms() -> None:
    judgement = judged()

    assert judgement.verdict is Verdict.CONFORMS
    assert judgement.error is not None
    assert judgement.error < 1e-15


def test_error_is_relative_to_the_absolute_values_of_the_terms() -> None:
    judgement = judged(kl=1 + 1e-3)
    own = KL_COEFFICIENT * AUXILIARY
    all_terms = np.abs(BATCH.dloss_dlogprob) * POLICY + ENTROPY_COEFFICIENT * AUXILIARY + own
    active = STEP.mask

    assert judgement.error == pytest.approx(1e-3 * (own[active] / all_terms[active]).max())


@pytest.mark.parametrize("term", ["entropy", "kl", "policy_loss"])
def test_term_without_gradient_is_named(term: str) -> None:
    name, explanation = explained(judged(**{term.removesuffix("_loss"): 0.0}))

    assert name == "term_without_gradient"
    assert explanation.startswith(f"the {term} term reaches no gradient")


@pytest.mark.parametrize("term", ["entropy", "kl"])
def test_factor_of_one_term_is_found_in_it(term: str) -> None:
    name, explanation = explained(judged(**{term: 0.25}))

    assert name.startswith("divided_by_samples")
    assert explanation.startswith(f"{term}: every weight is 1/4")


def test_what_is_not_finite_has_no_error() -> None:
    judgement = judged(entropy=float("nan"))

    assert judgement.error is None
    assert explained(judgement)[0] == "not_finite"


def logged(policy: float = 1.0, entropy: float = 1.0, kl: float = 1.0) -> Judgement | None:
    """The judgement of a logged loss in which each term is multiplied by a factor."""
    advantages = np.concatenate(BATCH.raw_advantages)
    entropies = np.array([0.5, 2.0, 1.0, 0.25])[np.concatenate(BATCH.responses) % 4]
    divergences = np.concatenate([-values for values in BATCH.reference_log_probs])
    loss = (
        -policy * (POLICY * advantages).sum()
        - entropy * ENTROPY_COEFFICIENT * (AUXILIARY * entropies).sum()
        + kl * KL_COEFFICIENT * (AUXILIARY * divergences).sum()
    )
    observation = Observation(token_weights=(), reported={Metric.LOSS: (float(loss),)})
    return judge_logged(Trained(JOB, [observation], Description()), metric=Metric.LOSS)


def test_logged_loss_is_the_sum_of_its_terms() -> None:
    judgement = logged()

    assert judgement.verdict is Verdict.CONFORMS


@pytest.mark.parametrize("term", ["entropy", "kl", "policy_loss"])
def test_term_that_the_logged_loss_lacks_is_named(term: str) -> None:
    name, explanation = explained(logged(**{term.removesuffix("_loss"): 0.0}))

    assert name == "term_left_out"
    assert term in explanation


def test_wrong_term_of_a_logged_loss_is_said_to_be_off() -> None:
    assert explained(logged(entropy=0.25))[1].startswith(("entropy: ", "kl: ", "policy_loss: "))


def test_mistake_that_terms_share_is_named_with_the_policy_losss_own() -> None:
    per_token = token_weights(STEP, Aggregation(Mode.TOKEN_MEAN))
    auxiliary = (KL_COEFFICIENT - ENTROPY_COEFFICIENT) * per_token
    shared = BATCH.dloss_dlogprob * POLICY + auxiliary
    both = BATCH.dloss_dlogprob * AUXILIARY + auxiliary
    found = [
        explained(
            judge_combined(
                Trained(
                    JOB, [Observation(token_weights=(g / BATCH.dloss_dlogprob,))], Description()
                )
            )
        )
        for g in (shared, both)
    ]

    words = "entropy and kl: reduced as token_mean"
    assert found == [
        ("weights_of_token_mean", words),
        ("weights_of_token_mean", f"{words}; policy_loss: reduced as sample_mean"),
    ]


@pytest.mark.parametrize(
    ("entropy", "words"),
    [
        (
            np.ones(11),
            "entropy and kl: token losses are summed but never normalised;"
            " policy_loss: token losses are summed but never normalised",
        ),
        (ALL_TOKENS, "policy_loss and kl: token losses are summed but never normalised"),
    ],
)
def test_rejected_tokens_of_other_terms_are_no_masked_tokens_of_the_policy_loss(
    entropy: NDArray[np.float64], words: str
) -> None:
    original = Assumed(DenominatorMask.ORIGINAL)
    description = Description(declared={"entropy_mask": original, "kl_mask": original})
    job = replace(JOB, steps=(REJECTED,), objective=Objective.REJECTION_COMBINED)
    batch = ProbedBatch(job.steps, job.objective)
    undivided = batch.dloss_dlogprob * REJECTED.mask + KL_COEFFICIENT * np.ones(11)
    gradient = undivided - ENTROPY_COEFFICIENT * entropy
    observation = Observation(token_weights=(gradient / batch.dloss_dlogprob,))

    assert explained(judge_combined(Trained(job, [observation], description))) == (
        "not_divided",
        words,
    )


def test_rejected_tokens_without_a_gradient_weigh_in_no_term() -> None:
    """All terms are divided by eleven tokens, but rejected tokens have no gradient."""
    job = replace(JOB, steps=(REJECTED,), objective=Objective.REJECTION_COMBINED)
    masks = dict.fromkeys(("entropy_mask", "kl_mask"), Assumed(DenominatorMask.ORIGINAL))
    batch = ProbedBatch(job.steps, job.objective)
    whole = batch.dloss_dlogprob - ENTROPY_COEFFICIENT + KL_COEFFICIENT
    weights = np.where(STEP.mask, whole / 11, 0.0) / batch.dloss_dlogprob

    judgement = judge_combined(
        Trained(job, [Observation(token_weights=(weights,))], Description(declared=masks))
    )

    assert explained(judgement)[0] != "inactive_tokens_weigh"


@pytest.mark.parametrize("averaged", [1.0, 0.5])
def test_mistakes_of_one_name_are_told_apart(averaged: float) -> None:
    """No term is divided by its tokens; gradients are averaged over two ranks, or not."""
    job = replace(JOB, layout=Layout(dp=2))
    dloss_dlogprob = BATCH.dloss_dlogprob - ENTROPY_COEFFICIENT + KL_COEFFICIENT
    gradient = averaged * dloss_dlogprob * STEP.mask
    observation = Observation(token_weights=(gradient / BATCH.dloss_dlogprob,))

    judgement = judge_combined(Trained(job, [observation] * 2, Description()))
    assert explained(judgement)[0] == "not_divided"


def test_samples_that_no_term_has_a_gradient_of_are_lost() -> None:
    gradient = BATCH.dloss_dlogprob * POLICY + (KL_COEFFICIENT - ENTROPY_COEFFICIENT) * AUXILIARY
    gradient[3:8] = 0.0
    judgement = judge_combined(
        Trained(JOB, [Observation(token_weights=(gradient / BATCH.dloss_dlogprob,))], Description())
    )

    name, explanation = explained(judgement)
    assert name == "samples_lost"
    assert explanation.startswith(
        "5 active tokens of 2 samples weigh nothing, all others are right"
    )
