"""Losses meet the log-probabilities of other tokens of their row."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from adapters.native.packing import SampleTensors
from tests.mutants.mutant import EVERYDAY, SAMPLE, TOKEN, Mutant

OF_LOSSES = ("mask", "original_mask", "advantages", "rollout_log_probs")
"""The columns that are moved with the losses."""


def moved(sample: SampleTensors, shift: int) -> SampleTensors:
    """The sample with its losses moved later by some positions; losses that leave it are lost."""
    if not shift:
        return sample
    ends = slice(None, shift) if shift > 0 else slice(shift, None)
    columns = {}
    for name in OF_LOSSES:
        columns[name] = torch.roll(getattr(sample, name), shift)
        columns[name][ends] = 0
    return replace(sample, **columns)


class Misaligned(Mutant):
    """Losses are moved in each micro-batch, after they are counted."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        return [
            [moved(*pair) for pair in zip(part, self.shifts(part), strict=True)]
            for part in super().cut(samples)
        ]

    def shifts(self, part: Sequence[SampleTensors]) -> list[int]:
        """By how many positions each sample's losses are moved."""
        raise NotImplementedError


class RowsCutFromTheirPadding(Misaligned, diagnosis="log_probs_misaligned"):
    """Rows are padded for sequence parallelism, and cut from the padded end (ms-swift 4.6.0)."""

    def shifts(self, part: Sequence[SampleTensors]) -> list[int]:
        is_padded = self.layout.format == "bshd"
        width = max(len(sample.ids) for sample in part)
        return [-width % self.layout.cp * is_padded] * len(part)


class RatiosCutFromTheirPadding(
    RowsCutFromTheirPadding, diagnosis="log_probs_misaligned", check="off_policy"
):
    """So do ratios to the old policy, which is cut alike; advantages and masks are in place."""


class ClippingCutFromItsPadding(
    RowsCutFromTheirPadding, diagnosis="log_probs_misaligned", check="metric.clip_fraction"
):
    """The share of clipped tokens that is logged looks at other tokens' ratios."""


class LabelsNotShifted(Misaligned, diagnosis="log_probs_misaligned", modes=(*SAMPLE, *TOKEN)):
    """Labels are shifted twice, so that a token's loss meets the token before it."""

    def shifts(self, part: Sequence[SampleTensors]) -> list[int]:
        return [-1] * len(part)


class OffsetsWithoutPadding(
    Misaligned,
    diagnosis="log_probs_misaligned",
    modes=TOKEN,
    corpus=tuple(case for case in EVERYDAY if case.name != "short_responses"),
):
    """The first sample of a packed row is padded to an even length, which offsets leave out."""

    def shifts(self, part: Sequence[SampleTensors]) -> list[int]:
        is_padded = self.layout.format == "thd" and len(part[0].ids) % 2
        return [0, *([-1 if is_padded else 0] * (len(part) - 1))]
