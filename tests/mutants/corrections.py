"""Corrections that are wrong, and tokens that are selected wrongly, by how far policies differ."""

from dataclasses import replace
from itertools import chain, zip_longest

import numpy as np
import torch

from adapters.native import losses
from adapters.native.corrections import assign_corrections
from adapters.native.packing import SampleTensors
from tests.mutants.mutant import Mutant
from tests.mutants.off_policy import OffPolicy


class Comparing(Mutant):
    """A mutant with wrong corrections, such as those of a part of a step or of other tokens.

    It is right in all other checks.
    """

    def corrected(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.objective is not self.spec.objective:
            return super().corrected(samples)
        return self.compared(samples)

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """The samples of a step with wrong corrections."""
        return samples

    def of(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with right corrections, as if they were a whole step."""
        return [*assign_corrections(samples, self.objective)]


class BoundsOnDividedAdvantages(
    Comparing, diagnosis="divided_advantages_compared", check="off_policy.covariance_clipped"
):
    """Advantages are divided before the loss, which compares covariances with absolute bounds."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        divided = [
            replace(sample, advantages=sample.advantages / sample.denominator) for sample in samples
        ]
        pairs = zip(self.of(divided), samples, strict=True)
        return [replace(found, advantages=sample.advantages) for found, sample in pairs]


class ClippedPerMicroBatch(
    Comparing, diagnosis="selected_per_micro_batch", check="off_policy.covariance_clipped"
):
    """The loss sees one micro-batch, and means are those of its tokens."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [*map(self.of, parts)] if self.objective is self.spec.objective else parts


class PenalisedPerRank(
    Comparing, diagnosis="selected_per_rank", check="off_policy.covariance_penalised"
):
    """Each data-parallel rank penalises a fraction of its own tokens."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        mine = super().shard(samples)
        return self.of(mine) if self.objective is self.spec.objective else mine


class MaskedTokensCompared(Comparing, diagnosis="masked_tokens_in_ratios", check="off_policy.m2po"):
    """The mean of squared log-ratios includes masked tokens of responses."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        whole = [replace(sample, mask=sample.advantages != 0) for sample in samples]
        pairs = zip(self.of(whole), samples, strict=True)
        return [replace(found, mask=sample.mask) for found, sample in pairs]


class KeptTokensCounted(
    Comparing,
    diagnosis="dropped_tokens_not_counted_per_micro_batch",
    check="off_policy.m2po",
    modes=("token_mean",),
):
    """A micro-batch's mean is over the tokens that are kept, and is weighted by all of them."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        if self.objective is not self.spec.objective:
            return parts
        return [
            [replace(sample, correction=sample.correction / kept_share(part)) for sample in part]
            for part in parts
        ]

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return self.of(samples)


def kept_share(samples: list[SampleTensors]) -> float:
    """The share of active tokens that are kept; 1 if there are none."""
    active = torch.cat([sample.correction[sample.mask] for sample in samples])
    return float(active.mean()) or 1.0 if len(active) else 1.0


class NormalisedPerMicroBatch(
    Comparing, diagnosis="normalised_per_micro_batch", check="off_policy.tis_normalised"
):
    """Weights have a mean of 1 within each micro-batch."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [*map(self.of, parts)] if self.objective is self.spec.objective else parts


class NormalisedPerMicroBatchOfAllRanks(
    Comparing,
    diagnosis="normalised_per_micro_batch_of_all_ranks",
    check="off_policy.reinforce_normalised",
):
    """Weights have a mean of 1 within the micro-batches that ranks train at the same time."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        shares = np.array_split(np.arange(len(samples)), self.layout.dp)
        ranks = [self.cut([samples[i] for i in share]) for share in shares]
        together = zip_longest(*ranks, fillvalue=[])
        found = [one for parts in together for one in self.of([*chain.from_iterable(parts)])]
        return sorted(found, key=lambda sample: int(sample.ids[0]))


class ImportanceSamplingClipped(
    OffPolicy,
    diagnosis="option_ignored",
    check="off_policy.importance_sampling",
    wrong=lambda self, log_probs, packed: losses.ppo(log_probs, packed, self.sequence_sum),
):
    """The loss without clipping falls through to PPO's."""
