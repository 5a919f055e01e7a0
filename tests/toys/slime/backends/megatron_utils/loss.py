"""The loss of a micro-batch."""

from argparse import Namespace

import torch
from slime import lineage
from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean
from slime.lineage import Data, Reducer, calculate_log_probs_and_entropy, megatron_grid


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
    values = lineage.log_probs(
        calculate, logits, unconcat_tokens, response_lengths, None, megatron_grid()
    )
    return {"log_probs": values}


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


def loss_function(
    args: Namespace,
    batch: Data,
    num_microbatches: int,
    step_global_batch_size: int,
    logits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, Data]:
    masks = batch["loss_masks"]
    lengths = {key: batch[key] for key in ("total_lengths", "response_lengths")}
    log_probs = get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], **lengths
    )
    shared = get_sum_of_sample_mean(
        **lengths,
        loss_masks=masks,
        sample_denoms=batch["rollout_mask_sums"],
        calculate_per_token_loss=args.calculate_per_token_loss,
    )
    reduce = get_pg_loss_reducer(
        args, batch, **lengths, pg_loss_masks=masks, default_reducer=shared
    )
    losses = lineage.policy_loss(log_probs["log_probs"], batch)
    loss = reduce(lineage.corrected(args, losses, batch))
    return lineage.scaled(
        args, batch, num_microbatches, step_global_batch_size, loss, megatron_grid()
    )
