"""The adapter of miles' FSDP engine.

The engine's actor trains a batch of rollouts with its own code: old log-probabilities,
micro-batches, loss, backward pass through FSDP2, gradient clipping. We supply a model that carries
the probe, the seam that adds it to the log-probabilities, the advantages, and an optimizer hook
that reads the gradient. Below depth `step` every rank has FSDP2 in a mesh of one.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import Assumed, CodeLocation, Description, parse_departures
from adapters.contract.job import Depth, Job, Observation, PendingReduction, Refused, Unsupported
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import OF_VALUES, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.miles import description, rollouts
from adapters.miles.importing import engine, import_miles, module
from adapters.slime_family import command_line, departures, framework
from adapters.slime_family.description import offered, stated
from adapters.slime_family.framework import LOG, METRICS
from adapters.slime_family.rollouts import (
    of_single_samples,
    of_steps,
    replace_advantages,
)
from adapters.toolkit.calls import call_supported, places, refusals, refusals_of_configuration
from reference.aggregation import SampleUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.contract import LogEntry
    from adapters.miles.fsdp_model import Policy

# Training-only options that leave the probe at 0 and its gradient unchanged.
ENGINE_OPTIONS = ("--train-backend=fsdp", "--debug-train-only", "--lr=0", "--clip-grad=inf")
# Options for versions that start this engine only in tests; these expect positive entropies.
CI_OPTIONS = ("--ci-test", "--ci-disable-logprobs-checker")

CI_TEST = parse_departures(
    """
    set: --ci-test --ci-disable-logprobs-checker
        without it this version stops a user with an error that calls the engine not maintained; in
        a train step it only adds checks of saved gradient norms and of log-probabilities
    """
)

DEPARTURES = (
    *departures.ALL_ENGINES,
    *description.OBSERVED_ENTROPY,
    *parse_departures(
        """
        set: --debug-train-only
            no inference servers are started; the train step does not read it
        set: --lr=0 --clip-grad=inf
            the probe stays 0, and its gradient, read before the optimizer's step, is not changed
        stubbed: the gradient that the optimizer steps with: zeros, once it is read
            NaN would corrupt the probe for the next step even at a learning rate of 0
        stubbed: FSDP2's mixed precision and the precision policy: parameters and gradients in
        float32
            bfloat16 leaves two digits of a weight; --dtype=bfloat16 keeps miles' own policies
        stubbed: device meshes below depth step: one rank each
            that depth ends before gradients are reduced
        """
    ),
)
"""Departures of this engine that all versions share."""


class MilesFsdpAdapter(Adapter):
    """Drives radixark/miles on FSDP2."""

    name = "miles"
    package = "miles"
    versions = "miles since 0.1.0"
    tree = ("miles",)
    engine = "fsdp"
    dependencies = ("megatron-core", "ray", "transformers")
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    mode_names = command_line.MODE_NAMES

    def layouts(self) -> Sequence[Layout]:
        """Data parallelism on up to 4 ranks, packed: the engine supports nothing else."""
        return [
            Layout(dp=dp, micro_batches=micro_batches, format="thd", options=chosen)
            for dp in (1, 2, 4)
            for micro_batches in (1, 2, "tokens")
            for chosen in ((), (Option.BALANCE_DATA,))
            if dp == 2 or not chosen
        ]

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, megatron=False)
        importlib.import_module("megatron.core.fusions.fused_cross_entropy")  # the loss needs it
        # It reads server options, which are left out.
        module("utils.arguments").sglang_validate_args = lambda args: None

    def describe(self) -> Description:
        """Describe the engine by the options of its argument parser."""
        parser, actors = _parser(), engine("actor")
        return Description(
            modes=command_line.modes(parser),
            depths=frozenset({Depth.LOSS, Depth.STEP}),
            metrics=METRICS,
            configurations=command_line.configurations(parser),
            records_forward_passes=True,
            options=command_line.layout_options(parser) & {Option.BALANCE_DATA},
            objectives=offered(parser, description.losses())
            - description.unsupported_objectives()
            - {Objective.VALUE, *OF_VALUES},
            # The other engine counts rollouts, and counts their tokens before a step is cut.
            declared=description.declared(parser, Assumed(SampleUnit.SAMPLE)),
            places=places(
                {
                    **description.candidates(),
                    # The engine counts a step's tokens itself, if at all.
                    CodeLocation.TOKEN_COUNT: ((actors, "_global_token_counts_by_step"),),
                    CodeLocation.TOKEN_DIVISION: ((actors.FSDPTrainRayActor, "_train_step"),),
                }
            ),
            rules=stated(parser, description.keepers()),
            stubs=tuple(framework.STUBBED),
            departures=(*(CI_TEST if _is_for_tests() else ()), *DEPARTURES),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        from adapters.miles import fsdp_model
        from adapters.toolkit import cuda_on_cpu

        job = of_single_samples(job)  # the engine counts samples to find its steps
        batch = ProbedBatch(job.steps, job.objective)
        LOG.start()
        with rank.framework(), cuda_on_cpu.redirected(), refusals_of_configuration(job):
            args = _arguments(job)
            _join(args, rank)
            trained = fsdp_model.cached_policy(args, job, batch.probe_size, rank)
            with refusals():
                # Without further sizes, the rollout side lets the engine find the steps.
                told = {"dp_size": job.layout.dp}
                references = rollouts.references(args, job, batch, train_parallel_config=told)
            actors = engine("actor")
            replace_advantages(actors, job, batch, rollouts.slicer(args))
            rollouts.decline_in_fetch(actors)
            call_supported(_actor(args, trained).train, 0, references, witness_info=None, attempt=0)
        whole = job.depth is Depth.STEP
        return Observation(
            token_weights=batch.weights_of_steps(of_steps(trained.gradients.drain(), job)),
            pending_reduction=PendingReduction.REPLICATED if whole else PendingReduction.MEAN,
            reported=LOG.reported(job),
            forward_passes=batch.forward_passes(trained.passes.drain()),
        )

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        from adapters.toolkit import cuda_on_cpu

        with cuda_on_cpu.redirected():
            _join(_arguments(description.ALONE), rank)
            return description.aggregate(entries)


def _is_for_tests() -> bool:
    """Whether this version starts the engine only in its own tests."""
    return "not args.ci_test" in inspect.getsource(module("utils.arguments").parse_args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    module("utils.arguments").get_miles_extra_args_provider()(parser)
    return parser


def _arguments(job: Job) -> Any:
    """miles' validated arguments for a job; `Unsupported` if it lacks what a layout needs."""
    gpus = f"--actor-num-gpus-per-node={job.layout.world_size}"
    parser = _parser()
    with _refusals(job.layout), command_line.settings(job, parser) as settings:
        typed = [*command_line.job_options(job, parser), *settings]
        of_tests = CI_OPTIONS if _is_for_tests() else ()
        sys.argv = ["miles", *ENGINE_OPTIONS, *of_tests, gpus, *typed]
        return module("utils.arguments").parse_args()


@contextmanager
def _refusals(layout: Layout) -> Iterator[None]:
    """Turn miles' errors into a refusal, or `Unsupported` for layouts of the other engine."""
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
        distributed.GLOO_GROUP = None  # the previous world's
        distributed.init_gloo_group()
        rank.cache["parallel_state"] = engine("parallel").create_fsdp_parallel_state(args)
    parallel = module("backends.training_utils.parallel")
    parallel.set_parallel_state(rank.cache["parallel_state"])


def _actor(args: Any, trained: Policy) -> Any:
    """miles' actor with the attributes that its `init` sets."""
    return framework.actor(
        engine("actor").FSDPTrainRayActor,
        args=args,
        role="actor",
        ref_model=None,
        fsdp_cpu_offload=args.fsdp_cpu_offload,
        precision_policy=SimpleNamespace(autocast_dtype=None),  # newer versions need one
        model=trained.model,
        optimizer=trained.optimizer,
        lr_scheduler=engine("lr_scheduler").get_lr_scheduler(args, trained.optimizer),
    )
