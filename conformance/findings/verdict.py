"""Verdicts and checks."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The result of one finding."""

    CONFORMS = "conforms"
    MISMATCH = "mismatch"
    """Numbers are wrong."""

    REFUSED = "refused"
    """The framework declined, with an error of its own, a step that its documents do not
    promise."""

    UNSUPPORTED = "unsupported"
    """The framework has no such mode, layout or metric, by its adapter's declaration."""

    DECLINED = "declined"
    """The framework declined an ordinary step that its documents promise."""

    CRASHED = "crashed"
    """A rank hung, died or raised, and the adapter is not at fault."""

    ADVICE = "advice"
    """The framework keeps its promises, but users should know about this behaviour."""

    NOT_DRIVEN = "not_driven"
    """The adapter lacks something that this version needs, or time is too short: no verdict."""


WRONG = (Verdict.MISMATCH, Verdict.DECLINED, Verdict.CRASHED)

UNJUDGED = (Verdict.UNSUPPORTED, Verdict.NOT_DRIVEN)

JUDGED = (Verdict.CONFORMS, Verdict.REFUSED, *WRONG)
"""Verdicts on a promise of the framework, kept or not; totals count only these."""


def driven_instead(versions: str, reason: str) -> str:
    """Words on the versions that an adapter supports; empty if the reason is not the version."""
    is_of_environment = "ModuleNotFoundError: " in reason or " requires Python " in reason
    return f"the adapter drives {versions}" if versions and not is_of_environment else ""


class Check(StrEnum):
    """A property of a framework that is checked."""

    WEIGHTS = "weights"
    """The weight of every token in the gradient."""

    METRIC = "metric"
    """The metrics that the framework logs: losses, their terms and diagnostics."""

    REJECTION = "rejection"
    """Weights and a metric after rejection sampling."""

    OFF_POLICY = "off_policy"
    """Weights of all policy losses, times their derivatives where ratios are not 1."""

    ADVANTAGES = "advantages"
    """Weights of the policy loss, times advantages that the framework computes from rewards."""

    ROLLOUTS = "rollouts"
    """The numbers that the framework logs of a batch of rollouts before it trains on them."""

    AUXILIARY = "auxiliary"
    """Weights of auxiliary losses."""

    OTHER_LOSSES = "other_losses"
    """Weights of losses that replace the policy loss."""

    POISON = "poison"
    """Gradients and logged numbers where masked tokens hold NaN, infinity or large values."""

    NO_GRADIENT = "no_gradient"
    """Gradients of inputs that a loss must treat as constants: other policies, advantages,
    values."""

    LAWS = "laws"
    """Gradients and all logged numbers of two steps whose only difference must not matter."""

    DEFAULTS = "defaults"
    """Documented defaults: the values in the configuration, and the gradients of steps that leave
    options out."""

    SHARDING = "sharding"
    """The tokens that each rank trains on."""

    ARGUMENTS = "arguments"
    """The configurations that startup validation refuses or accepts."""

    LOGGING = "logging"
    """The malformed logs of micro-batches that are refused."""
