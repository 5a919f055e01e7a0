"""The adapter of miles' FSDP engine.

The engine's actor trains a batch of rollouts with its own code: old log-probabilities,
micro-batches, loss, backward pass through FSDP2, gradient clipping. We supply a model that carries
the probe, the seam that adds it to the log-probabilities, the advantages, and an optimizer hook
that reads the gradient. Below depth `step` every rank has FSDP2 in a mesh of one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.distributed import device_mesh, fsdp

from adapters.contract import (
    Adapter,
    CodeLocation,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Option,
    PendingReduction,
    Rank,
    Refused,
    Unsupported,
)
from adapters.contract.description import is_set, stubbed
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.miles import description, logs, rollouts
from adapters.miles.importing import import_miles, module
from adapters.slime_family import command_line, departures, framework, stubs
from adapters.slime_family.adapter import SEAM
from adapters.slime_family.description import offered, places, stated
from adapters.slime_family.framework import KEYS, LOG, call_supported
from adapters.slime_family.policy import ProbeSeam
from adapters.slime_family.rollouts import advantages, of_steps, require_one_sample_per_rollout
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import FORWARD_PASSES, as_array
from reference.aggregation import DenominatorMask, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract import LogEntry
    from adapters.slime_family.description import Candidates

ENGINE_OPTIONS = ("--train-backend=fsdp", "--debug-train-only", "--lr=0", "--clip-grad=inf")
"""Options for training alone that leave the probe at 0 and its gradient unchanged."""

CI_OPTIONS = ("--ci-test", "--ci-disable-logprobs-checker")
"""Options for versions that start this engine only in tests, which expect positive entropies."""

CI_TEST = is_set(
    " ".join(CI_OPTIONS),
    "without it this version stops a user with an error that calls the engine not maintained; in a"
    " train step it only adds checks, of gradient norms that were saved and of log-probabilities",
)

DEPARTURES = (
    *departures.ABOVE_THE_ACTOR,
    *departures.AROUND_THE_LOSS,
    description.OBSERVED_ENTROPY,
    is_set(
        "--debug-train-only",
        "no inference servers are started; the train step does not ask for it",
    ),
    is_set(
        "--lr=0 --clip-grad=inf",
        "the probe stays 0 and its gradient as it is; it is read before the optimizer's step",
    ),
    stubbed(
        "the gradient that the optimizer steps with: zeros, once it is read",
        "not a number at a learning rate of 0 would spoil the probe for the next step",
    ),
    stubbed(
        "FSDP2's mixed precision and the precision policy: parameters and gradients in float32",
        "bfloat16 leaves two digits of a weight; --dtype=bfloat16 leaves them as miles has them",
    ),
    stubbed(
        "device meshes below depth step: of one rank each",
        "that depth ends before gradients are reduced",
    ),
)
"""The departures of this engine in all versions."""

FULL_PRECISION = SimpleNamespace(autocast_dtype=None)
"""The precision policy that newer versions need in a forward pass."""


class MilesFsdpAdapter(Adapter):
    """Drives radixark/miles on FSDP2."""

    name = "miles"
    package = "miles"
    tree = ("miles",)
    engine = "fsdp"
    dependencies = ("megatron-core", "ray", "transformers")
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")

    def layouts(self) -> Sequence[Layout]:
        """Data parallelism on up to 4 ranks, packed: the engine supports no others."""
        return [
            Layout(dp=dp, micro_batches=micro_batches, format="thd", options=chosen)
            for dp in (1, 2, 4)
            for micro_batches in (1, 2, "tokens")
            for chosen in ((), (Option.BALANCE_DATA,))
            if dp == 2 or not chosen
        ]

    def load(self, source: Path | None) -> None:
        """Import miles and add the probe to its log-probabilities."""
        import_miles(source, [])
        importlib.import_module("megatron.core.fusions.fused_cross_entropy")  # the loss needs it
        # It reads options of servers, which are left out.
        module("utils.arguments").sglang_validate_args = lambda args: None

    def describe(self) -> Description:
        """Describe the engine by what the argument parser offers."""
        parser = _parser()
        return Description(
            modes=command_line.modes(parser),
            depths=frozenset({Depth.LOSS, Depth.STEP}),
            metrics=frozenset(KEYS.values()),
            configurations=command_line.configurations(parser),
            records_forward_passes=True,
            options=command_line.layout_options(parser) & {Option.BALANCE_DATA},
            objectives=offered(parser, description.losses()) - {Objective.VALUE},
            # The other engine counts rollouts, and their tokens before a step is cut.
            conventions=replace(
                description.conventions(parser),
                sample_unit=SampleUnit.SAMPLE,
                denominator_mask=DenominatorMask.MODIFIED,
            ),
            places=places(_candidates()),
            rules=stated(parser, description.keepers()),
            stubs=tuple(stubs.STUBBED),
            departures=(*([CI_TEST] if _is_for_tests() else []), *DEPARTURES),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        batch = ProbedBatch(job.steps, job.objective)
        LOG.start()
        require_one_sample_per_rollout(batch)  # the engine counts samples to find its steps
        with rank.framework(), cuda_on_cpu.redirected(), framework.refusals_of_configuration(job):
            args = _arguments(job)
            _join(args, rank)
            trained = _cached_policy(args, job, batch.probe_size, rank)
            with framework.refusals():
                # Without more sizes, the rollout side leaves it to the engine to find the steps.
                told = {"dp_size": job.layout.dp}
                references = rollouts.references(args, job, batch, train_parallel_config=told)
            actors = _engine("actor")
            actors.compute_advantages_and_returns = advantages(job, batch, rollouts.slicer(args))
            rollouts.decline_in_fetch(actors)
            call_supported(_actor(args, trained).train, 0, references, witness_info=None, attempt=0)
        return Observation(
            token_weights=batch.weights_of_steps(of_steps(trained.gradients, job)),
            pending_reduction=PendingReduction.REPLICATED
            if job.depth is Depth.STEP
            else PendingReduction.MEAN,
            reported=LOG.reported(job),
            forward_passes=batch.forward_passes(FORWARD_PASSES.drain()),
        )

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Make a log with miles configured for one rank."""
        with cuda_on_cpu.redirected():
            _join(_arguments(logs.ALONE), rank)
            return logs.aggregate(entries)


