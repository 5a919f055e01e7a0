"""The right denominators of a step, composed from its counts, and the factors on its weights.

Factors are given in words, with their values for each active token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import (
    CONSTANTS,
    FROM_REWARDS,
    OF_GROUPS,
    OF_LOG_PROBS,
    OF_ROLLOUT_RATIOS,
    OF_VALUES,
    OFF_POLICY,
    PENALISING,
    Objective,
)
from conformance.expected.estimators import ESTIMATORS, estimator_conventions, rollouts_of
from conformance.explain.conditions.wording import counted
from reference.aggregation import (
    Compared,
    DenominatorMask,
    EmptyUnits,
    MicroBatchWeight,
    Mode,
    SampleUnit,
    TokenSet,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from reference.aggregation import EstimatorConventions

TOKENS = {TokenSet.ACTIVE: "active tokens", TokenSet.RESPONSE: "all response tokens"}

OF_ROLLOUTS = {
    Compared.LONGEST_SAMPLES: "its first sample with the most active tokens",
    Compared.LAST_SAMPLES: "its last sample",
}
"""The sample of a rollout whose reward is compared."""


_PPO = "-A·r, or 0 where PPO's loss is that of the clipped ratio"
_KEPT = f"{_PPO}; and 0 unless"
_COVARIANCE = "(A - mean of A)·(log p - mean of log p) over the active tokens of the batch"
_UNBOUNDED = "-A·r, without clipping"
_LOW, _HIGH, _MOST = CONSTANTS.kept_low, CONSTANTS.kept_high, CONSTANTS.truncation
_CENTRED = "the sample's reward minus the mean of its prompt's rewards"
_NORMALISED = f"{_CENTRED}, divided by their {{std}}"
_GAE = "A_t = δ_t + γλ·A_{t+1}, where δ_t = ρ_t + γ·V_{t+1} - V_t"

DERIVATIVES = {
    Objective.OFF_POLICY: _PPO,
    Objective.REJECTION_OFF_POLICY: _PPO,
    Objective.DUAL_CLIP: f"{_PPO}, or where A < 0 and r > {CONSTANTS.dual_clip:g}",
    Objective.GSPO: f"{_PPO}, with r = exp(mean of log r over the active tokens of the sample)",
    Objective.CISPO: "-A times the clipped ratio",
    Objective.SAPO: (
        "-A·r·4·σ·(1-σ), where σ is the sigmoid of τ·(r-1), with"
        f" τ = {CONSTANTS.positive_temperature:g} for A > 0"
        f" and {CONSTANTS.negative_temperature:g} for A < 0"
    ),
    Objective.CLIP_COV: _PPO,
    Objective.KL_COV: f"-A·r + {CONSTANTS.kl_penalty:g}·sign(log r), with every token chosen",
    Objective.GEO_MEAN: (
        "-A·s, or 0 for a token that is clipped, where s = exp(mean of log r over the active tokens"
        f" of the sample, each at most {CONSTANTS.clip_high:g} for A > 0 and at least"
        f" {-CONSTANTS.clip_low:g} for A < 0)"
    ),
    Objective.GPG: "-A",
    Objective.DRO: f"-A + {CONSTANTS.kl_penalty:g}·log r",
    Objective.TIS_TOKEN: f"{_PPO}, times q, which is at most {CONSTANTS.truncation:g}",
    Objective.TIS_SEQUENCE: (
        f"{_PPO}, times the product of q over the active tokens of the sample, which is at most"
        f" {CONSTANTS.truncation:g}"
    ),
    Objective.SEQUENCE_MASKED: (
        f"{_PPO}, times q, or 0 unless exp(mean of log q over the active tokens of the sample) is"
        f" in [{CONSTANTS.kept_low:g}, {CONSTANTS.kept_high:g}]"
    ),
    Objective.COVARIANCE_CLIPPED: (
        f"{_PPO}; and 0 if the covariance {_COVARIANCE} is between {CONSTANTS.covariance_low:g} and"
        f" {CONSTANTS.covariance_high:g}"
    ),
    Objective.COVARIANCE_PENALISED: (
        f"{_UNBOUNDED}, plus {CONSTANTS.kl_penalty:g}·sign(log r) for the"
        f" {CONSTANTS.covariance_fraction:g} of the tokens with the largest {_COVARIANCE}"
    ),
    Objective.DPPO_TV: (
        f"{_UNBOUNDED}, and 0 if the token's probability has risen by more than"
        f" {CONSTANTS.variation_high:g} for A > 0, or fallen by more than"
        f" {CONSTANTS.variation_low:g} for A < 0"
    ),
    Objective.DPPO_KL: (
        f"{_UNBOUNDED}, and 0 if the token's probability has risen for A > 0 or fallen for A < 0,"
        " and the divergence KL(old, new) of the token against any other is more than"
        f" {CONSTANTS.divergence_high:g} or {CONSTANTS.divergence_low:g}"
    ),
    Objective.IMPORTANCE_SAMPLING: _UNBOUNDED,
    Objective.ROLLOUT_IS: (
        f"-A·r, and 0 unless r is in ({1 - CONSTANTS.clip_low:g}, {1 + CONSTANTS.clip_high:g})"
    ),
    Objective.REINFORCE_NORMALISED: (
        f"-A times r, which is at most {_MOST:g}, divided by its mean over the active tokens"
    ),
    Objective.TIS_NORMALISED: (
        f"{_PPO}, times q, which is at most {_MOST:g}, divided by its mean over the active tokens"
    ),
    Objective.TIS_BOUNDED: f"{_PPO}, times q, which is at least {_LOW:g} and at most {_MOST:g}",
    Objective.ICEPOP: f"{_PPO}, times q, or 0 unless q is in [{_LOW:g}, {_MOST:g}]",
    Objective.SEQUENCE_ICEPOP: (
        f"{_PPO}, times the product of q over the active tokens of the sample, or 0 unless that is"
        f" in [{_LOW:g}, {_MOST:g}]"
    ),
    Objective.PRODUCT_MASKED: (
        f"{_KEPT} the product of q over the active tokens of the sample is in [{_LOW:g}, {_HIGH:g}]"
    ),
    Objective.OUTLIER_MASKED: (
        f"{_KEPT} q of all active tokens of the sample is in [{CONSTANTS.outlier_low:g},"
        f" {CONSTANTS.outlier_high:g}]"
    ),
    Objective.OPSM: (
        f"{_PPO}; and 0 for A < 0 if the mean of -log r over the active tokens of the sample is"
        f" above {CONSTANTS.sequence_divergence:g}"
    ),
    Objective.M2PO: (
        f"{_PPO}; and 0 for the tokens of the largest (log q)², so many that the mean of the others"
        f" is below {CONSTANTS.second_moment:g}"
    ),
}
"""The derivative of each off-policy loss by a token's log-probability."""

