"""A model that is nothing but the probe, wrapped by prime-rl's `setup_fsdp`, and a user's loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from adapters.prime_rl.importing import module
from adapters.toolkit.probe import ProbedTransformer, logits_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.toolkit.probe import ForwardPasses


def setup_model(
    capacity: int, passes: ForwardPasses, dtype: str
) -> Callable[..., ProbedTransformer]:
    """Stands for prime-rl's function of this name: the probe in place of a checkpoint."""

    def setup(config: Any, parallel_dims: Any, *_: object) -> ProbedTransformer:
        of_model = SimpleNamespace(vocab_size=capacity, tie_word_embeddings=True)
        policy = ProbedTransformer(capacity, passes, logits_head, of_model)
        models = module("trainer.model")
        policies = mock.patch.object(models, "MixedPrecisionPolicy", _in_dtype(models, dtype))
        with policies:
            models.setup_fsdp(policy, config, parallel_dims)
        return policy

    return setup


def _in_dtype(models: Any, dtype: str) -> Callable[..., Any]:
    """FSDP2's policy with parameters in a dtype; prime-rl computes in bfloat16 alone."""
    policy = models.MixedPrecisionPolicy
    return lambda **options: policy(**options | {"param_dtype": getattr(torch, dtype)})


def policy_gradient(inputs: Any) -> Any:
    """A loss that a user adds: the policy gradient of a sample, without ratios.

    It is a sum over tokens, by the interface that prime-rl documents.
    """
    losses = -inputs.advantages * inputs.trainer_logprobs
    return module("trainer.rl.loss").LossOutputs(loss=losses[inputs.loss_mask].sum(), metrics={})
