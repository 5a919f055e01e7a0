"""The adapter of ROLL's FSDP2 engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.layout import Layout, Option
from adapters.engines.shells import ON_FOUR, OnFsdp, cuts
from adapters.roll.adapter import RollAdapter
from adapters.roll.importing import module

if TYPE_CHECKING:
    from adapters.contract import Description, Job, Rank
    from adapters.roll.workers import Trained


STRATEGY = "distributed.strategy.fsdp2_strategy"


class RollFsdpAdapter(OnFsdp, RollAdapter):
    """ROLL with FSDP2, the first that its guide names."""

    engine = "fsdp2"
    dependencies = ("tensordict", "transformers")
    engine_module = STRATEGY
    log_probs = STRATEGY, "log_probs_from_logits"
    entropies = "utils.functionals", "entropy_from_logits"

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks and Ulysses of 2, with padded rows (bshd)."""
        return [
            *cuts(ON_FOUR, "bshd"),
            Layout(dp=4, micro_batches=2, options=(Option.HYBRID_SHARDING,)),
            Layout(dp=2, micro_batches=2, options=(Option.TWO_EPOCHS,)),
            Layout(dp=2, micro_batches=2, options=(Option.POLICY_GRADIENT_WORKER,)),
        ]

    def describe(self) -> Description:
        """Add the way to shard a model."""
        found = super().describe()
        return replace(found, options=found.options | {Option.HYBRID_SHARDING})

    def settings(self, job: Job) -> dict[str, object]:
        """Ulysses and shards, in float32."""
        layout = job.layout
        shards = layout.world_size // (2 if Option.HYBRID_SHARDING in layout.options else 1)
        precisions = {"param_dtype": "float32", "reduce_dtype": "float32"}
        return {
            "model_args": {"dtype": "fp32", "ulysses_size": layout.cp},
            "strategy_args": {
                "strategy_name": "fsdp2_train",
                "strategy_config": {"fsdp_size": shards, **precisions},
            },
        }

    def slices(self, layout: Layout) -> int:
        """One of each rank of Ulysses."""
        return layout.cp

    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> Trained:
        """A worker whose optimizer tells the gradient."""
        from adapters.roll.model import CONFIG, probed
        from adapters.roll.workers import Trained, loading, new_worker
        from adapters.toolkit.probe import ForwardPasses, GradientReader

        passes = ForwardPasses()
        model = probed(role, capacity, passes)
        of_engine: dict[str, Any] = {
            "AutoConfig": SimpleNamespace(from_pretrained=lambda *_, **__: CONFIG),
            "download_model": lambda path: path,
        }
        with (
            mock.patch.multiple(module(self.engine_module), **of_engine),
            loading(self.engine_module, lambda **_: model),
        ):
            worker = new_worker(role, config)
        gradients = GradientReader(worker.strategy.optimizer)
        return Trained(worker=worker, passes=passes, gradients=gradients)
