"""What `native` logs of a batch of rollouts: means over its samples.

Every rank adds up what it holds, and the sums of all ranks are divided by the number of samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from adapters.contract.objective import Metric
from adapters.native.over_ranks import OverRanks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.native.packing import SampleTensors


class RolloutLog(OverRanks):
    """The means of a batch; each possible mistake has a method of its own."""

    def means(
        self, samples: list[SampleTensors], mine: list[SampleTensors], held: torch.Tensor
    ) -> Mapping[Metric, float]:
        """All that is logged of ``samples``, the whole batch.

        ``mine`` are those of this data-parallel rank; ``held`` are the ids of the active tokens
        that this rank has, which may be some of theirs alone.
        """
        of_tokens = {
            Metric.ADVANTAGE: [sample.advantages for sample in samples],
            Metric.VALUE: [sample.values for sample in samples],
            Metric.REFERENCE_LOG_PROB: [sample.reference_log_probs for sample in samples],
            Metric.DIVERGENCE: [
                sample.old_log_probs - sample.reference_log_probs for sample in samples
            ],
        }
        return {
            Metric.REWARD: self.of_samples(samples, [one.reward for one in mine]),
            Metric.RESPONSE_LENGTH: self.of_samples(samples, [one.response_length for one in mine]),
            **{
                metric: self.of_tokens(samples, values, held)
                for metric, values in of_tokens.items()
            },
        }

    def of_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        """The mean of what each sample has one of; context-parallel ranks have the same ones."""
        return self.mean(torch.tensor(sum(values) / self.layout.cp), len(samples))

    def of_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        """The mean over samples of the mean over their active tokens."""
        of_id = torch.zeros(1 + max(int(sample.ids.max()) for sample in samples))
        for sample, of_sample in zip(samples, values, strict=True):
            of_id[sample.ids] = of_sample / self.tokens(sample)
        return self.mean(of_id[held].sum(), len(samples))

    def tokens(self, sample: SampleTensors) -> int:
        """What the sum of a sample's tokens is divided by."""
        return max(sample.tokens, 1)

    def mean(self, total: torch.Tensor, samples: int) -> float:
        """The mean over the samples of all ranks, given the sum of this one."""
        return float(self.added_up(total)) / samples
