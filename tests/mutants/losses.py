"""Some tokens are lost, or trained on twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract.objective import Metric
from adapters.native.packing import Packed, SampleTensors
from tests.mutants.mutant import EVERYDAY, Mutant

if TYPE_CHECKING:
    from adapters.native.trainer import TokenLosses


OF_SEVERAL_SAMPLES = tuple(case for case in EVERYDAY if case.fewest_samples > 1)
"""The cases except those of one sample, which would be lost or repeated as a whole."""


class TruncatedByZip(Mutant, diagnosis="samples_dropped", corpus=OF_SEVERAL_SAMPLES):
    """`zip` over samples and one denominator too few: the last sample is lost."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return super().divided(samples)[: len(samples) - 1] if len(samples) > 1 else samples


class LastMicroBatchDropped(Mutant, diagnosis="samples_dropped"):
    """`drop_last`: the micro-batch that is not full is not trained on."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return parts[:-1] if len(parts) > 1 else parts


class AccumulationOverwritten(Mutant, diagnosis="micro_batches_lost"):
    """Gradients are zeroed before every micro-batch instead of every step."""

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        self.probe = probe
        return super().accumulate(probe, samples, token_losses)

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        assert self.probe.grad is not None
        self.probe.grad.zero_()
        return super().reduce(token_losses, packed)


class NotReducedOverDp(Mutant, diagnosis="not_reduced_over_dp"):
    """Gradients are reduced over slices, but every data-parallel rank keeps its own."""

    def synchronise(self, gradient: torch.Tensor) -> None:
        first = self.dp_rank * self.layout.cp
        reduce_among(range(first, first + self.layout.cp), gradient, self.layout.world_size)


class DividedAndNotReduced(NotReducedOverDp):
    """A reduction over one rank that still divides all gradients so far, in each micro-batch."""

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        self.probe = probe
        return super().accumulate(probe, samples, token_losses)

    def handed_on(self, packed: Packed) -> Packed:
        assert self.probe.grad is not None
        self.probe.grad /= self.layout.dp
        return super().handed_on(packed)


class NotReducedOverCp(Mutant, diagnosis="not_reduced_over_cp"):
    """Gradients are reduced over data-parallel ranks, but every slice keeps its own."""

    def synchronise(self, gradient: torch.Tensor) -> None:
        world = self.layout.world_size
        reduce_among(range(self.cp_rank, world, self.layout.cp), gradient, world)


def reduce_among(ranks: range, gradient: torch.Tensor, world_size: int) -> None:
    """Sum the gradients of some ranks."""
    of_ranks = [torch.empty_like(gradient) for _ in range(world_size)]
    dist.all_gather(of_ranks, gradient)
    gradient.copy_(torch.stack([of_ranks[rank] for rank in ranks]).sum(dim=0))


class PredictionsAcrossChunksLost(
    Mutant, diagnosis="tokens_lost", as_well=("first_of_slices_left_out",)
):
    """Labels are shifted after slicing: the label of a chunk's last token is in another chunk."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        here = packed.ids
        border = torch.ones_like(packed.mask)
        follows = here[..., 1:] == here[..., :-1] + 1
        border[..., :-1] = follows
        return super().token_losses(log_probs, packed) * border


class FirstTokenLost(Mutant, diagnosis="tokens_lost"):
    """Log-probabilities start at the response, without the prompt's last position."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return [replace(sample, mask=without_first(sample)) for sample in super().shard(samples)]


def without_first(sample: SampleTensors) -> torch.Tensor:
    """The mask without the response's first token."""
    mask = sample.mask.clone()
    mask[len(sample.ids) - sample.response_length] = False
    return mask


class FilledUpWithRepeats(Mutant, diagnosis="samples_repeated", corpus=OF_SEVERAL_SAMPLES):
    """Samples are repeated until their number is a multiple of the ranks, and trained on twice."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        divided = super().divided(samples)
        return [*divided, *divided[: 1 + -len(divided) % self.layout.dp]]
