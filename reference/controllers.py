"""Coefficients that follow a measured number from one optimizer step to the next.

The coefficient β of a divergence is multiplied by

    1 + clip(kl / target - 1, -0.2, 0.2) · n / horizon

after a batch of n samples with a divergence of kl (Ziegler et al., Fine-Tuning Language Models from
Human Preferences, arXiv:1909.08593, section 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_ERROR = 0.2


@dataclass(frozen=True, kw_only=True)
class AdaptiveCoefficient:
    """The coefficient for a batch of ``samples`` samples, and the constants of its formula."""

    coefficient: float
    target: float
    samples: float
    horizon: float

    def after(self, divergence: float) -> float:
        """The coefficient for the next step, after a batch with this divergence."""
        error = min(max(divergence / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        return self.coefficient * (1 + error * self.samples / self.horizon)
