"""A step whose loss has several terms, and the judgement of its gradient."""

from adapters.contract import Description, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT, Objective
from conformance.judging.gradients import judge_combined
from conformance.judging.weights import Judgement, Trained
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights
from tests.jobs import job_of, step_of

STEP = step_of([1, 1, 0], [1], [1, 1, 1, 1], [0, 1, 1], prompts=[1, 2, 1, 1], groups=[0, 0, 1, 1])

JOB = job_of(STEP, mode=Mode.PROMPT_MEAN, objective=Objective.COMBINED)

BATCH = ProbedBatch(JOB.steps, JOB.objective)

POLICY = token_weights(STEP, JOB.aggregation)

AUXILIARY = token_weights(STEP, Aggregation(Mode.SAMPLE_MEAN))


def judged(policy: float = 1.0, entropy: float = 1.0, kl: float = 1.0) -> Judgement:
    """The judgement of a gradient in which each term's weights are multiplied by a factor."""
    gradient = (
        policy * BATCH.dloss_dlogprob * POLICY
        - entropy * ENTROPY_COEFFICIENT * AUXILIARY
        + kl * KL_COEFFICIENT * AUXILIARY
    )
    return judge_combined(
        Trained(JOB, [Observation(token_weights=(gradient / BATCH.dloss_dlogprob,))], Description())
    )
