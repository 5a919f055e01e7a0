"""Jobs for frameworks on cases of the corpus, and the errors of the observed weights."""

import math
from importlib.util import find_spec

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Job, Layout
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Objective
from adapters.frameworks import CLONE, LISTED
from conformance.corpus.cases import ALL_CASES
from conformance.judging.weights import largest_error
from conformance.ranks.pool import Ran
from reference.aggregation import Conventions, Mode
from reference.weights import token_weights
from tests.jobs import job_of
from tests.pools import NEEDS_CLONES

CASES = {case.name: case for case in ALL_CASES}
MASKED = CASES["fully_masked_sample"]

NEEDED = {name: one.needs for name, one in LISTED.items()} | {"dtensor_v2": "nemo_automodel"}
"""Packages that frameworks or engines need, and that not all environments have."""

LOSS_FUNCTIONS = {"liger", "unsloth"}
"""Adapters without a train step."""


def require(name: str) -> None:
    """Skip a test of a framework or an engine whose package is not installed."""
    if name in NEEDED and find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")


def needs(name: str) -> pytest.MarkDecorator:
    """The mark that skips a test if the package of a framework or an engine is not installed."""
    missing = name in NEEDED and find_spec(NEEDED[name]) is None
    return pytest.mark.skipif(missing, reason=f"{NEEDED.get(name)} is not installed")


def marks(framework: str) -> list[pytest.MarkDecorator]:
    """The marker of a framework, and marks that skip its tests without its packages or clone."""
    clones = [NEEDS_CLONES] if LISTED[framework].source == CLONE else []
    return [getattr(pytest.mark, framework), needs(framework), *clones]


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: str = "dp2-cp1-mb2-thd",
    objective: Objective = Objective.POLICY,
) -> Job:
    """The whole step of a case."""
    return job_of(
        *CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=Layout.parse(layout),
        objective=objective,
    )


def documented_gradient(loss_type: str, given: Job) -> NDArray[np.float64]:
    """The gradient of a mean over tokens of a loss that the reference has no formula for.

    cispo is -A min(r, 1.3125) log p; vespo is -A exp(l) w^k exp(-l w) log p, where w is the ratio
    of the sequence, and k and l depend on the advantage's sign.
    """
    tokens = ProbedBatch(given.steps, given.objective).policy_tokens
    if loss_type == "cispo":
        factor = np.minimum(tokens.ratios, 1.3125)
    else:
        ratio, positive = np.exp(tokens.summed(tokens.log_ratios)), tokens.advantages >= 0
        power, decay = np.where(positive, 2.0, 3.0), np.where(positive, 3.0, 2.0)
        factor = np.exp(decay) * ratio**power * np.exp(-decay * ratio)
    return -tokens.advantages * factor * tokens.mask / tokens.mask.sum()


def gradient(given: Job, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gradient from which the weights of a one-step job were computed."""
    derivatives = ProbedBatch(given.steps, given.objective).dloss_dlogprob
    return weights * np.where(derivatives == 0, 1.0, derivatives)


def weights_error(outcome: object, given: Job, conventions: Conventions) -> float:
    """The largest error of a weight in any step on any rank; infinite if a weight is NaN."""
    assert isinstance(outcome, Ran), outcome
    errors = [
        largest_error(
            rank.token_weights[index], token_weights(step, given.aggregation, conventions)
        )
        for index, step in enumerate(given.steps)
        for rank in outcome.observations
    ]
    return max(math.inf if error is None else error for error in errors)


def dealt(outcome: Ran, given: Job) -> list[NDArray[np.int64]]:
    """The samples of each rank in the first step."""
    sample = ProbedBatch(given.steps).sample
    return [np.unique(sample[rank.forward_passes[0] >= 0]) for rank in outcome.observations]
