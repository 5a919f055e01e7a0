"""Several terms of a loss are wrong, each in its own way."""

import numpy as np
import pytest

from adapters.contract import Layout
from adapters.contract.objective import Metric
from conformance.expected.term import LossTerm
from conformance.explain.diagnosis import diagnose
from conformance.explain.engine import Explained
from conformance.explain.measurement import Measurement
from conformance.findings.finding import Diagnosis
from reference.aggregation import AuxiliaryAggregation, Mode
from tests.conformance.given import Given, passes

SCATTERED = passes(
    [(slice(3), 0), (slice(4, 6), 0)], [(slice(3, 4), 1)], [(slice(6, 11), 0)], [(slice(11, 14), 1)]
)
"""Two data-parallel ranks of two slices. Each slice holds whole samples: 0 and 2, then 1, on the
first rank; 3, then 4, on the second."""

CONTEXT = Given(
    mode=Mode.TOKEN_MEAN,
    layout=Layout(dp=2, cp=2, micro_batches=2),
    forward_pass_of_token=SCATTERED,
).context
POLICY = LossTerm(metric=Metric.POLICY_LOSS, context=CONTEXT, factors=np.linspace(1, 2, 14))
ENTROPY, KL = (
    LossTerm(metric=metric, context=CONTEXT.of_term(how), factors=np.linspace(*ends, 14))
    for metric, how, ends in (
        (Metric.ENTROPY, AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN, (3, 5)),
        (Metric.KL, AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN, (7, 4)),
    )
)


def weighed(term: LossTerm, kept: np.ndarray | float) -> np.ndarray:
    return term.factors * term.context.expected * kept


OF_ONE_RANK = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0], [3, 1, 2, 5, 3])
HALVED = np.repeat([1.0, 0.5, 1.0, 1.0, 1.0], [3, 1, 2, 5, 3])
APART = weighed(POLICY, 1) + weighed(ENTROPY, OF_ONE_RANK) + weighed(KL, HALVED)
"""A sum in which the entropy lacks a context-parallel rank, and padding halves sample 1's KL."""


def diagnosis(total: np.ndarray, kl: LossTerm = KL, tolerance: float = 1e-9) -> Diagnosis:
    """The diagnosis of gradients, [tokens], or of a logged number, [1]."""
    measurement = Measurement(
        terms=[POLICY, ENTROPY, kl],
        observed=total,
        tolerance=tolerance,
        is_per_token=len(total) > 1,
    )
    return diagnose(Explained(measurement))


def test_terms_that_each_have_a_mistake_of_their_own_are_named_together() -> None:
    found = diagnosis(APART)

    assert found.name == "not_reduced_over_cp_and_dummy_rows_averaged"
    assert found.explanation == (
        "entropy: those of other context-parallel ranks were not added; kl: rows that pad a"
        " micro-batch to the rank's largest are averaged in as zeros"
    )


def test_mistakes_of_auxiliary_terms_may_be_shared_with_another_one_of_the_policy_loss() -> None:
    doubled = weighed(POLICY, 2) + weighed(ENTROPY, 1 / 2) + weighed(KL, 1 / 2)
    found = diagnosis(doubled)

    assert found.name.startswith("divided_by_dp")
    assert found.explanation.startswith("entropy and kl: an extra division by dp")
    assert "; policy_loss: an extra factor of dp" in found.explanation


def test_a_policy_loss_is_right_if_that_explains_as_much() -> None:
    """The explanations of both tests above are within the bound of this logged number."""
    doubled = weighed(POLICY, 2) + weighed(ENTROPY, 1 / 2) + weighed(KL, 1 / 2)
    between = np.array([(APART.sum() + doubled.sum()) / 2])
    size = min(APART.sum(), doubled.sum())
    found = diagnosis(between, tolerance=0.51 * abs(APART.sum() - doubled.sum()) / size)

    assert "policy_loss" not in found.explanation


@pytest.mark.parametrize("factor", [1.37, 0.8])
def test_terms_that_no_mistake_explains_have_none(factor: float) -> None:
    total = factor * (weighed(POLICY, 1) + weighed(ENTROPY, 1) + weighed(KL, 1))

    assert diagnosis(total).name == "unexplained"


def test_a_term_that_is_a_part_of_the_policy_loss_shares_its_mistake() -> None:
    kl = LossTerm(metric=Metric.KL, context=CONTEXT, factors=KL.factors)
    found = diagnosis(weighed(POLICY, 1 / 2) + weighed(kl, 1 / 2) + weighed(ENTROPY, 1), kl)

    assert found.name == "divided_by_dp_or_cp_or_micro_batches_or_group_size"
    assert found.explanation.startswith("policy_loss and kl: an extra division by")
