"""The losses."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from miles import lineage, terms
from miles.backends.training_utils.cp_utils import make_reducer
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy
from miles.backends.training_utils.parallel import get_parallel_state
from miles.terms import value_loss_function


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


def lengths(batch: lineage.Data) -> dict[str, Any]:
    names = "total_lengths", "response_lengths", "max_seq_lens"
    return {name: batch.get(name) for name in names}


def values_of(args: Namespace, batch: lineage.Data, logits: torch.Tensor) -> Any:
    tokens = batch["unconcat_tokens"]
    return get_log_probs_and_entropy(logits, args=args, unconcat_tokens=tokens, **lengths(batch))


def policy_loss_function(
    args: Namespace, batch: lineage.Data, logits: torch.Tensor, sum_of_sample_mean: lineage.Reducer
) -> tuple[torch.Tensor, lineage.Data]:
    def choose(masks: Sequence[torch.Tensor], default: lineage.Reducer) -> lineage.Reducer:
        return get_pg_loss_reducer(
            args, batch, **lengths(batch), pg_loss_masks=[*masks], default_reducer=default
        )

    values = values_of(args, batch, logits)
    reducers = partial(make_reducer, args, batch)
    return terms.policy_loss(args, args.eps_clip_c, batch, values, reducers, choose)


def sft_loss_function(
    args: Namespace, batch: lineage.Data, logits: torch.Tensor, sum_of_sample_mean: lineage.Reducer
) -> tuple[torch.Tensor, lineage.Data]:
    return terms.sft_loss(values_of(args, batch, logits)["log_probs"], sum_of_sample_mean)


def get_loss_function(args: Namespace) -> Any:
    return {
        "policy_loss": policy_loss_function,
        "value_loss": value_loss_function,
        "sft_loss": sft_loss_function,
    }[args.loss_type]
