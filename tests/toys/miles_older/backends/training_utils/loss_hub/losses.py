"""The policy loss."""

from argparse import Namespace

import torch
from miles import lineage
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy


def policy_loss_function(
    args: Namespace,
    batch: lineage.Data,
    logits: torch.Tensor,
    sum_of_sample_mean: lineage.Reducer,
) -> torch.Tensor:
    _, log_probs = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    return sum_of_sample_mean(lineage.policy_loss(log_probs["log_probs"], batch))
