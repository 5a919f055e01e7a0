"""The policy loss."""

from argparse import Namespace

import torch
from miles import lineage, terms
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy


def policy_loss_function(
    args: Namespace,
    batch: lineage.Data,
    logits: torch.Tensor,
    sum_of_sample_mean: lineage.Reducer,
) -> tuple[torch.Tensor, lineage.Data]:
    values = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    losses, _ = terms.policy_losses(args, torch.cat([*values["log_probs"]]), batch)
    loss = sum_of_sample_mean(losses)
    return loss, {"pg_loss": loss}
