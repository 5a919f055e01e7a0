"""The policy loss is right, and auxiliary losses or what is trained in its place are not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from adapters.contract.objective import Objective
from adapters.native.packing import SampleTensors
from adapters.native.trainer import denominators, with_denominators
from reference.aggregation import Aggregation, AuxiliaryAggregation, Conventions, Mode
from tests.mutants.mutant import EVERYDAY, PROMPT, TOKEN, Mutant

if TYPE_CHECKING:
    from adapters.native.packing import Packed


def trained_only(right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """The value of one and the gradient of the other: what is logged stays right."""
    return right.detach() + wrong - wrong.detach()


class PlainPathUnscaled(Mutant, diagnosis="divided_by_dp"):
    """Where the policy loss is the only term, a shorter path forgets the average over ranks."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().reduce(values, packed)
        if self.objective is not Objective.POLICY:
            return right
        return trained_only(right, right / self.layout.dp)


class WrongEntropy(Mutant, check="auxiliary.entropy"):
    """Only the gradient of the entropy is wrong."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().entropy(probe, packed)
        return trained_only(right, self.wrong(right, probe[packed.ids], packed))

    def wrong(self, right: torch.Tensor, of_tokens: torch.Tensor, packed: Packed) -> torch.Tensor:
        """What is trained, from the right share and what the tokens add to it."""
        raise NotImplementedError


class EntropyOfMicroBatches(
    Mutant, diagnosis="denominators_per_", check="auxiliary.entropy", modes=TOKEN
):
    """The entropy is the mean of a micro-batch's tokens, and these means are averaged."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [self.averaged(part, len(parts)) for part in parts]

    def averaged(self, part: list[SampleTensors], weight: float) -> list[SampleTensors]:
        """Samples that are divided by the tokens of their micro-batch, times its weight."""
        tokens = max(sum(sample.tokens for sample in part), 1)
        divisor = tokens * weight * self.layout.dp
        return [replace(sample, auxiliary_denominator=divisor) for sample in part]


class EntropyAveragedOverDp(WrongEntropy, diagnosis="divided_by_dp"):
    """The policy loss makes up for the average over data-parallel ranks, the entropy does not."""

    def wrong(self, right: torch.Tensor, of_tokens: torch.Tensor, packed: Packed) -> torch.Tensor:
        return right / self.layout.dp


class EntropyOfPadding(WrongEntropy, diagnosis="inactive_tokens_weigh"):
    """The entropy is added up over whole rows, prompts and padding and tool output included."""

    def wrong(self, right: torch.Tensor, of_tokens: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (of_tokens / packed.auxiliary_denominators).sum()


class DivergenceByMode(
    Mutant, diagnosis="weights_of_prompt_mean", check="auxiliary.kl", modes=PROMPT
):
    """The divergence takes the policy loss's reducer instead of the default one."""

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        wrong = self.reduce(log_probs - packed.reference_log_probs, packed)
        return trained_only(super().divergence(log_probs, packed), wrong)


class DivergenceOnEveryMicroBatch(
    Mutant, diagnosis="divided_by_micro_batches", check="auxiliary.combined"
):
    """The divergence is divided by the micro-batches, where the entropy is trained with it."""

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().divergence(log_probs, packed)
        if self.objective is not Objective.COMBINED:
            return right
        return trained_only(right, right / self.micro_batches)


class EntropyLeftOutTogether(Mutant, diagnosis="term_without_gradient", check="auxiliary.combined"):
    """With a divergence to be trained, the entropy bonus is left out of the gradient."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().entropy(probe, packed)
        return right.detach() if self.objective is Objective.COMBINED else right


class CispoPerSample(
    Mutant,
    diagnosis="weights_of_sample_mean",
    check="off_policy.cispo",
    modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN),
):
    """A policy loss of its own brings its own reducer, a mean over samples."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.objective is not Objective.CISPO:
            return super().divided(samples)
        return with_denominators(samples, denominators(samples, Aggregation(Mode.SAMPLE_MEAN)))


class OtherDefault(Mutant):
    """What stands in the place of the policy loss is divided otherwise than documented."""

    by: ClassVar[Mode]

    def with_auxiliary_denominators(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        right = super().with_auxiliary_denominators(samples)
        if self.objective is not self.spec.objective:
            return right
        wrong = denominators(samples, Aggregation(self.by))
        return [
            replace(sample, auxiliary_denominator=denominator)
            for sample, denominator in zip(right, wrong, strict=True)
        ]


class LikelihoodPerSample(
    OtherDefault,
    diagnosis="weights_of_sample_mean",
    check="other_losses.sft",
    modes=TOKEN,
    by=Mode.SAMPLE_MEAN,
):
    """SFT keeps the mean over samples where the per-token path is on (review of miles 1498)."""


class ValuesPerToken(
    OtherDefault,
    diagnosis="weights_of_token_mean",
    check="other_losses.value",
    modes=(Mode.SAMPLE_MEAN, Mode.CONSTANT),
    by=Mode.TOKEN_MEAN,
):
    """A critic is trained per token where the per-token path is off."""


class RowsOfPaddingCounted(
    Mutant,
    diagnosis="dummy_rows_averaged",
    check="auxiliary.kl",
    conventions=Conventions(kl=AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN),
):
    """Masked rows fill up a rank's micro-batches to its largest; a mean over rows counts them."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        weight = self.layout.dp * len(parts)
        counted = self.counted_rows([len(part) for part in parts])
        return [
            [replace(one, auxiliary_denominator=weight * rows * max(one.tokens, 1)) for one in part]
            for part, rows in zip(parts, counted, strict=True)
        ]

    def counted_rows(self, rows: list[int]) -> list[int]:
        """What the mean of each micro-batch divides by, given its rows."""
        return [max(rows)] * len(rows)


class RepeatedSamplesCounted(
    RowsOfPaddingCounted,
    diagnosis="repeated_rows_averaged",
    corpus=tuple(case for case in EVERYDAY if case.name in ("nine_samples", "ten_samples")),
):
    """Copies of a sample fill up the ranks; masked as they are, a mean over samples counts them."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        copy = replace(samples[0], mask=torch.zeros_like(samples[0].mask))
        return super().shard([*samples, *[copy] * (-len(samples) % self.layout.dp)])

    def counted_rows(self, rows: list[int]) -> list[int]:
        """Each micro-batch's own, copies included."""
        return rows


class EntropyWeightedBySamples(
    EntropyOfMicroBatches, diagnosis="denominators_per_micro_batch_by_samples"
):
    """The means of micro-batches are averaged by how many samples each has."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [self.averaged(part, len(samples) / len(part)) for part in Mutant.cut(self, samples)]
