"""Models that are nothing but the probe, and the seams in OpenRLHF's functions of logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from adapters.openrlhf.importing import module
from adapters.toolkit.critics import PretrainedBase, freeze_identity_head
from adapters.toolkit.probe import ForwardPasses, ProbedModel, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time


def actor(capacity: int, passes: ForwardPasses, args: Any) -> Any:
    """OpenRLHF's actor around our model."""
    wrapped = module("models").Actor(ProbedModel(capacity, passes, _logits))
    wrapped.packing_samples = args.ds.packing_samples
    return wrapped


def critic(capacity: int, passes: ForwardPasses, args: Any) -> Any:
    """OpenRLHF's critic on our model, with a value head that is the identity."""
    critic_class = module("models.model")._get_critic_model(
        PretrainedBase,
        lambda config: ProbedModel(capacity, passes, _hidden_states),
        args.ds.value_head_prefix,
        args.ds.packing_samples,
    )
    made = critic_class(SimpleNamespace(hidden_size=1, normalize_reward=False))
    freeze_identity_head(getattr(made, args.ds.value_head_prefix))
    return made


def probe_of(model: Any) -> torch.nn.Parameter:
    """The probe of an actor or a critic."""
    [probe] = [one for one in model.parameters() if one.requires_grad]
    return probe


def with_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The log-probabilities of tokens, plus the probe."""

    def log_probs(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        real = log_probs_from_logits(logits, labels % SEAM.VOCABULARY, **options)
        return real + SEAM.log_probs(labels)

    return log_probs


def with_entropies(compute_entropy: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The entropies at positions, plus those of the tokens that they predict and the probe."""

    def entropies(logits: torch.Tensor) -> torch.Tensor:
        real = compute_entropy(logits)
        assert SEAM.predicted is not None
        return real + SEAM.entropies(SEAM.predicted, trained=True)

    return entropies


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The only token's logits, in any rows; DeepSpeed hooks its backward pass to all outputs."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    logits: Any = 0.0 * probe[SEAM.predicted].unsqueeze(-1)
    return CausalLMOutput(logits=logits)


def _hidden_states(input_ids: torch.Tensor, probe: torch.Tensor) -> BaseModelOutput:
    """The probe's entries of the next tokens."""
    hidden: Any = probe[input_ids + 1].unsqueeze(-1)
    return BaseModelOutput(last_hidden_state=hidden)
