"""The adapter of verl's Megatron engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import PIPELINES, Description, Job, Layout, Option, Rank, grids
from adapters.contract.probed_batch import PADDING_ID
from adapters.verl import departures
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import MODEL
from adapters.verl.engines.worker import configure_anew, new_worker
from adapters.verl.importing import module
from adapters.verl.objectives import ACTOR

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Observation

ENGINE = f"{ACTOR}.megatron"
OPTIONS: dict[Option, dict[str, object]] = {
    Option.AVERAGE_IN_COLLECTIVE: {f"{ENGINE}.override_ddp_config.average_in_collective": True},
    Option.OVERLAP_GRAD_REDUCE: {f"{ENGINE}.override_ddp_config.overlap_grad_reduce": True},
    Option.INTERLEAVED: {f"{ENGINE}.virtual_pipeline_model_parallel_size": 2},
    Option.PER_TOKEN_LOSS: {f"{ENGINE}.override_transformer_config.calculate_per_token_loss": True},
    Option.REPLICATED_OPTIMIZER: {f"{ENGINE}.use_distributed_optimizer": False},
}
"""Settings of the engine by options of layouts."""


class VerlMegatronAdapter(VerlAdapter):
    """verl with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 4 ranks, in both formats; every option and pipelines.

        Options are those of packed rows on 4 ranks. What verl does per token depends on the number
        of tokens of micro-batches, and is run with fewer and with more ranks that share them.
        """
        of_four = Layout(dp=2, cp=2, micro_batches=2, format="thd")
        per_token = (Option.PER_TOKEN_LOSS,)
        return sorted(
            [
                Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
                for dp, cp in grids(largest=4)
                for micro_batches in (1, 2, "tokens")
                for storage in ("bshd", "thd")
            ]
            + [
                replace(of_four, options=(option,))
                for option in OPTIONS
                if option is not Option.INTERLEAVED
            ]
            + [
                Layout(dp=2, micro_batches="tokens", format="thd", options=per_token),
                Layout(cp=2, micro_batches="tokens", format="thd", options=per_token),
                Layout(dp=2, tp=2, micro_batches=2, format="thd"),
                *PIPELINES,
                Layout(pp=2, micro_batches=2, format="bshd"),
                Layout(pp=2, micro_batches=2, format="thd", options=(Option.INTERLEAVED,)),
            ],
            key=lambda layout: layout.world_size,
        )

    def load(self, source: Path | None) -> None:
        """Import verl and its Megatron engine, on the CPU if there is no GPU."""
        from adapters.toolkit import cuda_on_cpu

        cuda_on_cpu.install()
        super().load(source)
        from adapters.verl.engines.megatron_model import put_the_probe_in

        put_the_probe_in()

    def describe(self) -> Description:
        """Add what Megatron's parallelism can do."""
        found = super().describe()
        return replace(
            found,
            options=frozenset(OPTIONS),
            largest_tp=2,
            largest_pp=4,
            departures=(*found.departures, *departures.MEGATRON),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of the engine: its sizes, and the options of the layout."""
        sizes = {
            "tensor_model": job.layout.tp,
            "context": job.layout.cp,
            "pipeline_model": job.layout.pp,
        }
        chosen: dict[str, object] = {"model_engine": "megatron"}
        for option in job.layout.options:
            chosen |= OPTIONS[option]
        return {
            **chosen,
            **{f"{ENGINE}.{kind}_parallel_size": size for kind, size in sizes.items()},
            f"{MODEL}.use_remove_padding": job.layout.format == "thd",
        }

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train, with the CPU as CUDA device if there is no GPU."""
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            return super().observe(job, rank)

    def divisor(self, layout: Layout) -> int:
        """Data-parallel ranks."""
        return layout.dp

    def worker(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker, cached for all jobs that can share its model and process groups."""
        from adapters.engines import megatron_core

        megatron_core.enter_grid(job.layout, rank)
        key = (job.layout.options, job.layout.format, capacity)
        if key not in rank.cache:
            rank.cache[key] = _worker(config, job.layout, capacity, rank)
        worker = rank.cache[key]
        configure_anew(worker, config)
        worker.gradients.drain()
        return worker

    def leave_world(self) -> None:
        """Forget Megatron's process groups."""
        from adapters.engines import megatron_core

        megatron_core.leave_grid()


def _worker(config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
    """verl's worker with its engine, whose optimizer tells the gradient that it steps with."""
    from adapters.engines import megatron_core
    from adapters.verl.engines.megatron_model import BRIDGE, Bridge

    bridge = Bridge(layout, capacity, rank)
    module(BRIDGE).AutoBridge = bridge
    worker = new_worker(config, rank)
    worker.actor_worker_cls = _of_dtype(worker.actor_worker_cls, rank.dtype)
    worker.init_model()
    engine = worker.actor.engine
    engine.model_config.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
    worker.passes = bridge.policy.passes
    worker.gradients = megatron_core.gradients_of_steps(engine.optimizer, bridge.policy)
    return worker


def _of_dtype(training_worker: Any, dtype: str) -> Any:
    """verl's training worker with parameters of a dtype that its validation may not know."""

    class OfDtype(training_worker):  # type: ignore[misc]  # a class of verl's
        def reset(self) -> None:
            object.__setattr__(self.engine_config, "dtype", dtype)
            super().reset()

    return OfDtype
