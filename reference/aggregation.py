"""The four ways of reducing the token losses of a step to one number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real

from reference import ConformanceError, did_you_mean


class InvalidAggregationError(ConformanceError):
    """A mode and divisor that do not define a reduction."""


class Mode(StrEnum):
    """The unit whose tokens share one vote (ScaleRL, arXiv:2510.13786, section 3.2)."""

    SAMPLE_MEAN = "sample_mean"
    """Mean over samples of the sample's token mean (GRPO)."""

    PROMPT_MEAN = "prompt_mean"
    """Mean over prompt groups of the group's token mean (DAPO)."""

    TOKEN_MEAN = "token_mean"
    """Mean over all active tokens of the step."""

    CONSTANT = "constant"
    """Masked sum over a fixed divisor, mean over samples (Dr. GRPO, arXiv:2503.20783, eq. 2)."""


class SampleUnit(StrEnum):
    """Whether N counts samples or rollouts, if several samples come from one rollout."""

    SAMPLE = "sample"
    ROLLOUT = "rollout"


class EmptyUnits(StrEnum):
    """Whether a sample or group without active tokens counts in N or P."""

    COUNTED = "counted"
    EXCLUDED = "excluded"


class DenominatorMask(StrEnum):
    """The loss mask, after or before rejection sampling, that a term or a denominator uses."""

    MODIFIED = "modified"
    """The mask after rejection sampling."""

    ORIGINAL = "original"
    """The mask before rejection sampling."""


class AuxiliaryAggregation(StrEnum):
    """The aggregation of auxiliary losses and diagnostics."""

    WITH_TOKEN_MEAN = "with_token_mean"
    """A mean over tokens if the policy loss is `token_mean`, else a mean over samples."""

    WITH_POLICY_LOSS = "with_policy_loss"
    """The aggregation of the policy loss."""

    SAMPLE_MEAN = "sample_mean"
    """A mean over samples in every mode."""

    TOKEN_MEAN = "token_mean"
    """A mean over tokens in every mode."""

    MICRO_BATCH_TOKEN_MEAN = "micro_batch_token_mean"
    """The mean over data-parallel ranks and micro-batches of each micro-batch's token mean. Some
    frameworks document it, although it depends on how a step is cut."""

    MICRO_BATCH_SAMPLE_MEAN = "micro_batch_sample_mean"
    """The mean over data-parallel ranks and micro-batches of each micro-batch's sample mean."""

    @property
    def depends_on_cut(self) -> bool:
        """Whether the weights depend on how the step is cut."""
        return self in (
            AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
            AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN,
        )


class AdvantageUnit(StrEnum):
    """Whether each token or each sample has its own advantage."""

    TOKEN = "token"

    SAMPLE = "sample"
    """All tokens of a sample share one advantage."""


class DivergenceEstimator(StrEnum):
    """Estimators of the divergence from the reference policy (`reference.losses.divergences`)."""

    K1 = "k1"

    K1_BY_RATIO = "k1_by_ratio"
    """k1 without its gradient, times the ratio of new to old policy, with its gradient."""

    K3 = "k3"

    K3_BY_RATIO = "k3_by_ratio"
    """k3 times the ratio of new to old policy, both with their gradients."""


class MicroBatchWeight(StrEnum):
    """The weight of each micro-batch of a rank in a mean over micro-batches."""

    EQUAL = "equal"

    BY_SAMPLES = "by_samples"
    """Proportional to its number of samples."""


class ComparedTokens(StrEnum):
    """The batch from which a policy loss selects tokens, or over which it takes a mean."""

    STEP = "step"

    MICRO_BATCH = "micro_batch"
    """The selected tokens then depend on how the step is cut."""


class TokenSet(StrEnum):
    """A set of response tokens."""

    ACTIVE = "active"
    """Tokens that are trained on: the loss mask is 1."""

    RESPONSE = "response"
    """All response tokens."""


class Penalties(StrEnum):
    """The divergence penalties that are subtracted from a centred reward."""

    TOKEN = "token"
    """The token's own penalty."""

    LATER_TOKENS = "later tokens"
    """The penalties of the token and of all later ones."""


class Compared(StrEnum):
    """The rewards of a prompt that a sample's reward is compared with."""

    SAMPLES = "samples"
    """The rewards of all samples of the prompt."""

    LONGEST_SAMPLES = "longest_samples"
    """One reward per rollout: that of the first sample with the most active tokens."""

    LAST_SAMPLES = "last_samples"
    """One reward per rollout: that of its last sample."""


class Rejected(StrEnum):
    """The treatment of a rejected sample's reward in the statistics of its prompt."""

    COUNTED = "counted"

    ZERO = "zero"

    EXCLUDED = "excluded"


