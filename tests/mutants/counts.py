"""Something other than active tokens, samples or prompts is counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adapters.contract import Layout
from adapters.native.packing import Packed, SampleTensors
from adapters.native.trainer import assign_denominators, denominators, tokens_of_groups
from conformance.corpus.cases import CORPUS, Case
from reference.aggregation import (
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
)
from reference.step import Sample, Step
from tests.mutants.mutant import CONSTANT, MEANS, PROMPT, SAMPLE, TOKEN, Counting, Mutant


class OtherTokens(Counting, modes=MEANS):
    """Samples count ``tokens`` instead of their active tokens."""

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


class EmptySamplesClamped(
    OtherTokens, diagnosis="empty_samples_counted", modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)
):
    """Each sample's count is clamped to 1, so an empty one adds a token to the sum."""

    def tokens(self, sample: SampleTensors) -> float:
        return max(sample.tokens, 1)


class MaskedTokensCounted(OtherTokens, diagnosis="masked_tokens_counted"):
    """The response's length is used instead of its number of active tokens."""

    def tokens(self, sample: SampleTensors) -> float:
        return sample.response_length


class PromptTokensCounted(
    OtherTokens, diagnosis="prompt_tokens_counted", tokens=lambda self, sample: len(sample.ids)
):
    """The sequence's length is used instead of the response's."""


class EndOfSequenceCounted(OtherTokens, diagnosis="tokens_per_sample_miscounted"):
    """One token more per sample, for an end of sequence that the mask already includes."""

    def tokens(self, sample: SampleTensors) -> float:
        return sample.tokens + (sample.tokens > 0)


TRUNCATED = Layout.parse("dp2-cp1-mb2-bshd+masked_truncation")


class TruncatedSamplesCounted(
    OtherTokens,
    diagnosis="truncated_samples_counted",
    modes=(*PROMPT, *TOKEN),
    further_layouts=(TRUNCATED,),
):
    """Tokens are counted before samples that were cut off are filtered (ms-swift 4.6.0)."""

    def tokens(self, sample: SampleTensors) -> float:
        is_filtered = self.layout == TRUNCATED and not sample.original_mask.any()
        return sample.response_length if is_filtered else sample.tokens


class TruncatedSamplesAveraged(
    Counting,
    diagnosis="truncated_samples_counted",
    modes=CONSTANT,
    further_layouts=(TRUNCATED,),
    conventions=Conventions(empty_units=EmptyUnits.EXCLUDED),
):
    """The mean is over samples with active tokens, and over those that the filter has emptied."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        assert self.aggregation.divisor is not None
        held = sum(sample.tokens > 0 or self.layout == TRUNCATED for sample in samples)
        return [self.aggregation.divisor * max(held, 1)] * len(samples)


class OriginalMaskCounted(
    Counting, diagnosis="original_mask_counted", check="rejection", modes=MEANS
):
    """Rejected tokens are excluded from the sum but still counted in the denominator."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        counts = [int(sample.original_mask.sum()) for sample in samples]
        return with_counts(samples, self.aggregation.mode, counts)


class RejectionLeftOut(Mutant, diagnosis="rejection_left_out", check="rejection"):
    """The mask that rejection returns is logged, but the old one enters the loss."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return super().divided([replace(one, mask=one.original_mask) for one in samples])


class ModifiedMaskCounted(
    Mutant,
    diagnosis="modified_mask_counted",
    check="rejection",
    modes=MEANS,
    conventions=Conventions(denominator_mask=DenominatorMask.ORIGINAL),
):
    """Denominators are documented to use the original mask, but are recounted after rejection."""


class ResponsePaddingCounted(Counting, diagnosis="padding_counted", modes=MEANS):
    """The mean is over rows that are padded to the longest response of the step."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        widest = max(sample.response_length for sample in samples)
        return with_counts(samples, self.aggregation.mode, [widest] * len(samples))


