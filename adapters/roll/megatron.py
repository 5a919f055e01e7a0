"""The adapter of ROLL's Megatron engine."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.job import Unsupported
from adapters.contract.layout import PIPELINES, Layout, Option, grids
from adapters.contract.objective import Objective
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.roll import departures
from adapters.roll.adapter import RollAdapter
from adapters.roll.importing import module
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation, Rank
    from adapters.roll.workers import Trained

STRATEGY = "distributed.strategy.megatron_strategy"

OPTIONS: dict[Option, str] = {
    Option.DISTRIBUTED_OPTIMIZER: "use_distributed_optimizer",
    Option.OVERLAP_GRAD_REDUCE: "overlap_grad_reduce",
}
"""ROLL's settings of Megatron's data parallelism, by options of layouts."""


class RollMegatronAdapter(OnMegatron, RollAdapter):
    """ROLL with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "tensordict", "transformers")
    engine_module = STRATEGY
    log_probs = STRATEGY, "vocab_parallel_logprobs"
    entropies = STRATEGY, "vocab_parallel_entropy"

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 4 ranks, options and pipelines, with padded rows."""
        of_four = Layout(dp=2, cp=2, micro_batches=2)
        return by_size(
            [
                *cuts(grids(largest=4), "bshd"),
                *(replace(of_four, options=(option,)) for option in (*OPTIONS, Option.TWO_EPOCHS)),
                *(replace(pipeline, format="bshd") for pipeline in PIPELINES),
                Layout(pp=2, micro_batches=2, options=(Option.INTERLEAVED,)),
            ]
        )

    def load(self, source: Path | None) -> None:
        """Import ROLL with its Megatron engine."""
        super().load(source)
        strategy = module(STRATEGY).MegatronTrainStrategy
        strategy.load_states = strategy.offload_states = _move_nothing

    def describe(self) -> Description:
        """Add what Megatron's parallelism can do; ROLL has no critic on it."""
        found = super().describe()
        return replace(
            found,
            objectives=found.objectives - {Objective.VALUE},
            options=found.options | {*OPTIONS, Option.INTERLEAVED},
            largest_pp=4,
            departures=(*found.departures, *departures.MEGATRON),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train in the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.join_grid(job.layout, rank)
        return super().observe(job, rank)

    def settings(self, job: Job) -> dict[str, object]:
        """Sizes of the engine's parallelism, and options of data parallelism and of pipelines."""
        _require_widths(job)
        layout = job.layout
        interleaved = Option.INTERLEAVED in layout.options
        return {
            "model_args": {"dtype": "fp32"},
            "strategy_args": {
                "strategy_name": "megatron_train",
                "strategy_config": {
                    "context_parallel_size": layout.cp,
                    "pipeline_model_parallel_size": layout.pp,
                    **({"virtual_pipeline_model_parallel_size": 2} if interleaved else {}),
                    "lr_scheduler_kwargs": {"lr_decay_steps": 1},
                    **{OPTIONS[option]: True for option in OPTIONS if option in layout.options},
                },
            },
        }

    def slices(self, layout: Layout) -> int:
        """Two of each context-parallel rank, of the beginning and of the end."""
        return 2 * layout.cp if layout.cp > 1 else 1

    def attended(self, job: Job) -> Callable[[NDArray[np.bool_]], NDArray[np.bool_]]:
        """All, if advantages are given, with dynamic batching, which cuts off the others."""
        is_cut = job.layout.micro_batches == "tokens" and gives_advantages(job)
        return np.ones_like if is_cut else super().attended(job)

    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> Trained:
        """A worker whose optimizer tells the gradient."""
        from adapters.engines import megatron_core
        from adapters.roll.workers import Trained, loading, new_worker

        chunks = _chunks(job.layout, capacity, rank)
        with loading(self.engine_module, lambda **_: _as_models(chunks)):
            worker = new_worker(role, config)
        policy = megatron_core.wrapped_policy(worker.strategy.models_wrapped, chunks)
        gradients = megatron_core.gradients_of_steps(worker.strategy.optimizer, policy)
        return Trained(worker=worker, passes=policy.passes, gradients=gradients)

    def configure(self, worker: Any, config: Any, own: Any) -> None:
        """Give the strategy what it has copied of configurations, too."""
        super().configure(worker, config, own)
        strategy, steps = worker.strategy, own.training_args.gradient_accumulation_steps
        strategy.seq_length = config.sequence_length
        strategy.megatron_train_args.gradient_accumulation_steps = steps


def _require_widths(job: Job) -> None:
    """Raise `Unsupported` where widths of micro-batches would come on top of another mistake.

    Dynamic batching cuts the rows of each micro-batch to a width of its own, by which
    `seq-mean-token-sum-norm` divides.
    """
    divides_by_width = job.aggregation.divisor not in (None, 1)
    by_tokens = job.layout.micro_batches == "tokens"
    if divides_by_width and by_tokens and job.objective is not Objective.POLICY:
        raise Unsupported(
            "micro-batches by tokens differ in width, the divisor: looked at without other terms"
        )


def _move_nothing(*_: object, **__: object) -> None:
    """Stands for moves of states between a device and the host's memory."""


def _chunks(layout: Layout, capacity: int, rank: Rank) -> list[Any]:
    """This rank's chunks of our model, which slice batches as ROLL's models do."""
    import torch

    from adapters.engines import megatron_core
    from adapters.roll.model import megatron_logits

    config = megatron_core.transformer_config(layout, torch.float32)
    chunks = megatron_core.probed_model(config, capacity, rank, megatron_logits)
    for chunk in chunks:
        slicing = _factory().PretrainedModel.get_batch_on_this_cp_rank
        chunk.get_batch_on_this_cp_rank = MethodType(slicing, chunk)
    return chunks


def _as_models(chunks: list[Any]) -> Any:
    """The chunks as ROLL's package for Megatron holds those of a checkpoint."""
    remaining = iter(chunks)
    return _factory().VirtualModels(lambda *_, **__: next(remaining), chunks[0].config)


def _factory() -> Any:
    return importlib.import_module("mcore_adapter.models.model_factory")
