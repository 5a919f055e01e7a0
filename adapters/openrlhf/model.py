"""Models that are nothing but the probe, and the seams in OpenRLHF's own code."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    MoeCausalLMOutputWithPast,
)

from adapters.engines.deepspeed import made_once, use_torch_adam
from adapters.openrlhf.importing import module, value
from adapters.toolkit.probe import (
    ForwardPasses,
    PretrainedBase,
    ProbedModel,
    ProbeSeam,
    freeze_identity_head,
    router_loss,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time

USERS_OF_RAY = (
    "trainer.ppo_trainer",
    "trainer.ppo_utils.experience_maker",
    "trainer.ray.launcher",
)
"""Modules that hand data to Ray's processes and wait for answers."""


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
    """The only token's logits, in any rows; DeepSpeed hooks its backward pass to all outputs."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    logits: Any = 0.0 * probe[SEAM.predicted].unsqueeze(-1)
    if SEAM.has_router:
        return MoeCausalLMOutputWithPast(logits=logits, aux_loss=router_loss(input_ids, probe))
    return CausalLMOutput(logits=logits)


def _hidden_states(input_ids: torch.Tensor, probe: torch.Tensor) -> BaseModelOutput:
    """The probe's entries of the next tokens."""
    hidden: Any = probe[input_ids + 1].unsqueeze(-1)
    return BaseModelOutput(last_hidden_state=hidden)


@cache
def put_the_seams_in() -> None:
    """Once in a process: Ray's calls, the order of rows, the optimizer and the model's outputs."""
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
    if hasattr(strategy, "FusedAdam"):  # before 0.10.2, which made its optimizer itself
        strategy.FusedAdam = _torch_adam


def _torch_adam(groups: Sequence[dict[str, Any]], **options: Any) -> torch.optim.AdamW:
    """Torch's AdamW, without the groups that have none of our model's parameters."""
    return torch.optim.AdamW([group for group in groups if group["params"]], **options)


def _ordered_loader(loader: Any, *args: Any, shuffle: bool = False, **options: Any) -> Any:
    """A loader of rows in their order."""
    return loader(*args, shuffle=False, **options)