class Missing(StrEnum):
    """The treatment of a sample without a reward in the statistics of its prompt."""

    EXCLUDED = "excluded"
    """The sample is not compared, and its advantage is 0."""

    ZERO = "zero"
    """The sample's reward is 0."""


class Lone(StrEnum):
    """The advantage of a reward that is compared with no other."""

    ZERO = "zero"

    REWARD = "reward"


class Deviation(StrEnum):
    """The divisor of the sum of squared deviations in the variance of n rewards.

    torch's ``std`` divides by n - 1 and NumPy's by n.
    """

    UNBIASED = "n - 1"

    BIASED = "n"

    @property
    def lost_degrees_of_freedom(self) -> int:
        """n minus the divisor."""
        return 1 if self is Deviation.UNBIASED else 0


STD_EPSILON = 1e-6
"""Default epsilon, added to the standard deviation that rewards are divided by."""


@dataclass(frozen=True, kw_only=True)
class EstimatorConventions:
    """The choices that an advantage estimator leaves open and a framework documents.

    Returns and GAE pass through the tokens of ``transitions``. ``penalised`` tokens have a penalty
    on their divergence from the reference policy. The reward is at the last ``rewarded`` token.
    ``valued`` tokens have a critic's value; it is 0 elsewhere. Mean and variance for whitening are
    taken over n ``whitened`` tokens; the variance is divided by n - ``lost_degrees_of_freedom``.
    ``std_epsilon`` is added to the standard deviation or mean that a group's rewards are divided
    by. ``penalties`` are subtracted from a centred reward. ``compared``, ``rejected``, ``lone`` and
    ``missing`` say which rewards of a prompt are compared, and ``deviation`` how their standard
    deviation is computed.
    """

    transitions: TokenSet = TokenSet.RESPONSE
    penalised: TokenSet = TokenSet.ACTIVE
    rewarded: TokenSet = TokenSet.ACTIVE
    valued: TokenSet = TokenSet.RESPONSE
    whitened: TokenSet = TokenSet.ACTIVE
    lost_degrees_of_freedom: float = 1
    std_epsilon: float = STD_EPSILON
    penalties: Penalties = Penalties.TOKEN
    compared: Compared = Compared.SAMPLES
    rejected: Rejected = Rejected.COUNTED
    lone: Lone = Lone.ZERO
    missing: Missing = Missing.EXCLUDED
    deviation: Deviation = Deviation.UNBIASED

    def __str__(self) -> str:
        sets = ("transitions", "penalised", "rewarded", "valued", "whitened")
        named = [f"{name}: {getattr(self, name)}" for name in sets]
        epsilon = [] if self.std_epsilon == STD_EPSILON else [f"std + {self.std_epsilon:g}"]
        later = self.penalties is Penalties.LATER_TOKENS
        penalties = [f"penalties: {self.penalties}"] if later else []
        degrees = f"n - {self.lost_degrees_of_freedom:g}"
        rewards = [
            f"{name}: {getattr(self, name)}"
            for name, usual in (
                ("compared", Compared.SAMPLES),
                ("rejected", Rejected.COUNTED),
                ("lone", Lone.ZERO),
                ("missing", Missing.EXCLUDED),
                ("deviation", Deviation.UNBIASED),
            )
            if getattr(self, name) is not usual
        ]
        return ", ".join([*named, degrees, *epsilon, *penalties, *rewards])


