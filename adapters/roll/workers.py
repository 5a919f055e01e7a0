"""ROLL's workers of a rank, with its FSDP2 engine around our model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.roll.importing import module
from adapters.roll.model import CONFIG, critic, policy
from adapters.toolkit.probe import ForwardPasses, GradientReader

if TYPE_CHECKING:
    from adapters.contract import Rank


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A worker, and what is read off its model and its optimizer."""

    worker: Any
    passes: ForwardPasses
    gradients: GradientReader


def worker_of(role: str, config: Any, capacity: int, rank: Rank) -> Trained:
    """A role's worker, configured for the job; the jobs of a world share those that fit them."""
    own: Any = getattr(config, role)
    sharding = own.model_args.ulysses_size, own.strategy_args.strategy_config["fsdp_size"]
    # A worker of policy gradients remembers the settings of its variant.
    key = "roll", own.worker_cls, own.pg_variant, capacity, *sharding
    if key not in rank.cache:
        rank.cache[key] = _made(role, config, capacity)
    trained: Trained = rank.cache[key]
    worker = trained.worker
    worker.pipeline_config, worker.worker_config, worker.strategy.worker_config = config, own, own
    for recorded in (trained.passes, trained.gradients):
        recorded.drain()
    return trained


def _made(role: str, config: Any, capacity: int) -> Trained:
    """A worker that has been initialised as its cluster does it."""
    engine, workers = module("distributed.strategy.fsdp2_strategy"), module("pipeline.base_worker")
    executor, passes = module("distributed.executor.worker"), ForwardPasses()
    make = critic if role == "critic" else policy
    of_engine: dict[str, Any] = {
        "AutoConfig": SimpleNamespace(from_pretrained=lambda *_, **__: CONFIG),
        "default_tokenizer_provider": lambda **_: None,
        "default_processor_provider": lambda **_: None,
        "download_model": lambda path: path,
    }
    provider = (
        "default_value_model_provider" if role == "critic" else "default_actor_model_provider"
    )
    own = getattr(config, role)
    os.environ |= {"WORKER_NAME": f"{own.name}-0", "CLUSTER_NAME": own.name}
    with (
        mock.patch.multiple(engine, **of_engine),
        mock.patch.object(workers, provider, return_value=make(capacity, passes)),
        mock.patch.multiple(
            executor, download_model=lambda path: path, SharedStorage=mock.MagicMock()
        ),
        mock.patch.multiple(
            executor.Worker,
            get_free_port=staticmethod(lambda: os.environ["MASTER_PORT"]),
            get_node_ip=staticmethod(lambda: os.environ["MASTER_ADDR"]),
        ),
    ):
        worker = module("utils.import_utils").safe_import_class(own.worker_cls)(own)
        worker.initialize(config)
    gradients = GradientReader(worker.strategy.optimizer)
    return Trained(worker=worker, passes=passes, gradients=gradients)
