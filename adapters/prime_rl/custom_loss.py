"""A loss that a user of prime-rl adds: the policy gradient without ratios."""

from __future__ import annotations

from typing import Any

from adapters.prime_rl.importing import module

PATH = f"{__name__}.policy_gradient"
"""Where prime-rl imports it from."""


def policy_gradient(inputs: Any) -> Any:
    """The loss of one sample, a sum over its tokens, by the interface that prime-rl documents."""
    losses = -inputs.advantages * inputs.trainer_logprobs
    return module("trainer.rl.loss").LossOutputs(loss=losses[inputs.loss_mask].sum(), metrics={})
