"""The adapter of SkyRL's FSDP engine."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from adapters.contract import Description, Job, Layout, Rank, Unsupported
from adapters.contract.conventions import Assumed
from adapters.contract.objective import OF_VALUES, Objective
from adapters.engines.shells import ON_FOUR, cuts
from adapters.skyrl import configuration, departures
from adapters.skyrl.adapter import SkyRLAdapter
from adapters.skyrl.importing import module, ppo_utils
from reference.aggregation import MicroBatchWeight

BASE_WORKER = "backends.skyrl_train.workers.worker"
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in SkyRL


class SkyRLFsdpAdapter(SkyRLAdapter):
    """SkyRL with its FSDP engine."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows."""
        return cuts(ON_FOUR, "bshd", "thd")

    def load_engine(self) -> None:
        """Add the probe where SkyRL's model wrapper computes log-probabilities and entropies."""
        from adapters.skyrl.fsdp_worker import add_seams

        add_seams()

    def describe(self) -> Description:
        """Add the critic, which only this engine trains."""
        found = super().describe()
        micro_step = module(BASE_WORKER).PolicyWorkerBase._forward_backward_micro
        # Newer versions pass each micro-batch its weight.
        weighed = "microbatch_weight" in inspect.signature(micro_step).parameters
        weight = MicroBatchWeight.BY_SAMPLES if weighed else MicroBatchWeight.EQUAL
        return replace(
            found,
            objectives=found.objectives | {Objective.VALUE, *OF_VALUES},
            departures=(*found.departures, *departures.FSDP),
            declared={**found.declared, "micro_batch_weight": Assumed(weight)},
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings without clipping, and with an optimizer that leaves the probe at 0."""
        precision = "fsdp_config.mixed_precision"
        settings: dict[str, object] = {
            f"{precision}.param_dtype": PRECISIONS[dtype],
            f"{precision}.reduce_dtype": "fp32",
            f"{precision}.buffer_dtype": "fp32",
            "optimizer_config.lr": 0.0,
            "optimizer_config.max_grad_norm": 0.0,
        }
        models = configuration.models(job)
        return {f"trainer.{model}.sequence_parallel_size": job.layout.cp for model in models} | {
            f"trainer.{model}.{path}": value
            for model in models
            if model != "ref"
            for path, value in settings.items()
        }

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, cached for all jobs that can share its model."""
        from adapters.skyrl.fsdp_worker import cached_worker

        worker = cached_worker("policy", config, job, probe_size, rank)
        worker.policy_loss_fn = ppo_utils().PolicyLossRegistry.get(
            config.trainer.algorithm.policy_loss_type
        )
        return worker

    def critic(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's critic worker on this rank, cached in the same way."""
        from adapters.skyrl.fsdp_worker import cached_worker

        if job.layout.cp > 1 and job.layout.format == "bshd":
            raise Unsupported("SkyRL's critic splits sequences only where they are packed")
        worker = cached_worker("critic", config, job, probe_size, rank)
        worker.critic_loss_fn = ppo_utils().ppo_critic_loss
        return worker
