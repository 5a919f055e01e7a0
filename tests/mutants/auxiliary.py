"""The policy loss is right; auxiliary losses, or losses trained instead of it, are wrong."""

from dataclasses import replace
from typing import ClassVar

import torch

from adapters.contract.objective import Objective
from adapters.native.packing import Packed, SampleTensors
from adapters.native.trainer import assign_denominators, denominators
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    Conventions,
    Mode,
)
from tests.mutants.mutant import EVERYDAY, PROMPT, TOKEN, Mutant, trained_only


class PlainPathUnscaled(Mutant, diagnosis="divided_by_dp"):
    """If the policy loss is the only term, a shorter path forgets the average over ranks."""

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
        """The trained share, from the right one and the tokens' contribution."""
        raise NotImplementedError


class EntropyOfMicroBatches(
    Mutant, diagnosis="denominators_per_", check="auxiliary.entropy", modes=TOKEN
):
    """The entropy is averaged over each micro-batch's tokens, and then over micro-batches."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [self.averaged(part, len(parts)) for part in parts]

    def averaged(self, part: list[SampleTensors], weight: float) -> list[SampleTensors]:
        """The samples, divided by the tokens of their micro-batch and multiplied by its weight."""
        tokens = max(sum(sample.tokens for sample in part), 1)
        divisor = tokens * weight * self.layout.dp
        return [replace(sample, auxiliary_denominator=divisor) for sample in part]


class EntropyAveragedOverDp(WrongEntropy, diagnosis="divided_by_dp"):
    """The policy loss undoes the average over data-parallel ranks, the entropy does not."""

    def wrong(self, right: torch.Tensor, of_tokens: torch.Tensor, packed: Packed) -> torch.Tensor:
        return right / self.layout.dp


class EntropyOfPadding(WrongEntropy, diagnosis="inactive_tokens_weigh"):
    """The entropy is summed over whole rows, including prompts, padding and tool output."""

    def wrong(self, right: torch.Tensor, of_tokens: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (of_tokens / packed.auxiliary_denominators).sum()


class DivergenceByMode(
    Mutant, diagnosis="weights_of_prompt_mean", check="auxiliary.kl", modes=PROMPT
):
    """The divergence uses the policy loss's reducer instead of the default one."""

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        wrong = self.reduce(log_probs - packed.reference_log_probs, packed)
        return trained_only(super().divergence(log_probs, packed), wrong)


class DivergenceOnEveryMicroBatch(
    Mutant, diagnosis="divided_by_micro_batches", check="auxiliary.combined"
):
    """The divergence is divided by the micro-batches if the entropy is trained too."""

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().divergence(log_probs, packed)
        if self.objective is not Objective.COMBINED:
            return right
        return trained_only(right, right / self.micro_batches)


class EntropyLeftOutTogether(Mutant, diagnosis="term_without_gradient", check="auxiliary.combined"):
    """If a divergence is trained, the entropy bonus is left out of the gradient."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().entropy(probe, packed)
        return right.detach() if self.objective is Objective.COMBINED else right


class CispoPerSample(
    Mutant,
    diagnosis="weights_of_sample_mean",
    check="off_policy.cispo",
    modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN),
):
    """A separate policy loss brings its own reducer, a mean over samples."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.objective is not Objective.CISPO:
            return super().divided(samples)
        return assign_denominators(samples, denominators(samples, Aggregation(Mode.SAMPLE_MEAN)))


class OtherDefault(Mutant):
    """A loss that is trained instead of the policy loss is not normalised as documented."""

    by: ClassVar[Mode]

    def assign_auxiliary_denominators(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        right = super().assign_auxiliary_denominators(samples)
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
    """SFT keeps the mean over samples on the per-token path (review of miles 1498)."""


class ValuesPerToken(
    OtherDefault,
    diagnosis="weights_of_token_mean",
    check="other_losses.value",
    modes=(Mode.SAMPLE_MEAN, Mode.CONSTANT),
    by=Mode.TOKEN_MEAN,
):
    """A critic is trained per token although the per-token path is off."""


class ValueLossPerToken(
    OtherDefault,
    diagnosis="weights_of_token_mean",
    check="auxiliary.with_value",
    modes=(Mode.SAMPLE_MEAN, Mode.CONSTANT),
    by=Mode.TOKEN_MEAN,
):
    """A value head that shares the policy's model is trained per token in every mode."""


class RowsOfPaddingCounted(
    Mutant,
    diagnosis="dummy_rows_averaged",
    check="auxiliary.kl",
    conventions=Conventions(kl=AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN),
):
    """Masked rows pad a rank's micro-batches to its largest; a mean over rows counts them."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        weight = self.layout.dp * len(parts)
        counted = self.counted_rows([len(part) for part in parts])
        return [
            [replace(one, auxiliary_denominator=weight * rows * max(one.tokens, 1)) for one in part]
            for part, rows in zip(parts, counted, strict=True)
        ]

    def counted_rows(self, rows: list[int]) -> list[int]:
        """The divisor of each micro-batch's mean, given its rows."""
        return [max(rows)] * len(rows)


class RepeatedSamplesCounted(
    RowsOfPaddingCounted,
    diagnosis="repeated_rows_averaged",
    corpus=tuple(case for case in EVERYDAY if case.name in ("nine_samples", "ten_samples")),
):
    """Masked copies of a sample fill up the ranks; a mean over samples counts them."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        copy = replace(samples[0], mask=torch.zeros_like(samples[0].mask))
        return super().shard([*samples, *[copy] * (-len(samples) % self.layout.dp)])

    def counted_rows(self, rows: list[int]) -> list[int]:
        """Each micro-batch's own rows, copies included."""
        return rows


class EntropyWeightedBySamples(
    EntropyOfMicroBatches, diagnosis="denominators_per_micro_batch_by_samples"
):
    """The means of micro-batches are averaged, weighted by their numbers of samples."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [self.averaged(part, len(samples) / len(part)) for part in Mutant.cut(self, samples)]