def _engine(name: str) -> Any:
    """Import a module of the engine, which some versions keep in ``experimental``."""
    stable = importlib.util.find_spec("miles.backends.fsdp_utils")
    place = "backends" if stable else "backends.experimental"
    return module(f"{place}.fsdp_utils.{name}")


def _candidates() -> Candidates:
    """Functions that a mistake may be in; the engine counts a step's tokens itself, if at all."""
    actors = _engine("actor")
    return {
        **description.candidates(),
        CodeLocation.TOKEN_COUNT: ((actors, "_global_token_counts_by_step"),),
        CodeLocation.TOKEN_DIVISION: ((actors.FSDPTrainRayActor, "_train_step"),),
    }


def _is_for_tests() -> bool:
    """Whether this version starts the engine only in its own tests."""
    return "not args.ci_test" in inspect.getsource(module("utils.arguments").parse_args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    module("utils.arguments").get_miles_extra_args_provider()(parser)
    return parser


def _arguments(job: Job) -> Any:
    """miles' own arguments for a job, parsed and validated by it.

    Raises:
        Unsupported: this version lacks what the layout needs.
        Refused: miles declines the configuration.
    """
    gpus = f"--actor-num-gpus-per-node={job.layout.world_size}"
    parser = _parser()
    with _refusals(job.layout), command_line.settings(job, parser) as settings:
        typed = [*command_line.job_options(job, parser), *settings]
        of_tests = CI_OPTIONS if _is_for_tests() else ()
        sys.argv = ["miles", *ENGINE_OPTIONS, *of_tests, gpus, *typed]
        return module("utils.arguments").parse_args()


@contextmanager
def _refusals(layout: Layout) -> Iterator[None]:
    """Turn miles' objections into a refusal, or `Unsupported` for layouts of the other engine."""
    try:
        with framework.refusals():
            yield
    except Refused as reason:
        if layout.cp == 1 and layout.format == "thd":
            raise
        raise Unsupported(str(reason)) from reason


def _join(args: Any, rank: Rank) -> None:
    """Tell miles of this world, as its actor does, once per world."""
    if "parallel_state" not in rank.cache:
        distributed = module("utils.distributed_utils")
        distributed.GLOO_GROUP = None  # that of the world before
        distributed.init_gloo_group()
        rank.cache["parallel_state"] = _engine("parallel").create_fsdp_parallel_state(args)
    parallel = module("backends.training_utils.parallel")
    parallel.set_parallel_state(rank.cache["parallel_state"])


def _actor(args: Any, trained: _Policy) -> Any:
    """miles' actor with the attributes that its `init` sets."""
    return framework.actor(
        _engine("actor").FSDPTrainRayActor,
        args=args,
        role="actor",
        ref_model=None,
        fsdp_cpu_offload=args.fsdp_cpu_offload,
        precision_policy=FULL_PRECISION,
        model=trained.model,
        optimizer=trained.optimizer,
        lr_scheduler=_engine("lr_scheduler").get_lr_scheduler(args, trained.optimizer),
    )


class _Policy:
    """A model that miles wrapped in FSDP2, and the gradients that its optimizer got."""

    def __init__(self, model: nn.Module, args: Any) -> None:
        self.model = model
        self.gradients: list[NDArray[np.float32]] = []
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=args.lr, weight_decay=args.weight_decay
        )
        self.optimizer.register_step_pre_hook(self._read_gradient)

    def _read_gradient(self, optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        """Read the gradient and set it to 0, as NaN would spoil the probe at any learning rate."""
        [probe] = optimizer.param_groups[0]["params"]
        self.gradients.append(as_array(probe.grad.full_tensor()))
        probe.grad.zero_()


def _cached_policy(args: Any, job: Job, probe_size: int, rank: Rank) -> _Policy:
    """The policy for a job, cached as long as the world."""
    capacity = 1 << probe_size.bit_length()
    key = (job.depth, capacity)
    if key not in rank.cache:
        mesh = _mesh(rank) if job.depth is Depth.STEP else _mesh_of_one(rank)
        rank.cache[key] = _Policy(
            _sharded(_ProbedModel(capacity).to(rank.device), mesh, args, rank.dtype), args
        )
    policy: _Policy = rank.cache[key]
    policy.gradients = []
    FORWARD_PASSES.drain()
    return policy


def _sharded(model: nn.Module, mesh: Any, args: Any, dtype: str) -> nn.Module:
    """Wrap a model in FSDP2 as miles does, in a given precision.

    Some versions hard-code bfloat16, in which the probe's gradient has two digits.
    """
    with nullcontext() if dtype == "bfloat16" else _full_precision():
        return _engine("actor").apply_fsdp2(model, mesh=mesh, args=args)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Ignore mixed-precision policies of FSDP2 inside the context."""
    mixed_precision = fsdp.MixedPrecisionPolicy
    fsdp.MixedPrecisionPolicy = lambda **dtypes: mixed_precision()
    try:
        yield
    finally:
        fsdp.MixedPrecisionPolicy = mixed_precision


def _mesh(rank: Rank) -> Any:
    """The mesh of the ranks that miles shards over."""
    state = rank.cache["parallel_state"]
    return state.get_mesh("fsdp") if hasattr(state, "get_mesh") else state.dp_mesh


def _mesh_of_one(rank: Rank) -> Any:
    """A mesh of this rank alone."""
    shape = (rank.world_size, 1)
    return device_mesh.init_device_mesh("cuda", shape, mesh_dim_names=("ranks", "one"))["one"]


class _Output(NamedTuple):
    """A model's output; FSDP2 hooks its backward pass to the tensors in it."""

    logits: torch.Tensor
    probe: torch.Tensor


class _ProbeLayer(nn.Module):
    """Holds the probe, in a module of its own because FSDP shards layer by layer."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(capacity))

    def forward(self) -> torch.Tensor:
        return self.probe.clone()  # FSDP frees the parameter itself after the layer


class _ProbedModel(nn.Module):
    """Replaces the Hugging Face model and passes its probe to the seam."""

    _no_split_modules = (_ProbeLayer.__name__,)

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.layer = _ProbeLayer(capacity)

    def forward(self, input_ids: torch.Tensor, **inputs: Any) -> _Output:
        FORWARD_PASSES.note(input_ids)
        SEAM.probe = self.layer()
        logits = torch.zeros(*input_ids.shape, ProbeSeam.VOCABULARY, device=input_ids.device)
        return _Output(logits, SEAM.probe)