class PaddedRowsAveraged(Mutant, diagnosis="padding_counted", modes=SAMPLE):
    """`mean()` over the padded rows of a micro-batch: padding counts, differently in each."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        self.size = len(samples)
        return super().divided(samples)

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [
            assign_denominators(
                part, [self.size * max(len(sample.ids) for sample in part)] * len(part)
            )
            for part in super().cut(samples)
        ]


class WidthAsDivisor(PaddedRowsAveraged, diagnosis="padded_width_as_divisor", modes=CONSTANT):
    """The divisor is the width of a micro-batch's padded rows instead of the given one."""


class PackedWidthAsDivisor(
    Counting,
    diagnosis="padded_width_as_divisor",
    modes=CONSTANT,
    further_layouts=(Layout(micro_batches=2, format="thd"),),
):
    """Packed samples are padded to multiples of 16 tokens, and divided by their own length."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        if self.layout.format != "thd":
            return denominators(samples, self.aggregation)
        widths = [-(-len(sample.ids) // 16) * 16 - 1 for sample in samples]
        return [float(width * len(samples)) for width in widths]


class MeanOfPaddedRows(Mutant, diagnosis="padded_width_as_divisor", modes=TOKEN):
    """`mean()` over the padded rows of a micro-batch, and the mean of micro-batches."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        means = len(parts) * self.job.layout.dp
        sizes = [means * self.entries([len(sample.ids) for sample in part]) for part in parts]
        return [
            assign_denominators(part, [size] * len(part))
            for part, size in zip(parts, sizes, strict=True)
        ]

    def entries(self, lengths: list[int]) -> int:
        """The number of entries of a micro-batch."""
        return len(lengths) * max(lengths)


class MeanOfPackedRow(MeanOfPaddedRows, diagnosis="packed_length_as_divisor", modes=TOKEN):
    """`mean()` over the packed row of a micro-batch, and the mean of micro-batches."""

    def entries(self, lengths: list[int]) -> int:
        """The number of tokens of the row, those of prompts too."""
        return sum(lengths)


class EmptySamplesLeftOut(
    Counting,
    diagnosis="sample_units_excluded",
    modes=(Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT),
):
    """The mean over samples is over those that have an active token."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        kept = [sample for sample in samples if sample.tokens]
        if self.aggregation.mode is Mode.PROMPT_MEAN:
            full = {g for g, tokens in tokens_of_groups(samples).items() if tokens}
            kept = [sample for sample in samples if sample.group in full]
        by_sample = dict(zip(map(id, kept), denominators(kept, self.aggregation), strict=True))
        return [by_sample.get(id(sample), 1.0) for sample in samples]


class FillingRowsCounted(
    Counting, diagnosis="filling_rows_counted", modes=(Mode.SAMPLE_MEAN, Mode.CONSTANT)
):
    """The mean includes the rows that pad the batch to a multiple of the ranks (verl)."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        rows = len(samples) + -len(samples) % self.layout.dp
        right = denominators(samples, self.aggregation)
        return [value / len(samples) * rows for value in right]


class SamplesCountedAsPrompts(Counting, diagnosis="samples_counted_as_", modes=PROMPT):
    """The sum over prompts is divided by the number of samples (slime pull request 2090)."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = tokens_of_groups(samples)
        return [float(len(samples) * max(tokens[sample.group], 1)) for sample in samples]


class RunsCountedAsPrompts(Counting, diagnosis="runs_counted_as_prompts", modes=PROMPT):
    """A prompt ends where the next sample has another one, as if its samples were adjacent."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        groups = [sample.group for sample in samples]
        run = np.cumsum(np.diff(groups, prepend=groups[0]) != 0).tolist()
        runs = [replace(sample, group=number) for sample, number in zip(samples, run, strict=True)]
        return denominators(runs, self.aggregation)


class PromptsCountedAsSamples(
    Counting, diagnosis="prompts_counted_as_", modes=(Mode.SAMPLE_MEAN, Mode.CONSTANT)
):
    """The sum over samples is divided by the number of prompts."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        prompts = len(tokens_of_groups(samples))
        right = denominators(samples, self.aggregation)
        return [value / len(samples) * prompts for value in right]


class TokensCountedAsUnits(
    Counting,
    diagnosis="tokens_counted_as_",
    modes=(Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT),
):
    """The train step divides by its tokens although the loss is a mean over samples or prompts."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        prompts = len(tokens_of_groups(samples))
        units = prompts if self.aggregation.mode is Mode.PROMPT_MEAN else len(samples)
        tokens = max(sum(sample.tokens for sample in samples), 1)
        return [value / units * tokens for value in denominators(samples, self.aggregation)]


