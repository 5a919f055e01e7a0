"""What is looked at, and what comes of it."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What became of one finding."""

    CONFORMS = "conforms"
    MISMATCH = "mismatch"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"
    ADVICE = "advice"
    """Nothing that the framework promises is broken, and a user had better know."""


WRONG = (Verdict.MISMATCH, Verdict.CRASHED)

JUDGED = (Verdict.CONFORMS, Verdict.REFUSED, *WRONG)
"""Verdicts that say whether the framework keeps a promise: what totals of what is wrong are of."""


class Check(StrEnum):
    """A property that is looked at."""

    WEIGHTS = "weights"
    """What every token weighs in the gradient."""

    METRIC = "metric"
    """What the framework logs of the step: its losses, their terms, its diagnostics."""

    REJECTION = "rejection"
    """The policy loss's weights, and a log, where rejection sampling shrinks the mask."""

    AUXILIARY = "auxiliary"
    """Weights of the terms beside the policy loss, and of policy losses other than PPO's."""

    OTHER_LOSSES = "other_losses"
    """Weights of losses that are trained in the place of a policy loss."""

    SHARDING = "sharding"
    """Which rank trained on what."""

    ARGUMENTS = "arguments"
    """What startup validation refuses, and what it accepts as the same."""

    LOGGING = "logging"
    """What is refused of what micro-batches hand on to be logged."""
