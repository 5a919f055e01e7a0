"""The adapter of verl's Megatron engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import PIPELINES, Description, Job, Layout, Option, Rank, Unsupported, grids
from adapters.contract.objective import FROM_REWARDS, Objective
from adapters.contract.probed_batch import PADDING_ID
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.toolkit.settings import has_critic, samples_per_step
from adapters.verl import departures
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import CRITIC_MODEL, MODEL
from adapters.verl.objectives import ACTOR
from adapters.verl.sizes import CRITIC, critics_micro_batches
from adapters.verl.worker import made_engine, new_worker

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[Option, tuple[str, object]] = {
    Option.AVERAGE_IN_COLLECTIVE: ("override_ddp_config.average_in_collective", True),
    Option.OVERLAP_GRAD_REDUCE: ("override_ddp_config.overlap_grad_reduce", True),
    Option.INTERLEAVED: ("virtual_pipeline_model_parallel_size", 2),
    Option.PER_TOKEN_LOSS: ("override_transformer_config.calculate_per_token_loss", True),
    Option.REPLICATED_OPTIMIZER: ("use_distributed_optimizer", False),
}
"""Settings of an engine for each layout option."""

LOOKED_AT_ALONE = frozenset(
    {*FROM_REWARDS, Objective.GEO_MEAN, Objective.SAPO, Objective.REJECTION}
)
"""Objectives in which verl has mistakes other than its token counts."""


class VerlMegatronAdapter(OnMegatron, VerlAdapter):
    """verl with its Megatron engine."""

    engine = "megatron"
    versions = "verl since 0.8.0"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")

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
                *(
                    replace(of_four, options=(option,))
                    for option in (*OPTIONS, Option.TWO_EPOCHS)
                    if option is not Option.INTERLEAVED
                ),
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
        from adapters.verl.engines.megatron_model import put_the_probe_in

        put_the_probe_in()

    def describe(self) -> Description:
        """Add the parallelism that Megatron supports."""
        found = super().describe()
        return replace(
            found,
            options=found.options - {Option.LEGACY_TRAINER} | {*OPTIONS},
            largest_tp=2,
            largest_pp=4,
            departures=(*found.departures, *departures.MEGATRON),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """The engines' settings: their sizes, and the options of the layout."""
        _require_counts(job)
        settings = {"model_engine": "megatron", **_of_model(f"{ACTOR}.megatron", MODEL, job.layout)}
        if has_critic(job):
            engine = f"{CRITIC}.megatron"
            settings |= _of_model(engine, CRITIC_MODEL, job.layout)
            settings |= critics_micro_batches(job, self.divisor(job.layout), engine)
        return settings

    def divisor(self, layout: Layout) -> int:
        """Data-parallel ranks."""
        return layout.dp

    def worker(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """The worker of a role, in the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.enter_grid(layout, rank)
        return super().worker(role, config, layout, capacity, rank)

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer tells the gradient that it steps with."""
        from adapters.engines import megatron_core
        from adapters.verl.engines.megatron_model import found_bridge

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


def _of_model(engine: str, model: str, layout: Layout) -> dict[str, object]:
    """The settings of the engine at a configuration path, and of its model."""
    sizes = {"tensor_model": layout.tp, "context": layout.cp, "pipeline_model": layout.pp}
    return {
        **{f"{engine}.{kind}_parallel_size": size for kind, size in sizes.items()},
        **{
            f"{engine}.{OPTIONS[option][0]}": OPTIONS[option][1]
            for option in OPTIONS
            if option in layout.options
        },
        f"{engine}.vanilla_mbridge": False,  # older versions use another bridge by default
        f"{model}.use_remove_padding": layout.format == "thd",
    }


def _of_dtype(training_worker: Any, dtype: str) -> Any:
    """verl's training worker with parameters of a dtype that its validation may not allow."""

    class OfDtype(training_worker):
        def reset(self) -> None:
            _set_dtype(self, dtype)
            super().reset()

    return OfDtype


def _set_dtype(worker: Any, dtype: str) -> None:
    object.__setattr__(worker.engine_config, "dtype", dtype)
