"""The adapter of ROLL's FSDP2 engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.layout import Layout, Option
from adapters.engines.shells import ON_FOUR, OnFsdp, cuts
from adapters.roll.adapter import RollAdapter
from adapters.roll.framework import ENGINE, ROLL, of_rows
from adapters.roll.importing import module

if TYPE_CHECKING:
    from adapters.contract import Job, Rank
    from adapters.roll.driving import Trained

STRATEGY = "distributed.strategy.fsdp2_strategy"

FSDP2 = replace(
    ROLL,
    layout={
        **ROLL.layout,
        **of_rows(
            slices=lambda job: job.layout.cp,
            of_cp={"actor_train.model_args.ulysses_size": lambda job: job.layout.cp},
        ),
        Option.HYBRID_SHARDING: {f"{ENGINE}.fsdp_size": lambda job: job.layout.world_size // 2},
    },
    always={
        **ROLL.always,
        "actor_train.strategy_args.strategy_name": "fsdp2_train",
        f"{ENGINE}.fsdp_size": lambda job: job.layout.world_size,
        f"{ENGINE}.param_dtype": "float32",
        f"{ENGINE}.reduce_dtype": "float32",
    },
)


class RollFsdpAdapter(OnFsdp, RollAdapter):
    """ROLL with FSDP2, the first that its guide names."""

    engine = "fsdp2"
    framework = FSDP2
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

    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> Trained:
        """A worker whose optimizer tells the gradient."""
        from adapters.roll.driving import Trained, new_worker
        from adapters.roll.model import probed
        from adapters.toolkit.probe import HEADED, ForwardPasses, GradientReader

        passes = ForwardPasses()
        model = probed(role, capacity, passes)
        loaded: dict[str, Any] = {
            "AutoConfig": SimpleNamespace(from_pretrained=lambda *_, **__: HEADED),
            "download_model": lambda path: path,
        }
        with mock.patch.multiple(module(STRATEGY), **loaded):
            worker = new_worker(role, config, STRATEGY, lambda **_: model)
        gradients = GradientReader(worker.strategy.optimizer)
        return Trained(worker=worker, passes=passes, gradients=gradients)
