"""Context parallelism."""

import torch
from slime import lineage


def slice_log_prob_with_cp(
    log_prob: torch.Tensor, total_length: int, response_length: int
) -> torch.Tensor:
    assert len(log_prob) == response_length < total_length
    return lineage.slice_response(log_prob, lineage.megatron_grid().cp)


def get_sum_of_sample_mean(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    sample_denoms: list[int],
    calculate_per_token_loss: bool = False,
) -> lineage.Reducer:
    denominators = [1] * len(loss_masks) if calculate_per_token_loss else sample_denoms
    return lineage.reducer(loss_masks, denominators, lineage.megatron_grid().cp)