@dataclass(frozen=True, kw_only=True)
class LoggedMean:
    """The kind of a logged mean over the tokens of a batch of rollouts."""

    mode: Mode = Mode.SAMPLE_MEAN
    tokens: TokenSet = TokenSet.ACTIVE

    def __str__(self) -> str:
        return f"{self.mode} of {self.tokens} tokens"


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """The choices that the modes leave open and a framework documents. None means the default.

    By default samples are the units of `sample_mean` and `constant`, a sample without active tokens
    adds 0 and still counts, and denominators count the tokens left by rejection sampling (a rule of
    miles' pull request 1498).

    Aggregations: ``entropy`` and ``kl`` of these terms in training and in the log; ``diagnostics``
    of logged-only metrics such as the clip fraction; ``rejected`` of the fraction of rejected
    tokens (default: as ``diagnostics``); ``value_loss`` of a critic's loss (default:
    `WITH_TOKEN_MEAN`); ``logged_policy_loss``, ``logged_entropy`` and ``logged_kl`` in the log
    (default: as in training); ``logged_advantages`` and ``logged_values`` of the logged means.
    ``entropy_mask``, ``kl_mask`` and ``diagnostics_mask`` are the masks that these are averaged
    over where rejection sampling is used (default: the modified one).
    ``selected`` is the batch from which clip-cov, kl-cov and M2PO select tokens.
    ``micro_batch_weight`` applies to loss terms that are averaged over micro-batches; the same
    terms are logged as plain means.

    ``of_groups``, ``of_returns`` and ``of_values`` are the conventions of advantages from rewards
    of groups, from discounted returns, and from values; ``compared``, ``rejected_rewards``,
    ``lone_reward`` and ``missing_rewards`` say which rewards of a group are compared, and
    ``deviation`` how their standard deviation is computed. ``whole_groups`` says that `prompt_mean`
    needs all samples of a prompt on one data-parallel rank.
    """

    sample_unit: SampleUnit = SampleUnit.SAMPLE
    empty_units: EmptyUnits = EmptyUnits.COUNTED
    denominator_mask: DenominatorMask = DenominatorMask.MODIFIED
    entropy: AuxiliaryAggregation = AuxiliaryAggregation.WITH_TOKEN_MEAN
    kl: AuxiliaryAggregation = AuxiliaryAggregation.WITH_TOKEN_MEAN
    diagnostics: AuxiliaryAggregation = AuxiliaryAggregation.WITH_TOKEN_MEAN
    selected: ComparedTokens = ComparedTokens.STEP
    micro_batch_weight: MicroBatchWeight = MicroBatchWeight.EQUAL
    whole_groups: bool = False
    of_groups: EstimatorConventions | None = None
    of_returns: EstimatorConventions | None = None
    of_values: EstimatorConventions | None = None
    logged_advantages: LoggedMean | None = None
    logged_values: LoggedMean | None = None
    rejected: AuxiliaryAggregation | None = None
    value_loss: AuxiliaryAggregation | None = None
    kl_estimator: DivergenceEstimator = DivergenceEstimator.K1
    logged_entropy: AuxiliaryAggregation | None = None
    logged_kl: AuxiliaryAggregation | None = None
    logged_policy_loss: AuxiliaryAggregation | None = None
    advantage_unit: AdvantageUnit | None = None
    compared: Compared | None = None
    rejected_rewards: Rejected | None = None
    lone_reward: Lone | None = None
    missing_rewards: Missing | None = None
    deviation: Deviation | None = None
    entropy_mask: DenominatorMask | None = None
    kl_mask: DenominatorMask | None = None
    diagnostics_mask: DenominatorMask | None = None


DEFAULT_CONVENTIONS = Conventions()


@dataclass(frozen=True)
class Aggregation:
    """A mode, with a divisor L if the mode is `constant`.

    Raises:
        InvalidAggregationError: the mode is unknown, or the divisor is missing, given to another
            mode, or not a positive finite number (a bool does not count as a number). The rule is
            the startup validation of miles' pull request 1328: other divisors silently rescale the
            gradient.
    """

    mode: Mode
    divisor: float | None = None

    def __post_init__(self) -> None:
        known = [mode.value for mode in Mode]
        if self.mode not in known:
            raise InvalidAggregationError(
                f"mode {self.mode!r} is unknown",
                did_you_mean(self.mode, known, f"choose one of {', '.join(known)}"),
            )
        object.__setattr__(self, "mode", Mode(self.mode))
        if self.mode is Mode.CONSTANT:
            _require_divisor(self.divisor)
        elif self.divisor is not None:
            raise InvalidAggregationError(
                f"divisor {self.divisor!r} is given to {self.mode.value}, but only constant"
                " has a divisor",
                "drop the divisor or choose constant",
            )

    @classmethod
    def parse(cls, text: str) -> Aggregation:
        """Read `sample_mean`, `prompt_mean`, `token_mean` or `constant:L`."""
        mode, colon, divisor = text.partition(":")
        try:
            value = float(divisor) if colon else None
        except ValueError:
            raise InvalidAggregationError(
                f"divisor {divisor!r} of {text!r} is not a number",
                "write for example constant:40960",
            ) from None
        return cls(mode, value)  # type: ignore[arg-type]  # checked above


def _require_divisor(divisor: object) -> None:
    if isinstance(divisor, bool) or not isinstance(divisor, Real):
        raise InvalidAggregationError(
            f"constant needs a divisor and got {divisor!r}",
            "give a positive number, usually the maximum response length",
        )
    if not (math.isfinite(divisor) and float(divisor) > 0):
        raise InvalidAggregationError(
            f"divisor {divisor!r} is not a positive finite number",
            "give one, usually the maximum response length",
        )


def auxiliary_aggregation(policy: Aggregation, how: AuxiliaryAggregation) -> Aggregation:
    """The aggregation of an auxiliary term, given that of the policy loss.

    For a term that is averaged over micro-batches, it is the aggregation within a micro-batch.
    """
    if how is AuxiliaryAggregation.WITH_POLICY_LOSS:
        return policy
    per_token = how in (
        AuxiliaryAggregation.TOKEN_MEAN,
        AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
    ) or (how is AuxiliaryAggregation.WITH_TOKEN_MEAN and policy.mode is Mode.TOKEN_MEAN)
    return Aggregation(Mode.TOKEN_MEAN if per_token else Mode.SAMPLE_MEAN)
