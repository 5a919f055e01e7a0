"""From logits to log-probabilities."""

from argparse import Namespace

import torch
from miles import lineage
from miles.backends.training_utils.parallel import get_parallel_state
from miles.lineage import calculate_log_probs_and_entropy


def get_log_probs_and_entropy(
    logits: torch.Tensor,
    *,
    args: Namespace,
    unconcat_tokens: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    with_entropy: bool = False,
    max_seq_lens: list[int] | None = None,
) -> dict[str, tuple[torch.Tensor, ...]]:
    if args.qkv_format == "bshd" and max_seq_lens is None:
        raise ValueError("--qkv-format=bshd needs max_seq_lens")
    calculate = calculate_log_probs_and_entropy
    return lineage.log_probs(
        calculate, logits, unconcat_tokens, response_lengths, max_seq_lens, get_parallel_state()
    )
