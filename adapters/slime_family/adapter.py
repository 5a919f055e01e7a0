"""What the adapters of slime and miles share: one lineage, one way through its train step.

Every rank converts the same samples and splits them over data-parallel ranks with the framework's
code, and calls `train` of the framework's actor, as its trainer does for every batch of rollouts:
the share of the rank, its micro-batches, old log-probabilities, logs of the rollouts and the
optimizer steps are the framework's. Below depth `step` the model is not wrapped in data
parallelism, and at depth `reducer` the loss is what the framework's reducer makes of token losses
of our own.
"""

from __future__ import annotations

import importlib
import inspect
from abc import abstractmethod
from copy import deepcopy
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract import (
    Adapter,
    Departure,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Option,
    PendingReduction,
    Rank,
    grids,
)
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.slime_family import (
    departures,
    entry,
    objectives,
    options,
    policy,
    rollouts,
    rules,
    startup,
    stubs,
)
from adapters.slime_family.tracking import LOG
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import FORWARD_PASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from reference.aggregation import Conventions

SEAM = policy.ProbeSeam()


class MegatronAdapter(Adapter):
    """Drives a framework of the slime lineage on Megatron-Core."""

    package: str
    engine = "megatron"
    dependencies = ("megatron-core", "ray", "transformers")
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")

    departures: tuple[Departure, ...] = ()
    """What is particular to the framework on this engine."""

    def layouts(self) -> Sequence[Layout]:
        """Data × context parallelism on up to 8 ranks, packed, and each thing besides once."""
        return sorted(
            [
                Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="thd")
                for dp, cp in grids(largest=8)
                for micro_batches in (1, 2, "tokens")
            ]
            + [
                Layout(dp=2, cp=2, micro_batches=2, format="thd", options=(option,))
                for option in Option
            ]
            + [
                Layout(dp=2, micro_batches="tokens", format="thd", options=(Option.BALANCE_DATA,)),
                Layout(dp=2, cp=2, tp=2, micro_batches=2, format="thd"),
                *self.padded_layouts(),
            ],
            key=lambda layout: layout.world_size,
        )

    @abstractmethod
    def padded_layouts(self) -> Sequence[Layout]:
        """Layouts in bshd that are worth running."""

    @abstractmethod
    def parser(self) -> Any:
        """The framework's argument parser on top of Megatron's options."""

    @abstractmethod
    def validated(self, args: Any, layout: Layout) -> None:
        """Pass arguments through the framework's own startup validation."""

    @abstractmethod
    def rollout_field(self) -> str | None:
        """What of a sample object tells its rollout; None where rollouts are unknown."""

    @abstractmethod
    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """What the training ranks are sent, converted and split by the framework."""

    @abstractmethod
    def slicer(self, args: Any) -> rollouts.Slicer:
        """What the framework slices values of a response with."""

    @abstractmethod
    def declining_fetch(self, actors: ModuleType, actor: Any) -> None:
        """Have an actor of a module `refusals` where it fetches its share and objects to it."""

    @abstractmethod
    def loss_modules(self) -> tuple[Any, Any, Any]:
        """Where log-probabilities come from, reducers are made, and one is chosen by mode."""

    @abstractmethod
    def conventions(self, parser: Any) -> Conventions:
        """What the framework documents."""

    @abstractmethod
    def candidates(self) -> objectives.Candidates:
        """Functions to look at by what is wrong."""

    @abstractmethod
    def keepers(self) -> Iterable[Any]:
        """Functions that may keep rules of configurations and logs; None for those it lacks."""

    def join(self, args: Any) -> None:
        """Tell the framework of Megatron's process groups, where it keeps its own account."""

    def module(self, path: str) -> Any:
        """A module of the framework."""
        return importlib.import_module(f"{self.package}.{path}")

    def describe(self) -> Description:
        """Modes and options are what the argument parser offers."""
        parser = self.parser()
        return Description(
            modes=options.modes(parser),
            options=options.options(parser),
            largest_tp=2,
            objectives=objectives.offered(parser, self.loss_modules()[-1]),
            conventions=self.conventions(parser),
            places=objectives.places(self.candidates()),
            rules=rules.stated(parser, self.keepers()),
            stubs=tuple(stubs.STUBBED),
            departures=(
                *departures.ABOVE_THE_ACTOR,
                *departures.AROUND_THE_LOSS,
                *departures.MEGATRON,
                *self.departures,
            ),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        batch = ProbedBatch(job.steps, job.objective)
        LOG.start()
        if self.rollout_field() is None:
            rollouts.require_one_sample_per_rollout(batch)
        with rank.framework(), cuda_on_cpu.redirected(), startup.judged(job):
            args = self.arguments(job)
            per_token = args.calculate_per_token_loss
            policy.join_grid(job.layout, rank.cache)
            self.join(args)
            trained = policy.cached_policy(
                job, batch.probe_size, rank, calculate_per_token_loss=per_token
            )
            SEAM.probe = trained.probe
            gradients = self.train(args, job, trained, batch)
        return Observation(
            token_weights=batch.weights_of_steps(startup.of_steps(gradients, job)),
            pending_reduction=pending_reduction(job.depth, per_token=per_token),
            counted_tokens=trained.drain_counted_tokens(),
            reported=LOG.reported(job),
            forward_passes=batch.forward_passes(FORWARD_PASSES.drain()),
        )

    def arguments(self, job: Job) -> Any:
        """The framework's own arguments for a job, parsed and validated by it.

        Raises:
            Unsupported: this version lacks an option that the job needs.
            Refused: the framework declines the configuration.
        """
        parser = self._parser
        with startup.refusals(), startup.settings(job, parser) as settings:
            parsed = parser.parse_args([*options.job_options(job, parser), *settings])
            args = deepcopy(parsed)  # defaults are the parser's, and validation changes some
            self.validated(args, job.layout)
        return args

    @cached_property
    def _parser(self) -> Any:
        """Made once in a process, as that takes a tenth of a step."""
        return self.parser()

    def train(self, args: Any, job: Job, trained: policy.Policy, batch: ProbedBatch) -> list[Any]:
        """The probe's gradient at every optimizer step of the batch."""
        training = self.module("backends.megatron_utils.model")
        training.get_args = lambda: args
        training.finalize_model_grads = trained.finalize_model_grads
        whole = getattr(training.loss_function, "original", training.loss_function)
        run = self.reducing(whole) if job.depth is Depth.REDUCER else whole
        training.loss_function = counting_in_tensors(run, original=whole)
        actors = self.module("backends.megatron_utils.actor")
        actors.compute_advantages_and_returns = rollouts.advantages(job, batch, self.slicer(args))
        optimizer = policy.ReadingOptimizer(trained)
        actor = entry.actor(
            actors.MegatronTrainRayActor,
            args=args,
            role="critic" if job.objective is Objective.VALUE else "actor",
            model=[trained.model],
            optimizer=optimizer,
            opt_param_scheduler=policy.scheduler(),
        )
        self.declining_fetch(actors, actor)
        with startup.refusals():
            references = self.references(args, job, batch)
        call_supported(actor.train, 0, references, witness_info=None, attempt=0)
        return optimizer.gradients

    def reducing(self, loss_function: Any) -> Any:
        """The framework's loss function, with its loss replaced by its reducer's alone."""

        def reduce(args: Any, batch: Any, num_microbatches: int, *rest: Any, **named: Any) -> Any:
            _, *others = loss_function(args, batch, num_microbatches, *rest, **named)
            losses = self.token_losses(args, batch, logits=rest[-1])
            return self.reducer(args, batch)(losses), *others

        return reduce

    def token_losses(self, args: Any, batch: Any, logits: torch.Tensor) -> torch.Tensor:
        """-advantage · log-probability of the tokens of this rank and micro-batch."""
        log_probs = call_supported(
            self.loss_modules()[0].get_log_probs_and_entropy,
            logits,
            args=args,
            with_entropy=False,
            **_lengths(batch),
            unconcat_tokens=batch["unconcat_tokens"],
        )
        if isinstance(log_probs, tuple):
            log_probs = log_probs[1]
        return -torch.cat(batch["advantages"]) * torch.cat(log_probs["log_probs"])

    def reducer(self, args: Any, batch: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """The framework's reducer of the policy loss for one micro-batch."""
        _, factory, chooser = self.loss_modules()
        masks = batch["loss_masks"]
        shared = call_supported(
            factory.get_sum_of_sample_mean,
            loss_masks=masks,
            calculate_per_token_loss=args.calculate_per_token_loss,
            qkv_format=getattr(args, "qkv_format", "thd"),
            divisor=getattr(args, "pg_loss_divisor", None),
            sample_denoms=batch.get("rollout_mask_sums"),
            denominators=batch.get("rollout_mask_sums"),
            **_lengths(batch),
        )
        if not hasattr(chooser, "get_pg_loss_reducer"):
            return shared
        return call_supported(
            chooser.get_pg_loss_reducer,
            args,
            batch,
            pg_loss_masks=masks,
            default_reducer=shared,
            sum_of_sample_mean=shared,
            **_lengths(batch),
        )


def pending_reduction(depth: Depth, *, per_token: bool) -> PendingReduction:
    """What is still to come after a depth of a step that Megatron trains, per token or not."""
    if depth is Depth.STEP:
        return PendingReduction.REPLICATED
    if depth is Depth.LOSS:
        return PendingReduction.SUM_PER_COUNTED_TOKEN if per_token else PendingReduction.MEAN
    return PendingReduction.SUM_PER_TOKEN if per_token else PendingReduction.SUM_PER_SAMPLE


def counting_in_tensors(loss_function: Any, original: Any) -> Any:
    """A loss function whose normaliser is a tensor, as newer versions of Megatron-Core expect.

    ``original`` is the framework's own, which this one is to be had by again.
    """

    def run(*args: Any, **named: Any) -> Any:
        loss, count, log = loss_function(*args, **named)
        return loss, torch.as_tensor(count), log

    run.original = original  # type: ignore[attr-defined]
    return run


def call_supported(function: Any, *args: Any, **offered: Any) -> Any:
    """Call with those of the keyword arguments that this version knows."""
    known = _parameters(getattr(function, "__func__", function))
    return function(*args, **{name: value for name, value in offered.items() if name in known})


@cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _lengths(batch: Any) -> dict[str, Any]:
    return {
        "total_lengths": batch["total_lengths"],
        "response_lengths": batch["response_lengths"],
        "max_seq_lens": batch.get("max_seq_lens"),
    }
