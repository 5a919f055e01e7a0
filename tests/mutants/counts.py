"""Something other than active tokens, samples or prompts is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from adapters.native.packing import Packed, SampleTensors
from adapters.native.trainer import denominators, tokens_of_groups, with_denominators
from conformance.corpus.cases import CORPUS, Case
from conformance.plan.checks import check_spec
from reference.aggregation import Aggregation, Conventions, DenominatorMask, Mode
from reference.step import Sample, Step
from tests.mutants.mutant import MEANS, Counting, Mutant

if TYPE_CHECKING:
    from collections.abc import Sequence


class OtherTokens(Counting):
    """Samples count ``tokens`` instead of their active tokens."""

    modes = MEANS

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        return with_counts(samples, self.aggregation.mode, [*map(self.tokens, samples)])

    def tokens(self, sample: SampleTensors) -> float:
        """The tokens that a sample counts."""
        raise NotImplementedError


def with_counts(
    samples: Sequence[SampleTensors], mode: Mode, counts: Sequence[float]
) -> list[float]:
    """Denominators if samples had these numbers of tokens."""
    if mode is Mode.SAMPLE_MEAN:
        return [float(len(samples) * max(count, 1)) for count in counts]
    if mode is Mode.TOKEN_MEAN:
        return [float(max(sum(counts), 1))] * len(samples)
    of_group: Counter[int] = Counter()
    for sample, count in zip(samples, counts, strict=True):
        of_group[sample.group] += count  # type: ignore[assignment]
    return [float(len(of_group) * max(of_group[sample.group], 1)) for sample in samples]


class EmptySamplesClamped(OtherTokens):
    """Each sample's count is clamped to 1, so an empty one adds a token to the sum."""

    diagnosis = "empty_samples_counted"
    modes = (Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)

    def tokens(self, sample: SampleTensors) -> float:
        return max(sample.tokens, 1)


class MaskedTokensCounted(OtherTokens):
    """The response's length is used instead of its number of active tokens."""

    diagnosis = "masked_tokens_counted"

    def tokens(self, sample: SampleTensors) -> float:
        return int((sample.advantages != 0).sum())


class PromptTokensCounted(OtherTokens):
    """The sequence's length is used instead of the response's."""

    diagnosis = "prompt_tokens_counted"

    def tokens(self, sample: SampleTensors) -> float:
        return len(sample.ids)


class EndOfSequenceCounted(OtherTokens):
    """One token more per sample, for an end of sequence that the mask already includes."""

    diagnosis = "tokens_per_sample_miscounted"

    def tokens(self, sample: SampleTensors) -> float:
        return sample.tokens + (sample.tokens > 0)


class LastTokenNotCounted(OtherTokens):
    """One token less per sample, counted after the mask was shifted to the labels."""

    diagnosis = "tokens_per_sample_miscounted"

    def tokens(self, sample: SampleTensors) -> float:
        return max(sample.tokens - 1, 0)


class OriginalMaskCounted(Counting):
    """Rejected tokens are excluded from the sum but still counted in the denominator."""

    diagnosis = "original_mask_counted"
    modes = MEANS
    spec = check_spec("rejection")

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        counts = [int(sample.original_mask.sum()) for sample in samples]
        return with_counts(samples, self.aggregation.mode, counts)


class RejectionLeftOut(Mutant):
    """The mask that rejection returns is logged, but the old one enters the loss."""

    diagnosis = "rejection_left_out"
    spec = check_spec("rejection")

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return super().divided([replace(one, mask=one.original_mask) for one in samples])


class ModifiedMaskCounted(Mutant):
    """Denominators are documented to use the original mask, but are recounted after rejection."""

    diagnosis = "modified_mask_counted"
    modes = MEANS
    spec = check_spec("rejection")
    conventions = Conventions(denominator_mask=DenominatorMask.ORIGINAL)


class ResponsePaddingCounted(Counting):
    """The mean is over rows that are padded to the longest response of the step."""

    diagnosis = "padding_counted"
    modes = MEANS

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        widest = max(int((sample.advantages != 0).sum()) for sample in samples)
        return with_counts(samples, self.aggregation.mode, [widest] * len(samples))


class PaddedRowsAveraged(Mutant):
    """`mean()` over the padded rows of a micro-batch: padding counts, differently in each."""

    diagnosis = "padding_counted"
    modes = (Mode.SAMPLE_MEAN,)

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        self.size = len(samples)
        return super().divided(samples)

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [
            with_denominators(
                part, [self.size * max(len(sample.ids) for sample in part)] * len(part)
            )
            for part in super().cut(samples)
        ]


class WidthAsDivisor(PaddedRowsAveraged):
    """The divisor is the width of a micro-batch's padded rows instead of the given one."""

    diagnosis = "padded_width_as_divisor"
    modes = (Mode.CONSTANT,)


