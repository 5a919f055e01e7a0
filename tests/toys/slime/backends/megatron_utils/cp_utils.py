"""Context parallelism."""

import torch
from slime import lineage, terms


def slice_log_prob_with_cp(
    log_prob: torch.Tensor, total_length: int, response_length: int
) -> torch.Tensor:
    assert len(log_prob) == response_length < total_length
    return lineage.slice_response(log_prob, lineage.megatron_grid().cp)


def reduce_train_step_metrics(
    losses_reduced: list[lineage.Data],
    *,
    calculate_per_token_loss: bool,
    step_global_batch_size: int,
    cp_size: int,
    dp_with_cp_group: object,
) -> dict[str, float]:
    return lineage.log_of(losses_reduced)


def all_gather_with_cp(
    tensor: torch.Tensor, total_length: int, response_length: int
) -> torch.Tensor:
    return terms.gathered_response(tensor, response_length, lineage.megatron_grid().cp)


def get_sum_of_sample_mean(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    sample_denoms: list[int] | None = None,
    calculate_per_token_loss: bool = False,
) -> lineage.Reducer:
    denominators = [1] * len(loss_masks) if calculate_per_token_loss else sample_denoms
    assert denominators is not None
    return lineage.reducer(loss_masks, denominators, lineage.megatron_grid().cp)
