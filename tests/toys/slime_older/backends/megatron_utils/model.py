"""Training on a batch of rollouts, whose steps are all of one size."""

from collections.abc import Iterator, Sequence
from typing import Any

from megatron.core.distributed import finalize_model_grads
from megatron.training import get_args
from slime import lineage
from slime.backends.megatron_utils.loss import loss_function
from slime.utils import tracking_utils


def train(
    rollout_id: int,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    data_iterator: Sequence[Iterator[lineage.Data]],
    num_microbatches: Sequence[int],
) -> None:
    args = get_args()
    lineage.train(
        args,
        model[0],
        optimizer,
        opt_param_scheduler,
        data_iterator[0],
        [(count, args.global_batch_size) for count in num_microbatches],
        loss_function,
        finalize_model_grads,
        lambda metrics: tracking_utils.log(args, metrics, step_key="train/step"),
    )