class EmptySamplesLeftOut(Counting):
    """The mean over samples is over those that have an active token."""

    diagnosis = "sample_units_excluded"
    modes = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        kept = [sample for sample in samples if sample.tokens]
        if self.aggregation.mode is Mode.PROMPT_MEAN:
            full = {g for g, tokens in tokens_of_groups(samples).items() if tokens}
            kept = [sample for sample in samples if sample.group in full]
        by_sample = dict(zip(map(id, kept), denominators(kept, self.aggregation), strict=True))
        return [by_sample.get(id(sample), 1.0) for sample in samples]


class FillingRowsCounted(Counting):
    """The mean includes the rows that pad the batch to a multiple of the ranks (verl)."""

    diagnosis = "filling_rows_counted"
    modes = (Mode.SAMPLE_MEAN, Mode.CONSTANT)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        rows = len(samples) + -len(samples) % self.layout.dp
        right = denominators(samples, self.aggregation)
        return [value / len(samples) * rows for value in right]


class SamplesCountedAsPrompts(Counting):
    """The sum over prompts is divided by the number of samples (slime pull request 2090)."""

    diagnosis = "samples_counted_as_"
    modes = (Mode.PROMPT_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = tokens_of_groups(samples)
        return [float(len(samples) * max(tokens[sample.group], 1)) for sample in samples]


class RunsCountedAsPrompts(Counting):
    """A prompt ends where the next sample has another one, as if its samples were adjacent."""

    diagnosis = "runs_counted_as_prompts"
    modes = (Mode.PROMPT_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        groups = [sample.group for sample in samples]
        run = np.cumsum(np.diff(groups, prepend=groups[0]) != 0).tolist()
        runs = [replace(sample, group=number) for sample, number in zip(samples, run, strict=True)]
        return denominators(runs, self.aggregation)


class PromptsByGroupSize(Counting):
    """P is the batch size over n_samples_per_prompt, even after filtering has dropped rollouts."""

    diagnosis = "prompts_by_group_size"
    modes = (Mode.PROMPT_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        size = max(Counter(sample.group for sample in samples).values())
        right = denominators(samples, self.aggregation)
        prompts = len(tokens_of_groups(samples))
        return [value / prompts * len(samples) / size for value in right]


class PromptsCountedAsSamples(Counting):
    """The sum over samples is divided by the number of prompts."""

    diagnosis = "prompts_counted_as_"
    modes = (Mode.SAMPLE_MEAN, Mode.CONSTANT)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        prompts = len(tokens_of_groups(samples))
        right = denominators(samples, self.aggregation)
        return [value / len(samples) * prompts for value in right]


class TokensCountedAsUnits(Counting):
    """The train step divides by its tokens although the loss is a mean over samples or prompts."""

    diagnosis = "tokens_counted_as_"
    modes = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        prompts = len(tokens_of_groups(samples))
        units = prompts if self.aggregation.mode is Mode.PROMPT_MEAN else len(samples)
        tokens = max(sum(sample.tokens for sample in samples), 1)
        return [value / units * tokens for value in denominators(samples, self.aggregation)]


class NothingDivided(Counting):
    """Losses are summed; the normaliser is returned with them but never used."""

    diagnosis = "not_divided"

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        return [1.0] * len(samples)


class SamplesNotAveraged(Counting):
    """Sums of samples are divided by L, but not by the number of samples."""

    diagnosis = "samples_not_averaged"
    modes = (Mode.CONSTANT,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        assert self.aggregation.divisor is not None
        return [self.aggregation.divisor] * len(samples)


class AsAnotherMode(Counting):
    """The requested aggregation does not reach the code that reduces losses."""

    given: Mode

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        return denominators(samples, Aggregation(self.given))


class AlwaysPerSample(AsAnotherMode):
    """The reducer's default, per sample, is always used."""

    diagnosis = "weights_of_sample_mean"
    modes = (Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT)
    given = Mode.SAMPLE_MEAN


class AlwaysPerToken(AsAnotherMode):
    """The legacy per-token flag overrides the chosen mode."""

    diagnosis = "weights_of_token_mean"
    modes = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT)
    given = Mode.TOKEN_MEAN


class AlwaysPerPrompt(AsAnotherMode):
    """Groups' totals are passed to the default reducer as its denominators."""

    diagnosis = "weights_of_prompt_mean"
    modes = (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT)
    given = Mode.PROMPT_MEAN


class Remembering(Counting):
    """Denominators come from another step."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        mode, own = self.aggregation.mode, denominators(samples, self.aggregation)
        of_others = self.remembered(samples)
        if mode is Mode.TOKEN_MEAN:
            return [float(max(sum(sample.tokens for sample in of_others), 1))] * len(samples)
        count = len(tokens_of_groups(of_others)) if mode is Mode.PROMPT_MEAN else len(of_others)
        right = len(tokens_of_groups(samples)) if mode is Mode.PROMPT_MEAN else len(samples)
        return [value / right * count for value in own]

    def remembered(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """The samples whose tokens are counted."""
        raise NotImplementedError


class StepBeforeCounted(Remembering):
    """The number of tokens is kept from step to step and updated too late."""

    diagnosis = "counted_of_the_step_before"
    modes = (Mode.TOKEN_MEAN,)
    latest: list[SampleTensors] | None = None

    def remembered(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        before, self.latest = self.latest or samples, samples
        return before


class BatchCounted(Counting):
    """Normalisers are computed when rollouts arrive, over all steps of the batch."""

    diagnosis = "counted_over_batch"

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        steps, mode = self.job.steps, self.aggregation.mode
        own = denominators(samples, self.aggregation)
        if mode is Mode.TOKEN_MEAN:
            return [float(max(sum(step.active_tokens.sum() for step in steps), 1))] * len(samples)
        if mode is Mode.PROMPT_MEAN:
            right = len(tokens_of_groups(samples))
            count = sum(len(set(step.groups.tolist())) for step in steps)
        else:
            right, count = len(samples), sum(step.size for step in steps)
        return [value / right * count for value in own]


class MeanOfTheBatchCounted(Counting):
    """Tokens are counted when rollouts arrive, and divided equally among the steps."""

    diagnosis = "mean_of_the_batch_counted"
    modes = (Mode.TOKEN_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = sum(int(step.active_tokens.sum()) for step in self.job.steps)
        return [max(tokens, 1) / len(self.job.steps)] * len(samples)


class Rounded(Counting):
    """Tokens are counted in ``dtype``."""

    modes = MEANS
    corpus = CORPUS
    dtype: torch.dtype

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        if self.aggregation.mode is Mode.SAMPLE_MEAN:
            totals, units = [sample.tokens for sample in samples], len(samples)
        elif self.aggregation.mode is Mode.TOKEN_MEAN:
            totals, units = [sum(sample.tokens for sample in samples)] * len(samples), 1
        else:
            of_group = tokens_of_groups(samples)
            totals, units = [of_group[sample.group] for sample in samples], len(of_group)
        rounded = torch.tensor([max(total, 1) for total in totals]).to(self.dtype)
        return (units * rounded.double()).tolist()


class CountedInBfloat16(Rounded):
    """The mask has the model's dtype, and so has its sum: no odd number above 256."""

    diagnosis = "counted_in_bfloat16"
    dtype = torch.bfloat16


class CountedInFloat16(Rounded):
    """The mask's sum is in float16: no odd number above 2,048."""

    diagnosis = "counted_in_float16"
    dtype = torch.float16


class CountedInFloat32(Counting):
    """Tokens are summed sample by sample in float32, where 2^24 + 1 is 2^24."""

    diagnosis = "counted_in_float32"
    modes = (Mode.TOKEN_MEAN,)
    case = Case(
        name="2^24 tokens",
        catches="a counter that stops: not in the corpus, whose steps are all smaller",
        steps=(
            Step.of(
                [
                    Sample(prompt_length=1, loss_mask=np.ones(length, np.bool_), group=0)
                    for length in [2] * 200 + [2**24] + [1] * 64
                ]
            ),
        ),
    )

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        counter = torch.zeros((), dtype=torch.float32)
        for sample in samples:
            counter += sample.tokens
        return [float(counter)] * len(samples)


class IntegerDivision(Counting):
    """Tokens per sample, `//`, times samples: the remainder is not counted."""

    diagnosis = "integer_division"
    modes = (Mode.TOKEN_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = sum(sample.tokens for sample in samples)
        return [float(max(len(samples) * (tokens // len(samples)), 1))] * len(samples)


class IntegerDivisionByDp(Counting):
    """Tokens per rank, `//`, times ranks."""

    diagnosis = "integer_division"
    modes = (Mode.TOKEN_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = sum(sample.tokens for sample in samples)
        return [float(max(self.layout.dp * (tokens // self.layout.dp), 1))] * len(samples)


class SharesOfRanksClamped(Counting):
    """A rank's share of the tokens is clamped to 1, instead of their total (Liger-Kernel 0.8.5)."""

    diagnosis = "shares_of_ranks_clamped"
    modes = (Mode.TOKEN_MEAN,)

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        dp = self.layout.dp
        tokens = sum(sample.tokens for sample in samples)
        return [dp * max(tokens / dp, 1.0)] * len(samples)


class EmptyStepDividedByZero(Counting):
    """No clamp at all: without active tokens, 0 is divided by 0."""

    diagnosis = "not_finite"
    modes = MEANS

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        wrong = with_counts(samples, self.aggregation.mode, [sample.tokens for sample in samples])
        empty = not any(sample.tokens for sample in samples)
        return [0.0] * len(samples) if empty else wrong

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (values * packed.mask / packed.denominators).sum()


class MaskIgnored(Mutant):
    """The mask is in the denominator but not in the sum."""

    diagnosis = "inactive_tokens_weigh"

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(values, replace(packed, mask=torch.ones_like(packed.mask)))