class NothingDivided(
    Counting, diagnosis="not_divided", counted=lambda self, samples: [1.0] * len(samples)
):
    """Losses are summed; the normaliser is returned with them but never used."""


class SamplesNotAveraged(Counting, diagnosis="samples_not_averaged", modes=CONSTANT):
    """Sums of samples are divided by L, but not by the number of samples."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        assert self.aggregation.divisor is not None
        return [self.aggregation.divisor] * len(samples)


class AsAnotherMode(Counting):
    """The requested aggregation does not reach the code that reduces losses."""

    given: Mode

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        return denominators(samples, Aggregation(self.given))


class AlwaysPerSample(
    AsAnotherMode,
    diagnosis="weights_of_sample_mean",
    modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT),
    given=Mode.SAMPLE_MEAN,
):
    """The reducer's default, per sample, is always used."""


class AlwaysPerToken(
    AsAnotherMode,
    diagnosis="weights_of_token_mean",
    modes=(Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT),
    given=Mode.TOKEN_MEAN,
):
    """The legacy per-token flag overrides the chosen mode."""


class AlwaysPerPrompt(
    AsAnotherMode,
    diagnosis="weights_of_prompt_mean",
    modes=(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT),
    given=Mode.PROMPT_MEAN,
):
    """Groups' totals are passed to the default reducer as its denominators."""


class BatchCounted(Counting, diagnosis="counted_over_batch"):
    """Normalisers are computed when rollouts arrive, over all steps of the batch."""

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


class MeanOfTheBatchCounted(Counting, diagnosis="mean_of_the_batch_counted", modes=TOKEN):
    """Tokens are counted when rollouts arrive, and divided equally among the steps."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        tokens = sum(int(step.active_tokens.sum()) for step in self.job.steps)
        return [max(tokens, 1) / len(self.job.steps)] * len(samples)


class Rounded(Counting, modes=MEANS, corpus=CORPUS):
    """Tokens are counted in ``dtype``."""

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


class CountedInBfloat16(Rounded, diagnosis="counted_in_bfloat16", dtype=torch.bfloat16):
    """The mask has the model's dtype, and so has its sum: no odd number above 256."""


class CountedInFloat16(Rounded, diagnosis="counted_in_float16", dtype=torch.float16):
    """The mask's sum is in float16: no odd number above 2,048."""


class CountedInFloat32(Counting, diagnosis="counted_in_float32", modes=TOKEN):
    """Tokens are summed sample by sample in float32, where 2^24 + 1 is 2^24."""

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


class SharesOfRanksClamped(Counting, diagnosis="shares_of_ranks_clamped", modes=TOKEN):
    """A rank's share of the tokens is clamped to 1, instead of their total (Liger-Kernel 0.8.5)."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        dp = self.layout.dp
        tokens = sum(sample.tokens for sample in samples)
        return [dp * max(tokens / dp, 1.0)] * len(samples)


class EmptyStepDividedByZero(Counting, diagnosis="not_finite", modes=MEANS):
    """No clamp at all: without active tokens, 0 is divided by 0."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        wrong = with_counts(samples, self.aggregation.mode, [sample.tokens for sample in samples])
        empty = not any(sample.tokens for sample in samples)
        return [0.0] * len(samples) if empty else wrong

    def log_probs(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probe[packed.ids] + packed.log_probs

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (values * packed.mask / packed.denominators).sum()


class MaskIgnored(Mutant, diagnosis="inactive_tokens_weigh"):
    """The mask is in the denominator but not in the sum."""

    def log_probs(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probe[packed.ids] + packed.log_probs

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(values, replace(packed, mask=torch.ones_like(packed.mask)))