ADVANTAGES = {
    Objective.GROUP_NORMALISED: _NORMALISED,
    Objective.GROUP_CENTRED: _CENTRED,
    Objective.OVERLONG: f"{_CENTRED}, rewards less a penalty on the length",
    Objective.COMPLETE: _CENTRED,
    Objective.WEIGHTED: f"{_CENTRED}, rewards being weighted sums",
    Objective.MEAN_NORMALISED: f"{_CENTRED}, divided by this mean{{epsilon}}",
    Objective.LEAVE_ONE_OUT: f"{_CENTRED}, times n / (n - 1)",
    Objective.OTHERS_NORMALISED: (
        "the sample's reward minus the mean of its prompt's other rewards, divided by their {std}"
        " unless it is 0"
    ),
    Objective.GROUP_WHITENED: _NORMALISED,
    Objective.REINFORCE_PP: "G_t = ρ_t + γ·G_{t+1}",
    Objective.REINFORCE_PP_BASELINE: f"{_CENTRED}, minus β·kl_t",
    Objective.DISTILLED: f"{_CENTRED}, minus β·kl_t of a teacher",
    Objective.GAE: _GAE,
    Objective.PENALISED_GAE: _GAE,
}
"""The formula of each estimator of advantages before whitening; ``{std}`` and ``{epsilon}`` stand
for the framework's own standard deviation and constant."""

MOST_NAMED = 32
"""The most summands of a count, and samples of a prompt, that are written out."""


class Formula(NamedTuple):
    """The factors on the weights of a step's tokens."""

    words: str
    header: list[str]
    rows: list[list[str]]
    """A row for each active token: sample, token, inputs and the resulting factor."""


def formula(term: LossTerm, objective: Objective) -> Formula | None:
    """Returns the formula of an objective; None if the factors on its weights are constant."""
    if objective in OFF_POLICY:
        return _derivative(term, objective)
    return _advantage(term, objective) if objective in FROM_REWARDS else None


def _derivative(term: LossTerm, objective: Objective) -> Formula:
    context = term.context
    batch = ProbedBatch.make(context.conventions, context.steps, objective)
    tokens = batch.policy_tokens_of_step(context.step_index)
    columns = {"A": tokens.advantages, "log r": tokens.log_ratios}
    if objective in OF_LOG_PROBS:
        columns = {"log p": tokens.log_probs, **columns}
    if objective in OF_ROLLOUT_RATIOS:
        columns["log q"] = tokens.rollout_log_ratios
    words = (
        "The right gradient of a token is its weight times the derivative of its loss by its"
        f" log-probability: {DERIVATIVES[objective]}. Ratios are clipped to"
        f" [{1 - CONSTANTS.clip_low:g}, {1 + CONSTANTS.clip_high:g}]. A is the advantage, r the"
        " ratio of the new to the old policy, q that of the old policy to that of the rollouts."
    )
    return _tabulated(words, term, columns, "derivative", term.factors)


