"""Denominators of a single rank, micro-batch or slice."""

from __future__ import annotations

import math
from collections import Counter
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from adapters.contract import Layout, Option
from adapters.native.packing import Packed, SampleTensors, pack
from adapters.native.trainer import assign_denominators, denominators, tokens_of_groups
from reference.aggregation import Mode
from tests.mutants.mutant import EVERYDAY, PROMPT, SAMPLE, TOKEN, Counting, Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract.objective import Metric
    from adapters.native.trainer import TokenLosses


def of_all_ranks(mutant: Mutant, samples: list[SampleTensors]) -> Iterator[list[SampleTensors]]:
    """The micro-batches of every data-parallel rank."""
    for rank in range(mutant.layout.dp):
        other = copy(mutant)
        other.dp_rank = rank
        yield from other.cut(other.shard(samples))


def means_of(part: Sequence[SampleTensors], mutant: Mutant, count: int) -> list[SampleTensors]:
    """A part that is reduced as if it were the step, and then averaged over ``count`` parts."""
    own = denominators(part, mutant.aggregation)
    return assign_denominators(part, [value * count for value in own])


class MeanOfRankMeans(Mutant, diagnosis="denominators_per_rank"):
    """Each rank reduces its own samples, and DDP averages the ranks."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return means_of(super().shard(samples), self, self.layout.dp)


class MeanOfMicroBatchMeans(Mutant, diagnosis="denominators_per_micro_batch"):
    """A mean of micro-batch means: each micro-batch is reduced as if it were the step."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [means_of(part, self, self.layout.dp * len(parts)) for part in parts]


class SumOfMicroBatchMeans(
    Mutant,
    diagnosis="micro_batch_means_added_up",
    modes=(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT),
):
    """Each micro-batch is a mean over its own samples or tokens, and the means are summed."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [means_of(part, self, self.layout.dp) for part in super().cut(samples)]


class MeanOfMicroBatchesOfAllRanks(Counting, diagnosis="denominators_per_micro_batch", modes=TOKEN):
    """A micro-batch is divided by its tokens on all ranks, and micro-batches are averaged."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        number, tokens = dict[int, int](), Counter[int]()
        for rank in range(self.layout.dp):
            other = copy(self)
            other.dp_rank = rank
            for index, part in enumerate(other.cut(other.shard(samples))):
                number |= {int(one.ids[0]): index for one in part}
                tokens[index] += sum(one.tokens for one in part)
        return [float(max(tokens[number[int(one.ids[0])]], 1) * len(tokens)) for one in samples]


class EmptyMicroBatchesClamped(Counting, diagnosis="empty_micro_batches_counted", modes=TOKEN):
    """Each micro-batch's count is clamped to 1 and then added up (Megatron-LM's `train_rl.py`)."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = 0
        for rank in range(self.layout.dp):
            other = copy(self)
            other.dp_rank = rank
            parts = other.cut(other.shard(samples))
            tokens += sum(max(sum(one.tokens for one in part), 1) for part in parts)
        return [float(tokens)] * len(samples)


class TokensCountedPerSlice(
    Mutant, diagnosis="tokens_counted_per_cp_slice", modes=SAMPLE, averaged_over=1
):
    """Each slice counts its own tokens of a sample, and the slices' means are summed."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        units = self.job.steps[0].size * self.averaged_over
        return [
            assign_denominators(part, [max(count, 1) * units for count in self.held(part)])
            for part in super().cut(samples)
        ]

    def held(self, part: list[SampleTensors]) -> list[int]:
        """Active tokens of each sample in this rank's slice."""
        if self.layout.format == "bshd":
            held: list[int] = pack(part, self.layout, self.cp_rank).mask.sum(dim=1).tolist()
            return held
        return [int(pack([sample], self.layout, self.cp_rank).mask.sum()) for sample in part]


class MeanOfSliceMeans(TokensCountedPerSlice, diagnosis="denominators_per_cp_slice"):
    """Each context-parallel rank takes the mean of its own tokens, and the ranks are averaged."""

    @property
    def averaged_over(self) -> int:  # type: ignore[override]
        return self.layout.cp


