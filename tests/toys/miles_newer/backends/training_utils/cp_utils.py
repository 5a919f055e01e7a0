"""Context parallelism, and a reducer that takes its denominators from the whole step."""

import torch
from miles import lineage
from miles.backends.training_utils.parallel import get_parallel_state


def slice_log_prob_with_cp(
    log_prob: torch.Tensor,
    total_length: int,
    response_length: int,
    qkv_format: str = "thd",
    max_token_len: int | None = None,
) -> torch.Tensor:
    return lineage.slice_response(log_prob, get_parallel_state().cp)


def get_sum_of_sample_mean(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    calculate_per_token_loss: bool = False,
    *,
    denominators: list[int],
) -> lineage.Reducer:
    chosen = [1] * len(loss_masks) if calculate_per_token_loss else denominators
    return lineage.reducer(loss_masks, chosen, get_parallel_state().cp)
