"""Corrections that compare the tokens of a whole step: token selection and mean weights.

Formulas and sources are those of `reference.losses.corrections`. Corrections are computed before a
step is cut, from log-probabilities of an additional forward pass, and have no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from adapters.contract.objective import CONSTANTS, Objective
from adapters.native.losses import truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adapters.native.packing import SampleTensors


@dataclass(frozen=True, kw_only=True)
class ActiveTokens:
    """The inputs of corrections, for the active tokens of a step: [active tokens]."""

    advantages: torch.Tensor
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor


def assign_corrections(
    samples: Sequence[SampleTensors], objective: Objective
) -> Sequence[SampleTensors]:
    """The samples of a step, with the loss factors that depend on other samples."""
    if objective not in CORRECTIONS or not any(sample.tokens for sample in samples):
        return samples
    correction = CORRECTIONS[objective](active_tokens(samples))
    of_samples = correction.split([sample.tokens for sample in samples])
    return [
        replace(sample, correction=sample.correction.masked_scatter(sample.mask, of_active))
        for sample, of_active in zip(samples, of_samples, strict=True)
    ]


def active_tokens(samples: Sequence[SampleTensors]) -> ActiveTokens:
    """The active tokens of samples, concatenated."""

    def joined(field: str) -> torch.Tensor:
        return torch.cat([getattr(sample, field)[sample.mask] for sample in samples])

    return ActiveTokens(**{name: joined(name) for name in ActiveTokens.__dataclass_fields__})


def covariances(tokens: ActiveTokens) -> torch.Tensor:
    """Each token's deviation from the mean advantage times that from the mean log-probability."""
    distances = tokens.advantages - tokens.advantages.mean()
    return distances * (tokens.log_probs - tokens.log_probs.mean())


def unclipped(tokens: ActiveTokens) -> torch.Tensor:
    """0 for the tokens that clip-cov clips, 1 for others."""
    found = covariances(tokens)
    clipped = (found > CONSTANTS.covariance_low) & (found < CONSTANTS.covariance_high)
    return (~clipped).to(tokens.advantages.dtype)


def penalised(tokens: ActiveTokens) -> torch.Tensor:
    """1 for the tokens that kl-cov penalises, 0 for others."""
    return largest(covariances(tokens))


def largest(values: torch.Tensor) -> torch.Tensor:
    """1 for the largest values, a fixed fraction that kl-cov penalises; 0 for all others."""
    number = max(int(CONSTANTS.covariance_fraction * len(values)), 1)
    places = values.sort(stable=True, descending=True).indices[:number]
    return torch.zeros_like(values).index_fill(0, places, 1.0)


def small_moment_mask(tokens: ActiveTokens) -> torch.Tensor:
    """1 for the tokens that M2PO keeps, 0 for others."""
    squares = (tokens.log_probs - tokens.rollout_log_probs) ** 2
    ascending, places = squares.sort(stable=True)
    means = ascending.cumsum(0) / torch.arange(1, len(squares) + 1)
    number = max(int((means < CONSTANTS.second_moment).sum()), 1)
    return torch.zeros_like(squares).index_fill(0, places[:number], 1.0)


def normalised(log_ratios: torch.Tensor) -> torch.Tensor:
    """Truncated ratios, divided by their mean."""
    ratios = truncated(log_ratios)
    return ratios / ratios.mean()


CORRECTIONS: dict[Objective, Callable[[ActiveTokens], torch.Tensor]] = {
    Objective.COVARIANCE_CLIPPED: unclipped,
    Objective.COVARIANCE_PENALISED: penalised,
    Objective.M2PO: small_moment_mask,
    Objective.TIS_NORMALISED: lambda tokens: normalised(
        tokens.old_log_probs - tokens.rollout_log_probs
    ),
    Objective.REINFORCE_NORMALISED: lambda tokens: normalised(
        tokens.log_probs - tokens.rollout_log_probs
    ),
}
"""The correction of each objective that compares the tokens of a step."""
