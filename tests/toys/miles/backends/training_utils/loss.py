"""The loss of a micro-batch."""

from argparse import Namespace

import torch
from miles import lineage
from miles.backends.training_utils.cp_utils import make_reducer
from miles.backends.training_utils.loss_hub.losses import get_loss_function
from miles.backends.training_utils.parallel import get_parallel_state


def unscaled_loss(
    args: Namespace, batch: lineage.Data, logits: torch.Tensor
) -> tuple[torch.Tensor, lineage.Data]:
    shared = make_reducer(args, batch, batch["loss_masks"], args.calculate_per_token_loss)
    loss, logged = get_loss_function(args)(args, batch, logits, shared)
    return loss, logged


def loss_function(
    args: Namespace, batch: lineage.Data, num_microbatches: int, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, lineage.Data]:
    loss, logged = unscaled_loss(args, batch, logits)
    rollouts, grid = args.global_batch_size, get_parallel_state()
    return lineage.scaled(args, batch, num_microbatches, rollouts, loss, logged, grid)
