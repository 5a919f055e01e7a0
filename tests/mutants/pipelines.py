"""Mistakes that need a pipeline: stages that compute no loss take part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.layout import expanded
from adapters.native.trainer import Trainer
from conformance.plan.checks import TELLING
from reference.aggregation import Mode
from tests.mutants.mutant import TOKEN, Counting, Mutant

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from adapters.contract.objective import Metric
    from adapters.native.packing import Packed, SampleTensors
    from adapters.native.trainer import TokenLosses

PIPELINES = (
    *expanded("dp1-cp1-pp{2-mb2,4-mb1}-thd"),
    *expanded("{dp1-cp2-pp2-mb2,dp2-cp1-pp2-mbtokens}-thd"),
)
"""Layouts with pipelines of two and four stages."""

LAYOUTS = tuple(layout for layout in PIPELINES if layout.micro_batches != "tokens")
"""The pipeline layouts of `native` that do not cut micro-batches by tokens."""


class Pipelined(Mutant, corpus=TELLING, further_layouts=LAYOUTS):
    """A mutant that needs pipelines to show."""


class LossScaledByStages(Pipelined, diagnosis="multiplied_by_pp"):
    """The loss is multiplied by the number of stages, to undo an average that is never taken."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(values, packed) * self.layout.pp


class StagesTakenForDataParallel(Pipelined, diagnosis="divided_by_pp"):
    """The data-parallel size is the world size over cp, so stages are averaged over too."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(values, packed) / self.layout.pp


class TokensSummedOverStages(Pipelined, Counting, diagnosis="divided_by_pp"):
    """Each stage counts the tokens of its micro-batches, and all counts are summed."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        right = [sample.denominator for sample in Trainer.divided(self, samples)]
        stages = self.layout.pp if self.aggregation.mode is Mode.TOKEN_MEAN else 1
        return [denominator * stages for denominator in right]


class TokensOfTheFirstStage(Pipelined, Counting, diagnosis="not_divided", modes=TOKEN):
    """The number of tokens is broadcast from the first stage, which counts none: it becomes 1."""

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        right = [sample.denominator for sample in Trainer.divided(self, samples)]
        return [1.0] * len(samples) if self.layout.pp > 1 else right


class PipelineNotFlushed(
    Pipelined,
    diagnosis="micro_batches_lost",
    further_layouts=tuple(layout for layout in LAYOUTS if layout.micro_batches != 1),
):
    """The schedule ends after the last forward pass, before its backward pass."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        self.left = len(parts)
        return parts

    def loss(
        self, probe: torch.Tensor, packed: Packed, token_losses: TokenLosses
    ) -> tuple[torch.Tensor, Mapping[Metric, torch.Tensor]]:
        self.left -= 1
        loss, log = super().loss(probe, packed, token_losses)
        is_flushed = self.left > 0 or self.layout.pp == 1
        return (loss if is_flushed else 0.0 * loss), log


class MisreportingPipeline(Pipelined, check="metric"):
    """A mutant whose weights conform."""


class ReportedSumOverStages(MisreportingPipeline, diagnosis="multiplied_by_pp"):
    """The last stage broadcasts its loss to the others, and then all ranks are summed."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares) * self.layout.pp


class LoggedByTheFirstStage(MisreportingPipeline, diagnosis="nothing_reported"):
    """The first stage, which computes no loss, logs a 0 as well."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        reported = super().report(shares)
        return reported if self.layout.is_on_last_stage(self.rank) else 0.0 * reported
