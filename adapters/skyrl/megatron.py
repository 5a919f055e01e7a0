"""The adapter of SkyRL's Megatron engine.

The worker initialises its process groups and its model with its own code and its default data
parallelism: the distributed optimizer and averaging in the collective. Our model replaces the one
that Megatron-Bridge would build from a checkpoint.
"""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.description import CodeLocation, Description, code_location
from adapters.contract.job import Unsupported
from adapters.contract.layout import PIPELINES, Layout, Option, grids
from adapters.engines.shells import OnMegatron, by_size, cuts
from adapters.skyrl import configuration, departures
from adapters.skyrl.adapter import SkyRLAdapter
from adapters.skyrl.importing import STUBBED, module
from adapters.toolkit.imports import stub, stub_missing

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.contract.adapter import Rank

# A package that only registers models with Megatron-Bridge.
MODEL_BRIDGES = "skyrl.backends.skyrl_train.workers.megatron.model_bridges"


class SkyRLMegatronAdapter(OnMegatron, SkyRLAdapter):
    """SkyRL with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data × context parallelism on up to 8 ranks, and pipelines in both formats.

        Rows are padded only without context parallelism.
        """
        overlapping = (Option.OVERLAP_GRAD_REDUCE,)
        plain = cuts(grids(largest=8), "bshd", "thd")
        return by_size(
            [
                *(layout for layout in plain if layout.format == "thd" or layout.cp == 1),
                Layout(dp=2, cp=2, tp=2, micro_batches=2, format="thd"),
                *PIPELINES,
                Layout(pp=2, micro_batches=2, format="bshd"),
                Layout(dp=2, cp=2, micro_batches=2, format="thd", options=overlapping),
                # The steps of a batch then have different numbers of micro-batches.
                Layout(cp=2, micro_batches="tokens", format="thd", options=overlapping),
            ]
        )

    def load_engine(self) -> None:
        """Add the probe to SkyRL's autograd functions for log-probabilities and entropies."""
        from adapters.skyrl.megatron_worker import add_seams

        stub([MODEL_BRIDGES])
        STUBBED.extend([*stub_missing(["megatron.bridge"]), MODEL_BRIDGES])
        if "megatron.bridge" in STUBBED:  # older versions register models in the worker itself
            conversion = importlib.import_module("megatron.bridge.models.conversion.model_bridge")
            conversion.MegatronModelBridge.register_bridge = conversion.register_bridge
        add_seams()

    def describe(self) -> Description:
        """Add the options of SkyRL's configuration for Megatron's data parallelism."""
        from adapters.engines import megatron_core
        from adapters.skyrl.megatron_worker import MODEL_WRAPPER

        known = {field.name for field in fields(module("train.config.config").MegatronDDPConfig)}
        found = super().describe()
        model_wrapper = module(MODEL_WRAPPER).MegatronModelWrapper
        return replace(
            found,
            options=frozenset(option for option in megatron_core.OPTIONS if option in known),
            largest_tp=2,
            largest_pp=4,
            # It sets the functions that Megatron calls around the reduction of gradients.
            places={**found.places, CodeLocation.REDUCTION: code_location(model_wrapper.__init__)},
            departures=(*found.departures, *departures.MEGATRON),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of Megatron's parallelism, for a model without attention."""
        if job.layout.format == "thd" and _packing_fault() is not None:
            raise Unsupported(
                f"this SkyRL cannot pack samples with Megatron-Core"
                f" {version('megatron-core')}: {_packing_fault()}"
            )
        sizes = {
            "tensor_model": job.layout.tp,
            "context": job.layout.cp,
            "pipeline_model": job.layout.pp,
        }
        return {
            "trainer.strategy": "megatron",
            "trainer.bf16": dtype == "bfloat16",
            "trainer.flash_attn": False,
            **{
                f"trainer.{model}.megatron_config.{kind}_parallel_size": size
                for model in configuration.models(job)
                for kind, size in sizes.items()
            },
            **{
                f"trainer.policy.megatron_config.ddp_config.{option}": True
                for option in job.layout.options
            },
        }

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker, cached as long as its process groups, with a new model."""
        from adapters.skyrl.megatron_worker import joined_worker

        with rank.framework():
            return joined_worker(config, job, probe_size, rank)


@cache
def _packing_fault() -> str | None:
    """Why SkyRL cannot pack with this Megatron-Core, tested by packing one token on one rank."""
    import torch

    utils = module("backends.skyrl_train.distributed.megatron.megatron_utils")
    alone = SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: 1,
        get_context_parallel_world_size=lambda: 1,
        get_context_parallel_rank=lambda: 0,
    )
    token, mask = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
    try:
        with mock.patch.object(utils, "mpu", alone):
            utils.preprocess_packed_seqs(token, mask)
    except TypeError as error:
        return str(error)
    return None
