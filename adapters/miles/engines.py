"""The adapters of miles' engines: Megatron-Core and FSDP2."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract import Assumed, Framework, Layout, LogEntry, Option, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Depth, Job, Observation, PendingReduction, Refused, Unsupported
from adapters.miles import driving
from adapters.miles.driving import MilesAdapter, engine, import_miles, module
from adapters.miles.framework import FSDP, LOG_PROBS, MEGATRON, ci_record
from adapters.slime_family import importing
from adapters.slime_family.driving import (
    LOG,
    OBJECT_STORE,
    actor,
    decline_in_fetch,
    replace_advantages,
    single_sample_job,
    step_gradients,
    train_parallel_config,
)
from adapters.slime_family.megatron import MegatronAdapter
from adapters.toolkit.calls import call_supported, refusals, refusals_of_configuration
from reference.aggregation import SampleUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.miles.model import FsdpPolicy


class MilesMegatronAdapter(MilesAdapter, MegatronAdapter):
    """Drives radixark/miles on Megatron-Core."""

    framework = MEGATRON
    log_probs = LOG_PROBS

    @cached_property
    def record(self) -> Framework:
        """The record of the loaded version; before February 2026, routing replay is not driven."""
        record = super().record
        if self.found("utils.replay_base") is not None:
            return record
        kept = {one: of for one, of in record.layout.items() if one != Option.ROUTING_REPLAY}
        return replace(record, layout=kept)

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, megatron=True)
        dumper = self.found("utils.dumper_utils")
        if dumper is not None:  # disabled, since it needs a class of sglang to read its settings
            dumper._get_phase_override_configs = lambda *_: {"enable": False}
        actors = self.module("backends.megatron_utils.actor")
        actors.ray = OBJECT_STORE
        decline_in_fetch(actors, actors.MegatronTrainRayActor)
        # Older versions exchange a critic's values between processes here; we give the values.
        actors.sync_actor_critic_data = lambda *_: None

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References to the ranks' data, made by miles' rollout side."""
        return self.shares(args, job, batch, train_parallel_config(job.layout))

    @contextmanager
    def replaying(self, routers: Sequence[Any], choose: Callable[..., Any]) -> Iterator[None]:
        """Replay routing as miles' fork of Megatron-LM does, enabled as in an actor's init."""
        manager = self.module("utils.replay_base").routing_replay_manager
        to_layers = self.module("backends.megatron_utils.replay_utils").register_replay_list_moe
        with mock.patch.multiple(
            manager, enabled=True, replays=[], register_replay_list_func=to_layers
        ):
            for router in routers:
                router.compute_topk = manager.get_topk_fn(choose, return_probs=True)
                manager.register_to_module(router, "routing_replay")
            yield

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        from adapters.engines import megatron_core
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            megatron_core.join_grid(driving.ALONE.layout, rank)
            self.join(self.arguments(driving.ALONE))
            return driving.aggregate(entries)

    def join(self, args: Any, chunks: Sequence[Any] | None = None) -> None:
        """Also initialise miles' global state, from which its functions read parallel sizes."""
        driving.share(super().join(args, chunks))

    def other_groups(self) -> Mapping[str, Any]:
        """One group of independently trained replicas, in versions that have such groups."""
        replicas = self.found("utils.ft_utils.process_group_utils:GroupInfo")
        return {"indep_dp": replicas(0, 1, None)} if replicas else {}


class MilesFsdpAdapter(MilesAdapter):
    """Drives radixark/miles on FSDP2.

    The engine's actor trains a batch of rollouts with its own code: old log-probabilities,
    micro-batches, loss, backward pass through FSDP2, gradient clipping. Below depth `step` every
    rank has FSDP2 on a mesh of one rank.
    """

    engine = "fsdp"
    framework = FSDP
    depths = frozenset({Depth.LOSS, Depth.STEP})
    unit = Assumed(SampleUnit.SAMPLE)

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, megatron=False)
        # the loss requires this module
        importlib.import_module("megatron.core.fusions.fused_cross_entropy")
        # Do not validate the server's options, which are left out.
        module("utils.arguments").sglang_validate_args = lambda args: None
        decline_in_fetch(engine("actor"), engine("actor").FSDPTrainRayActor)

    def bare_parser(self) -> argparse.ArgumentParser:
        """A parser without further options: miles' own parser has all options."""
        return argparse.ArgumentParser()

    @cached_property
    def record(self) -> Framework:
        """The record of the loaded version, which may run this engine only in miles' own tests."""
        parse = inspect.getsource(module("utils.arguments").parse_args)
        return ci_record(super().record) if "not args.ci_test" in parse else super().record

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        from adapters.miles import model
        from adapters.toolkit import cuda_on_cpu
        from adapters.toolkit.probe import SEAM

        job = single_sample_job(job)  # the engine finds its steps by counting samples
        batch = ProbedBatch.of(job)
        SEAM.start(batch)
        LOG.start()
        with rank.framework(), cuda_on_cpu.redirected(), refusals_of_configuration(job):
            args = self.arguments(job)
            _join(args, rank)
            trained = model.cached_policy(args, job, batch.probe_size, rank)
            with refusals():
                # Given only dp_size, the rollout side leaves it to the engine to cut the batch into
                # steps.
                references = self.shares(args, job, batch, {"dp_size": job.layout.dp})
            actors = engine("actor")
            replace_advantages(actors, job, batch)
            call_supported(_actor(args, trained).train, 0, references, witness_info=None, attempt=0)
        whole = job.depth is Depth.STEP
        return Observation(
            token_weights=batch.weights_of_steps(step_gradients(trained.gradients.drain(), job)),
            pending_reduction=PendingReduction.REPLICATED if whole else PendingReduction.MEAN,
            reported=LOG.reported(FSDP, job),
            forward_passes=batch.forward_passes(trained.passes.drain()),
        )

    def arguments(self, job: Job) -> Any:
        """miles' validated arguments for a job; raises `Unsupported` for an unsupported layout."""
        with _refusals(job.layout), importing.typed(self.record, job, self.parser) as words:
            sys.argv = ["miles", *words]
            return module("utils.arguments").parse_args()

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            _join(self.arguments(driving.ALONE), rank)
            return driving.aggregate(entries)


@contextmanager
def _refusals(layout: Layout) -> Iterator[None]:
    """Turn miles' errors into `Refused`, or `Unsupported` for layouts that only Megatron has."""
    try:
        with refusals():
            yield
    except Refused as reason:
        if layout.cp == 1 and layout.format == "thd":
            raise
        raise Unsupported(str(reason)) from reason


def _join(args: Any, rank: Rank) -> None:
    """Initialise miles' distributed state for this world once, as its actor does."""
    if "parallel_state" not in rank.cache:
        distributed = module("utils.distributed_utils")
        distributed.GLOO_GROUP = None  # drops the previous world's group
        distributed.init_gloo_group()
        rank.cache["parallel_state"] = engine("parallel").create_fsdp_parallel_state(args)
    driving.share(rank.cache["parallel_state"])


def _actor(args: Any, trained: FsdpPolicy) -> Any:
    """miles' actor with the attributes that the actor's `init` sets."""
    return actor(
        engine("actor").FSDPTrainRayActor,
        args=args,
        role="actor",
        ref_model=None,
        fsdp_cpu_offload=args.fsdp_cpu_offload,
        # newer versions require this attribute
        precision_policy=SimpleNamespace(autocast_dtype=None),
        model=trained.model,
        optimizer=trained.optimizer,
        lr_scheduler=engine("lr_scheduler").get_lr_scheduler(args, trained.optimizer),
    )
