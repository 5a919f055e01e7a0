"""Context parallelism."""

from argparse import Namespace
from collections.abc import Sequence

import torch
from miles import lineage, terms
from miles.backends.training_utils.parallel import get_parallel_state


def slice_log_prob_with_cp(
    log_prob: torch.Tensor,
    total_length: int,
    response_length: int,
    qkv_format: str = "thd",
    max_token_len: int | None = None,
) -> torch.Tensor:
    assert len(log_prob) == response_length < total_length
    assert (qkv_format == "bshd") == (max_token_len is not None)
    return lineage.slice_response(log_prob, get_parallel_state().cp)


def all_gather_with_cp(
    tensor: torch.Tensor,
    total_length: int,
    response_length: int,
    qkv_format: str = "thd",
    max_seq_len: int | None = None,
) -> torch.Tensor:
    return terms.gathered_response(tensor, response_length, get_parallel_state().cp)


def get_sum_of_sample_mean(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    calculate_per_token_loss: bool = False,
    qkv_format: str = "thd",
    max_seq_lens: list[int] | None = None,
) -> lineage.Reducer:
    tokens = [1 if calculate_per_token_loss else max(int(mask.sum()), 1) for mask in loss_masks]
    return lineage.reducer(loss_masks, tokens, get_parallel_state().cp)


def make_reducer(
    args: Namespace, batch: lineage.Data, masks: Sequence[torch.Tensor], per_token: bool
) -> lineage.Reducer:
    return get_sum_of_sample_mean(
        batch["total_lengths"],
        batch["response_lengths"],
        [*masks],
        calculate_per_token_loss=per_token,
        qkv_format=args.qkv_format,
        max_seq_lens=batch.get("max_seq_lens"),
    )
