"""The loss of a micro-batch."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from slime import lineage, terms
from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean
from slime.lineage import Data, Reducer, calculate_log_probs_and_entropy, megatron_grid
from slime.terms import value_loss_function


def get_log_probs_and_entropy(
    logits: torch.Tensor,
    *,
    args: Namespace,
    unconcat_tokens: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    with_entropy: bool = False,
) -> dict[str, tuple[torch.Tensor, ...]]:
    calculate = calculate_log_probs_and_entropy
    return lineage.log_probs(calculate, logits, unconcat_tokens, response_lengths, megatron_grid())


def get_pg_loss_reducer(
    args: Namespace,
    batch: Data,
    *,
    total_lengths: list[int],
    response_lengths: list[int],
    pg_loss_masks: list[torch.Tensor],
    default_reducer: Reducer,
) -> Reducer:
    return lineage.get_pg_loss_reducer(
        args, batch, pg_loss_masks, default_reducer, megatron_grid().cp
    )


def make_reducer(batch: Data, masks: Sequence[torch.Tensor], per_token: bool) -> Reducer:
    return get_sum_of_sample_mean(
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        loss_masks=[*masks],
        sample_denoms=batch["rollout_mask_sums"],
        calculate_per_token_loss=per_token,
    )


def values_of(args: Namespace, batch: Data, logits: torch.Tensor) -> Any:
    names = "unconcat_tokens", "total_lengths", "response_lengths"
    given = {name: batch[name] for name in names}
    return get_log_probs_and_entropy(logits, args=args, with_entropy=True, **given)


def policy_loss_function(
    args: Namespace, batch: Data, logits: torch.Tensor, sum_of_sample_mean: Reducer
) -> tuple[torch.Tensor, Data]:
    def choose(masks: Sequence[torch.Tensor], default: Reducer) -> Reducer:
        return get_pg_loss_reducer(
            args,
            batch,
            total_lengths=batch["total_lengths"],
            response_lengths=batch["response_lengths"],
            pg_loss_masks=[*masks],
            default_reducer=default,
        )

    values = values_of(args, batch, logits)
    reducers = partial(make_reducer, batch)
    return terms.policy_loss(args, args.eps_clip_c, batch, values, reducers, choose)


def sft_loss_function(
    args: Namespace, batch: Data, logits: torch.Tensor, sum_of_sample_mean: Reducer
) -> tuple[torch.Tensor, Data]:
    return terms.sft_loss(values_of(args, batch, logits)["log_probs"], sum_of_sample_mean)


def loss_function(
    args: Namespace,
    batch: Data,
    num_microbatches: int,
    step_global_batch_size: int,
    logits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, Data]:
    function = {
        "policy_loss": policy_loss_function,
        "value_loss": value_loss_function,
        "sft_loss": sft_loss_function,
    }[args.loss_type]
    shared = make_reducer(batch, batch["loss_masks"], args.calculate_per_token_loss)
    loss, logged = function(args, batch, logits, shared)
    rollouts, grid = step_global_batch_size, megatron_grid()
    return lineage.scaled(args, batch, num_microbatches, rollouts, loss, logged, grid)
