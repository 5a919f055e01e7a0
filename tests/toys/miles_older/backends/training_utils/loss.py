"""The loss of a micro-batch."""

from argparse import Namespace

import torch
from miles import lineage
from miles.backends.training_utils.cp_utils import get_sum_of_sample_mean
from miles.backends.training_utils.loss_hub.losses import policy_loss_function
from miles.backends.training_utils.parallel import get_parallel_state


def loss_function(
    args: Namespace, batch: lineage.Data, num_microbatches: int, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, lineage.Data]:
    shared = get_sum_of_sample_mean(
        batch["total_lengths"],
        batch["response_lengths"],
        batch["loss_masks"],
        calculate_per_token_loss=args.calculate_per_token_loss,
        divisor=args.pg_loss_divisor,
    )
    loss, logged = policy_loss_function(args, batch, logits, shared)
    rollouts, grid = args.global_batch_size, get_parallel_state()
    return lineage.scaled(args, batch, num_microbatches, rollouts, loss, logged, grid)
