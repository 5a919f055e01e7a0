"""The adapter of verl's Megatron engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import PIPELINES, Job, Layout, Option, Rank, Unsupported, grids
from adapters.contract.objective import FROM_REWARDS, Objective
from adapters.contract.probed_batch import PADDING_ID
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.toolkit.settings import samples_per_step
from adapters.verl.adapter import VerlAdapter, made_engine, new_worker
from adapters.verl.framework import MEGATRON

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract.framework import Settings

OPTIONS = (
    Option.AVERAGE_IN_COLLECTIVE,
    Option.OVERLAP_GRAD_REDUCE,
    Option.PER_TOKEN_LOSS,
    Option.REPLICATED_OPTIMIZER,
    Option.TWO_EPOCHS,
)
"""Options that need no pipeline."""

LOOKED_AT_ALONE = frozenset(
    {*FROM_REWARDS, Objective.GEO_MEAN, Objective.SAPO, Objective.REJECTION}
)
"""Objectives in which verl has mistakes other than its token counts."""


class VerlMegatronAdapter(OnMegatron, VerlAdapter):
    """verl with its Megatron engine."""

    engine = "megatron"
    versions = "verl since 0.8.0"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")
    framework = MEGATRON

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 4 ranks, in both formats; every option and pipelines.

        Options use packed rows on 4 ranks. With ``per_token_loss``, verl depends on the number of
        tokens in micro-batches, so it also runs with fewer and with more ranks that share them.
        """
        of_four = Layout(dp=2, cp=2, micro_batches=2, format="thd")
        per_token = (Option.PER_TOKEN_LOSS,)
        return by_size(
            [
                *cuts(grids(largest=4), "bshd", "thd"),
                *(replace(of_four, options=(option,)) for option in OPTIONS),
                Layout(dp=2, micro_batches="tokens", format="thd", options=per_token),
                Layout(cp=2, micro_batches="tokens", format="thd", options=per_token),
                Layout(dp=2, tp=2, micro_batches=2, format="thd"),
                *PIPELINES,
                Layout(pp=2, micro_batches=2, format="bshd"),
                Layout(pp=2, micro_batches=2, format="thd", options=(Option.INTERLEAVED,)),
            ]
        )

    def load(self, source: Path | None) -> None:
        """Import verl and its Megatron engine."""
        super().load(source)
        from adapters.verl.megatron_model import put_the_probe_in

        put_the_probe_in()

    def settings(self, job: Job, dtype: str) -> Settings:
        """What a user sets; raises `Unsupported` where token counts would not be read alone."""
        _require_counts(job)
        return super().settings(job, dtype)

    def worker(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """The worker of a role, in the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.enter_grid(layout, rank)
        return super().worker(role, config, layout, capacity, rank)

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer tells the gradient that it steps with."""
        from adapters.engines import megatron_core
        from adapters.verl.megatron_model import found_bridge

        bridge = found_bridge(role, layout, capacity, rank)
        worker = new_worker(role, config, rank)
        if role == "actor":
            worker.actor_worker_cls = _of_dtype(worker.actor_worker_cls, rank.dtype)
        else:
            _set_dtype(worker, rank.dtype)
        engine = made_engine(role, worker)
        engine.model_config.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
        worker.passes = bridge.policy.passes
        worker.gradients = megatron_core.gradients_of_steps(engine.optimizer, bridge.policy)
        return worker


def _require_counts(job: Job) -> None:
    """Raise `Unsupported` if rounded-down token counts would combine with another mistake.

    With ``per_token_loss``, Megatron divides by the counts of context-parallel ranks, which are
    rounded down to whole numbers: all weights are off by a known factor.
    """
    layout = job.layout
    if Option.PER_TOKEN_LOSS not in layout.options or layout.cp == 1:
        return
    if job.objective in LOOKED_AT_ALONE or samples_per_step(job.steps) % layout.dp:
        raise Unsupported(
            "with per_token_loss, context-parallel ranks round counts down: run without the option"
        )


def _of_dtype(training_worker: Any, dtype: str) -> Any:
    """verl's training worker with parameters of a dtype that its validation may not allow."""

    class OfDtype(training_worker):
        def reset(self) -> None:
            _set_dtype(self, dtype)
            super().reset()

    return OfDtype


def _set_dtype(worker: Any, dtype: str) -> None:
    object.__setattr__(worker.engine_config, "dtype", dtype)