def _advantage(term: LossTerm, objective: Objective) -> Formula:
    context = term.context
    batch = ProbedBatch.make(context.conventions, context.steps, objective)
    of_batch = {"reward": batch.rewards[batch.sample]}
    if objective in OF_VALUES:
        of_batch["V"] = np.concatenate(batch.values)
    if objective in (*PENALISING, Objective.DISTILLED):
        of_batch["kl"] = rollouts_of(batch).divergences
    columns = {name: batch.split(of)[context.step_index] for name, of in of_batch.items()}
    return _tabulated(_advantage_words(term, objective), term, columns, "A", -term.factors)


def _advantage_words(term: LossTerm, objective: Objective) -> str:
    estimator = ESTIMATORS[objective]
    constants = estimator.constants
    declared = estimator_conventions(objective, term.context.conventions)
    whitened = ", whitened over the batch" if estimator.whitens else ""
    words = [
        "The right gradient of a token is its weight times -A, where A is its advantage:"
        f" {raw_advantage(objective, declared)}{whitened}."
    ]
    if objective not in OF_GROUPS:
        words.append("ρ_t is -β·kl_t, to which the reward is added at the last token.")
        words.append(f"γ = {constants.discount:g}.")
    if objective in OF_VALUES:
        words.append(f"λ = {constants.trace:g}.")
    if objective in PENALISING:
        words.append(f"β = {constants.penalty:g}.")
    return " ".join([*words, *_convention_words(declared, objective)])


def raw_advantage(objective: Objective, declared: EstimatorConventions) -> str:
    """Returns the formula of an advantage before whitening, with the framework's own constants."""
    epsilon = f" plus {declared.std_epsilon:g}" if declared.std_epsilon else ""
    std = f"standard deviation (with divisor {declared.deviation}){epsilon}"
    return ADVANTAGES[objective].replace("{std}", std).replace("{epsilon}", epsilon)


def _convention_words(declared: EstimatorConventions, objective: Objective) -> Iterator[str]:
    """Yield sentences on the framework's choices that the advantages depend on."""
    if objective not in OF_GROUPS:
        yield f"Returns pass through {TOKENS[declared.transitions]}."
        yield f"The reward is at the last of {TOKENS[declared.rewarded]}."
    if objective in PENALISING:
        yield f"Penalties are those of {TOKENS[declared.penalised]}."
    if objective in OF_VALUES:
        yield f"Values are those of {TOKENS[declared.valued]}; they are 0 elsewhere."
    if ESTIMATORS[objective].whitens:
        yield (
            f"Whitening takes mean and variance over {TOKENS[declared.whitened]}; the variance is"
            f" divided by their number - {declared.lost_degrees_of_freedom:g}."
        )
    if declared.compared is not Compared.SAMPLES:
        yield f"Of each rollout, one reward is compared: that of {OF_ROLLOUTS[declared.compared]}."


def _tabulated(
    words: str,
    term: LossTerm,
    columns: Mapping[str, NDArray[np.float64]],
    result: str,
    values: NDArray[np.float64],
) -> Formula:
    context = term.context
    rows = [
        [
            str(sample := context.sample[place]),
            str(place - context.step.offsets[sample] + 1),
            *(f"{column[place]:g}" for column in columns.values()),
            f"{values[place]:.6g}",
        ]
        for place in np.flatnonzero(context.step.mask)
    ]
    return Formula(words, ["sample", "token", *columns, result], rows)


class Denominator(NamedTuple):
    """The right denominator of some tokens of a step, written out."""

    whose: str
    """The unit of the tokens, such as ``prompt 0 (samples 0 and 1)``."""

    composition: str
    """The denominator, such as ``3 + 0 = 3 active tokens · 4 prompts = 12``."""

    weight: float
    """The right weight of each of the tokens; 0 if there are none."""

    tokens: NDArray[np.bool_]
    """The mask that selects them: [tokens]."""


def denominators(context: StepContext) -> Iterator[Denominator]:
    """Yields the right denominators of a step, each composed from its counts.

    For a mean over micro-batches, the cut of the step must be known.
    """
    part = _parts(context)
    for number in np.unique(part):
        tokens = (part == number) & context.step.mask
        samples = np.unique(context.sample[part == number])
        weight = float(context.expected[tokens].max(initial=0.0))
        whose, composition = _whose(context, samples), _composition(context, samples, weight)
        yield Denominator(whose, composition, weight, tokens)


