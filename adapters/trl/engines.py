"""The engines of TRL's trainers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import BatchProperty, Description, Job, Layout, Observation, Rank
from adapters.engines.trainers import OnDeepspeed, OnFsdp2, sharded, zero_record
from adapters.trl import importing
from adapters.trl.adapter import TrlAdapter, TrlDdpAdapter, TrlRlooAdapter
from adapters.trl.framework import ASYNC, GRPO, LIGER

if TYPE_CHECKING:
    from pathlib import Path


NEVER_MADE = {
    BatchProperty.EMPTY_SAMPLE: "trl/experimental/async_grpo/async_rollout_worker.py"
    " (_chain_to_sequences)"
}
"""Batches that `AsyncGRPOTrainer`'s own worker prevents; ``rollout_worker`` may replace the worker.
"""


class TrlFsdp2Adapter(OnFsdp2, TrlDdpAdapter):
    """`GRPOTrainer` with FSDP2."""

    framework = sharded(GRPO)


class TrlDeepspeedAdapter(OnDeepspeed, TrlDdpAdapter):
    """`GRPOTrainer` with DeepSpeed's engine."""

    framework = zero_record(GRPO)
    dependencies = (*TrlDdpAdapter.dependencies, "deepspeed")

    def load(self, source: Path | None) -> None:
        """Set the environment of Triton, which DeepSpeed imports."""
        importing.set_environment()
        super().load(source)


class TrlLigerAdapter(TrlDdpAdapter):
    """`GRPOTrainer` with ``use_liger_kernel``, with DistributedDataParallel."""

    engine = "liger"
    versions = "use_liger_kernel of TRL 1.9.0 to 1.14.2"
    framework = LIGER
    training = "driving:LigerTraining"
    dependencies = (*TrlDdpAdapter.dependencies, "liger-kernel")

    def load(self, source: Path | None) -> None:
        """Also import Liger-Kernel; fails if the version uses it only for layers of the model."""
        super().load(source)
        importing.require_use_of_liger()


class TrlAsyncAdapter(OnFsdp2, TrlAdapter):
    """`AsyncGRPOTrainer` with FSDP2, the only engine that TRL documents for it on several ranks.

    Its loss is a mean over the tokens of a step, and its samples come from a queue. Each sample has
    one advantage, and log-probabilities of the policy that generated the sample.
    """

    engine = "async"
    framework = sharded(ASYNC)
    trainer = "experimental.async_grpo.async_grpo_trainer:AsyncGRPOTrainer"
    config = "experimental.async_grpo.async_grpo_config:AsyncGRPOConfig"
    training = "asynchronous:AsyncTraining"
    elsewhere = GRPO.options

    def layouts(self) -> list[Layout]:
        """All layouts of the record, including those with one rank, which the trainer declines."""
        return [*self.framework.driven]

    def describe(self) -> Description:
        """Describe the trainer, with the batches that its own worker never makes."""
        return replace(super().describe(), never_made=NEVER_MADE)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; rows are not counted, because samples share their first token."""
        return replace(super().observe(job, rank), rows=())


ENGINES = (
    TrlDdpAdapter,
    TrlFsdp2Adapter,
    TrlDeepspeedAdapter,
    TrlLigerAdapter,
    TrlRlooAdapter,
    TrlAsyncAdapter,
)
