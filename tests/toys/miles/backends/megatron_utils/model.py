"""Training on a batch of rollouts."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from megatron.core.distributed import finalize_model_grads
from megatron.training import get_args
from miles import lineage
from miles.backends.training_utils.data import get_batch
from miles.backends.training_utils.log_utils import log_train_step
from miles.backends.training_utils.loss import loss_function


def train(
    rollout_id: int,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    data_iterator: Sequence[Iterator[lineage.Data]],
    num_microbatches: Sequence[int],
    witness_info: Any,
    attempt: int,
) -> None:
    args = get_args()
    batches = iter(lambda: get_batch(data_iterator[0]), None)
    lineage.train(
        args,
        model[0],
        optimizer,
        opt_param_scheduler,
        batches,
        zip(num_microbatches, strict=True),
        loss_function,
        finalize_model_grads,
        partial(log_train_step, args),
    )