def _parts(context: StepContext) -> NDArray[np.int64]:
    """The number of the part of the step whose tokens share a denominator, by token: [tokens]."""
    if context.mode is Mode.CONSTANT:
        return np.zeros_like(context.sample)
    if not context.per_micro_batch:
        return context.unit[context.sample]
    assert context.placement is not None
    per_token = context.mode is Mode.TOKEN_MEAN
    return context.placement.micro_batch_number if per_token else context.sample


def _whose(context: StepContext, samples: NDArray[np.int64]) -> str:
    members = _enumerated("sample", samples.tolist())
    if context.per_micro_batch and context.mode is Mode.TOKEN_MEAN:
        return f"{_micro_batch(context, int(samples[0]))} ({members})"
    if context.mode in (Mode.TOKEN_MEAN, Mode.CONSTANT):
        return "all samples"
    if context.mode is Mode.PROMPT_MEAN:
        return f"prompt {context.step.groups[samples[0]]} ({members})"
    rollout = f"rollout {context.step.rollouts[samples[0]]} ({members})"
    return rollout if _unit(context) == "rollout" else members


def _micro_batch(context: StepContext, sample: int) -> str:
    assert context.placement is not None
    token = context.step.offsets[sample]
    number, rank = context.placement.micro_batch[token], context.placement.dp_rank[token]
    return f"micro-batch {number} of data-parallel rank {rank}"


def _unit(context: StepContext) -> str:
    """Returns the unit that the mode averages over."""
    if context.mode is Mode.PROMPT_MEAN:
        return "prompt"
    shared = len(np.unique(context.step.rollouts)) < context.step.size
    by_rollout = shared and context.conventions.sample_unit is SampleUnit.ROLLOUT
    return "rollout" if by_rollout else "sample"


def _composition(context: StepContext, samples: NDArray[np.int64], weight: float) -> str:
    units = counted(context.units, _unit(context))
    if context.aggregation.divisor is not None:
        return f"L = {context.aggregation.divisor:g} · {units}{_equals(weight)}"
    counts = (context.step.active_tokens if context.per_micro_batch else context.counted)[samples]
    total = f"{_summed(counts.tolist())} {_counted(context)}{'' if counts.sum() == 1 else 's'}"
    if not weight:
        counts_too = context.conventions.empty_units is EmptyUnits.COUNTED
        return f"{total}: adds 0{', and counts' if counts_too else ', and does not count'}"
    if context.per_micro_batch:
        others = 1 / (weight * counts.sum())
        return f"{total} · {_cut_factors(context, int(samples[0]), others)}{_equals(weight)}"
    return total if context.mode is Mode.TOKEN_MEAN else f"{total} · {units}{_equals(weight)}"


def _cut_factors(context: StepContext, sample: int, factor: float) -> str:
    """Returns a denominator's factors other than token counts, for a mean over micro-batches."""
    assert context.placement is not None
    micro_batches = int(context.placement.micro_batches[context.step.offsets[sample]])
    total = micro_batches * context.layout.dp
    if context.conventions.micro_batch_weight is not MicroBatchWeight.EQUAL:
        return f"{factor:g} by the samples of its micro-batch"
    if context.mode is Mode.TOKEN_MEAN:
        return counted(total, "micro-batch", "es")
    held = counted(round(factor / total), "sample")
    return f"{held} of {_micro_batch(context, sample)} · {counted(total, 'micro-batch', 'es')}"


def _counted(context: StepContext) -> str:
    """Returns the word for a token that denominators count."""
    original = context.conventions.denominator_mask is DenominatorMask.ORIGINAL
    before = original and context.step.original_mask is not None and not context.per_micro_batch
    return "active or rejected token" if before else "active token"


def _equals(weight: float) -> str:
    return f" = {1 / weight:.7g}" if weight else ""


def _summed(counts: list[int]) -> str:
    """Returns a sum written out, such as ``3 + 0 = 3``; for a long sum only the total."""
    if len(counts) == 1 or len(counts) > MOST_NAMED:
        return f"{sum(counts):,}"
    return f"{' + '.join(map(str, counts))} = {sum(counts)}"


def _enumerated(what: str, numbers: list[int]) -> str:
    """Returns numbered things in words, such as ``samples 0, 1 and 4``."""
    if len(numbers) > MOST_NAMED:
        return f"{len(numbers)} {what}s"
    *others, last = map(str, numbers)
    return f"{what}s {', '.join(others)} and {last}" if others else f"{what} {last}"
