"""The policy loss."""

from argparse import Namespace

import torch
from miles import lineage
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy
from miles.backends.training_utils.parallel import get_parallel_state


def get_pg_loss_reducer(
    args: Namespace,
    batch: lineage.Data,
    *,
    total_lengths: list[int],
    response_lengths: list[int],
    pg_loss_masks: list[torch.Tensor],
    max_seq_lens: list[int] | None,
    default_reducer: lineage.Reducer,
) -> lineage.Reducer:
    cp = get_parallel_state().cp
    return lineage.get_pg_loss_reducer(args, batch, pg_loss_masks, default_reducer, cp)


def policy_loss_function(
    args: Namespace,
    batch: lineage.Data,
    logits: torch.Tensor,
    sum_of_sample_mean: lineage.Reducer,
) -> torch.Tensor:
    lengths = {
        "total_lengths": batch["total_lengths"],
        "response_lengths": batch["response_lengths"],
        "max_seq_lens": batch.get("max_seq_lens"),
    }
    _, log_probs = get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], **lengths
    )
    reduce = get_pg_loss_reducer(
        args,
        batch,
        **lengths,
        pg_loss_masks=batch["loss_masks"],
        default_reducer=sum_of_sample_mean,
    )
    losses = lineage.policy_loss(log_probs["log_probs"], batch)
    return reduce(lineage.corrected(args, losses, batch))
