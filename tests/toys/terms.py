"""The parts of the toy's losses, and how they are chosen on the command line.

The package in a checkout of the toy has a copy of this module, next to `lineage`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .lineage import Data, Group, Reducer, load_function, slice_response

Masks = Sequence[torch.Tensor]
MakeReducer = Callable[[Masks, bool], Reducer]
"""Makes a reducer, given masks and whether losses are summed over tokens."""


def add_options(parser: ArgumentParser) -> None:
    for name in ("entropy-coef", "kl-loss-coef"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--use-kl-loss", action="store_true")
    parser.add_argument("--kl-loss-type", choices=["k1"], default="k1")
    parser.add_argument("--ref-load")
    parser.add_argument("--eps-clip-c", type=float)
    parser.add_argument("--loss-type", choices=["policy_loss", "sft_loss"], default="policy_loss")
    parser.add_argument("--advantage-estimator", choices=["grpo", "cispo"], default="grpo")
    parser.add_argument("--normalize-advantages", action="store_true")


def validate(args: Namespace) -> None:
    """Refuse a mean over tokens together with other terms, which are means over samples."""
    if args.calculate_per_token_loss and (args.entropy_coef or args.kl_loss_coef):
        raise ValueError("--entropy-coef and --kl-loss-coef are for means over samples")


def policy_losses(
    args: Namespace,
    log_probs: torch.Tensor,
    batch: Data,
    eps_clip_c: float | None = None,
    *,
    cispo: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each token of this rank, and whether it is clipped: 1 or 0."""
    ratio = torch.exp(log_probs - torch.cat(batch["log_probs"]))
    gain = torch.cat(batch["advantages"])
    bounded = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high)
    clipped = (gain * ratio > gain * bounded).float()
    if cispo:
        return -gain * bounded.detach() * log_probs, clipped
    losses = torch.maximum(-gain * ratio, -gain * bounded)
    if eps_clip_c is not None:
        losses = torch.where(gain < 0, torch.minimum(losses, -gain * eps_clip_c), losses)
    return losses, clipped


def corrected(
    args: Namespace, losses: torch.Tensor, batch: Data
) -> tuple[torch.Tensor, Masks, dict[str, torch.Tensor]]:
    """Losses, masks and numbers to log, after the custom truncated importance sampling if any."""
    if not args.use_tis:
        return losses, batch["loss_masks"], {}
    names = "loss_masks", "rollout_log_probs", "total_lengths", "response_lengths", "max_seq_lens"
    known = {name: batch.get(name) for name in names}
    result: Any = load_function(args.custom_tis_function_path)(
        args=args, pg_loss=losses, train_log_probs=batch["log_probs"], **known
    )
    return result


def policy_loss(
    args: Namespace,
    eps_clip_c: float | None,
    batch: Data,
    values: dict[str, Sequence[torch.Tensor]],
    make_reducer: MakeReducer,
    choose: Callable[[Masks, Reducer], Reducer],
) -> tuple[torch.Tensor, Data]:
    """The loss of a micro-batch and the values to log."""
    log_probs = torch.cat([*values["log_probs"]])
    cispo = args.advantage_estimator == "cispo"
    losses, clipped = policy_losses(args, log_probs, batch, eps_clip_c, cispo=cispo)
    losses, masks, rejected = corrected(args, losses, batch)
    reduce = make_reducer(masks, False)
    before = make_reducer(batch["loss_masks"], False)
    loss = choose(masks, make_reducer(masks, args.calculate_per_token_loss))(losses)
    logged = {
        "pg_loss": loss,
        "pg_clipfrac": reduce(clipped),
        "ppo_kl": reduce(torch.cat(batch["log_probs"]) - log_probs),
        "entropy_loss": reduce(torch.cat([*values["entropy"]])),
        **{name: before(value) for name, value in rejected.items()},
    }
    loss = loss - args.entropy_coef * logged["entropy_loss"]
    if args.use_kl_loss:
        logged["kl_loss"] = reduce(log_probs - torch.cat(batch["ref_log_probs"]))
        loss = loss + args.kl_loss_coef * logged["kl_loss"]
    return loss, {"loss": loss, **logged}


def sft_loss(log_probs: Sequence[torch.Tensor], reduce: Reducer) -> tuple[torch.Tensor, Data]:
    loss = -reduce(torch.cat([*log_probs]))
    return loss, {"loss": loss}


def value_loss_function(
    args: Namespace, batch: Data, logits: torch.Tensor, sum_of_sample_mean: Reducer
) -> tuple[torch.Tensor, Data]:
    """The loss of a critic."""
    loss = sum_of_sample_mean((logits[0, :, 0] - torch.cat(batch["returns"])) ** 2)
    return loss, {"value_loss": loss}


def gathered_response(values: torch.Tensor, length: int, cp: Group) -> torch.Tensor:
    """All values of a response, gathered from the context-parallel ranks."""
    whole = torch.zeros(length, dtype=values.dtype, device=values.device)
    slice_response(whole, cp).copy_(values)
    if cp.size > 1:
        torch.distributed.all_reduce(whole, group=cp.group)
    return whole