class SharesRoundedDown(Mutant, diagnosis="cp_shares_rounded_down"):
    """The step is divided by the sum of micro-batch tokens `//` context-parallel ranks."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        held = [sum(len(one.ids) for one in part) for part in of_all_ranks(self, samples)]
        counted = sum(tokens // self.layout.cp * self.layout.cp for tokens in held)
        right = super().divided(samples)
        return assign_denominators(right, [one.denominator * counted / sum(held) for one in right])


class FirstOfSlicesLeftOut(
    Mutant,
    diagnosis="first_of_slices_left_out",
    # These cases may lose all of their tokens, so they are left out.
    corpus=tuple(case for case in EVERYDAY if case.name not in ("one_token", "worked_example")),
):
    """Rows are sliced before targets are shifted: no rank has the first token of its slices."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        is_packed, width = self.layout.format == "thd", dict[int, int]()
        for part in of_all_ranks(self, samples):
            longest = max(len(one.ids) for one in part)
            width |= {int(one.ids[0]): len(one.ids) if is_packed else longest for one in part}
        firsts = (self.begins(len(one.ids), width[int(one.ids[0])]) for one in samples)
        pairs = zip(samples, firsts, strict=True)
        return super().divided([replace(one, mask=one.mask & ~first) for one, first in pairs])

    def begins(self, length: int, width: int) -> torch.Tensor:
        """Whether each token is on another rank than the one before it."""
        chunks = 2 * self.layout.cp
        chunk = torch.arange(length) // -(-width // chunks)
        rank = torch.minimum(chunk, chunks - 1 - chunk)
        begins: torch.Tensor = rank != rank.roll(1)
        begins[0] = False
        return begins


class GroupsCountedPerRank(Mutant, diagnosis="tokens_counted_per_rank", modes=PROMPT):
    """Each rank counts a prompt's tokens in its own samples."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return counted_among(super().shard(samples), len(tokens_of_groups(samples)))


def counted_among(part: list[SampleTensors], prompts: int) -> list[SampleTensors]:
    """A part of the step, with the tokens of its prompts counted within it."""
    tokens = tokens_of_groups(part)
    return assign_denominators(
        part, [float(prompts * max(tokens[sample.group], 1)) for sample in part]
    )


class GroupsCountedPerMicroBatch(Mutant, diagnosis="tokens_counted_per_micro_batch", modes=PROMPT):
    """Each micro-batch counts a prompt's tokens in its own samples."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        self.prompts_of_step = len(tokens_of_groups(samples))
        return super().divided(samples)

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [counted_among(part, self.prompts_of_step) for part in super().cut(samples)]


class TokensCountedPerRank(Mutant, diagnosis="tokens_counted_per_rank", modes=TOKEN):
    """A rank's sum is divided by its own tokens, and the ranks' means are summed."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return means_of(super().shard(samples), self, 1)


class TokensCountedPerMicroBatch(Mutant, diagnosis="tokens_counted_per_micro_batch", modes=TOKEN):
    """A micro-batch's sum is divided by its own tokens, and gradients accumulate."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [means_of(part, self, 1) for part in super().cut(samples)]


class MeanOfProcessMeans(
    Mutant, diagnosis="denominators_per_cp_slice_of_a_micro_batch", modes=TOKEN
):
    """Every process divides by its own active tokens, its slice of its micro-batch."""

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        own = packed.mask.sum().clamp(min=1)
        parts = self.layout.world_size * self.micro_batches
        return torch.where(packed.mask, token_losses, 0).sum() / (own * parts)


class PartialWindowDividedAsWhole(
    Mutant,
    diagnosis="partial_window_divided_as_whole",
    further_layouts=(Layout.parse("dp2-cp1-mb2-thd+partial_window"),),
):
    """The loss of every micro-batch is divided by the option's number of them."""

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().reduce(token_losses, packed)
        if Option.PARTIAL_WINDOW not in self.layout.options:
            return right
        return right * self.micro_batches / (self.micro_batches + 1)


class MicroBatchesCarriedOver(
    Mutant,
    diagnosis="micro_batches_carried_over",
    modes=(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN),
    further_layouts=(Layout.parse("dp2-cp1-mb2-thd+short_batch"),),
    corpus=tuple(case for case in EVERYDAY if case.steps[0].size % 4 == 0),
):
    """A leftover micro-batch of a batch that filled no step leaks into the next step."""

    lacks_the_last = False

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        if Option.SHORT_BATCH not in self.layout.options or len(self.job.steps) > 1:
            return super().accumulate(probe, samples, token_losses)
        short = samples[: len(samples) // self.micro_batches]
        left, _ = super().accumulate(probe, short, token_losses)
        self.passes.drain()
        self.lacks_the_last = True
        gradient, logs = super().accumulate(probe, samples, token_losses)
        return left + gradient, logs

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        if self.lacks_the_last:
            parts[-1] = assign_denominators(parts[-1], [math.inf] * len(parts[-1]))
        return parts
