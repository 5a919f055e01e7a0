"""Models that consist of the probe, and the patches of OpenRLHF's own code."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput, MoeCausalLMOutputWithPast

from adapters.engines.deepspeed import made_once, use_torch_adam
from adapters.openrlhf.importing import module, value
from adapters.toolkit.probe import (
    SEAM,
    ForwardPasses,
    PretrainedBase,
    ProbedModel,
    freeze_identity_head,
    router_loss,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

USERS_OF_RAY = ("trainer.ppo_trainer", "trainer.ppo_utils.experience_maker", "trainer.ray.launcher")
"""Modules that send data to Ray's processes and wait for results."""


def actor(capacity: int, passes: ForwardPasses, args: Any) -> Any:
    """OpenRLHF's actor around our model."""
    wrapped = module("models").Actor(ProbedModel(capacity, passes, _logits))
    wrapped.packing_samples = value(args, "--ds.packing_samples")
    return wrapped


def critic(capacity: int, passes: ForwardPasses, args: Any) -> Any:
    """OpenRLHF's critic on our model, with a value head that is the identity."""
    head = value(args, "--ds.value_head_prefix")
    critic_class = module("models.model")._get_critic_model(
        PretrainedBase,
        lambda config: ProbedModel(capacity, passes, _hidden_states),
        head,
        value(args, "--ds.packing_samples"),
    )
    made = critic_class(SimpleNamespace(hidden_size=1, normalize_reward=False))
    freeze_identity_head(getattr(made, head))
    return made


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> Any:
    """The only token's logits, with the probe in their graph, as DeepSpeed hooks all outputs."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    logits: Any = 0.0 * probe[SEAM.predicted].unsqueeze(-1)
    if SEAM.has_router:
        return MoeCausalLMOutputWithPast(logits=logits, aux_loss=router_loss(input_ids, probe))
    return CausalLMOutput(logits=logits)


def _hidden_states(input_ids: torch.Tensor, probe: torch.Tensor) -> BaseModelOutput:
    """Hidden states: the probe's entries of the next tokens."""
    hidden: Any = probe[input_ids + 1].unsqueeze(-1)
    return BaseModelOutput(last_hidden_state=hidden)


@cache
def put_the_seams_in() -> None:
    """Patch Ray's calls, data loaders, the optimizer and functions of logits, once in a process."""
    calls = SimpleNamespace(get=lambda references: references, put=lambda value: value)
    for path in USERS_OF_RAY:
        module(path).ray = calls
    for path in ("trainer.ray.ppo_actor", "trainer.ray.ppo_critic"):
        users = module(path)
        users.DataLoader = partial(_ordered_loader, users.DataLoader)
    SEAM.put_into(module("models.actor"), "log_probs_from_logits", "compute_entropy")
    strategy = module("utils.deepspeed.deepspeed")
    strategy.init_device_mesh = made_once(strategy.init_device_mesh)
    make_config = strategy.get_train_ds_config

    def config_with_torch_adam(*args: Any, **options: Any) -> Any:
        config = make_config(*args, **options)
        if "optimizer" in config:
            config["optimizer"] = use_torch_adam(config["optimizer"])
        return config

    strategy.get_train_ds_config = config_with_torch_adam
    if hasattr(strategy, "FusedAdam"):  # versions before 0.10.2 make the optimizer themselves
        strategy.FusedAdam = _torch_adam


def _torch_adam(groups: Sequence[dict[str, Any]], **options: Any) -> torch.optim.AdamW:
    """Torch's AdamW, without groups that are empty because our model lacks their parameters."""
    return torch.optim.AdamW([group for group in groups if group["params"]], **options)


def _ordered_loader(loader: Any, *args: Any, shuffle: bool = False, **options: Any) -> Any:
    """A data loader that does not shuffle rows."""
    return loader(*args, shuffle=False, **options)
