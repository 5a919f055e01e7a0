"""The adapter that slime and miles share on Megatron-Core.

Every rank runs the framework's code as the framework's trainer does for every batch of rollouts: it
converts the same samples, splits them over data-parallel ranks and calls `train` of the actor.
The rank's share, micro-batches, old log-probabilities, logs and optimizer steps are the
framework's. Below depth `step` the model is not wrapped in data parallelism. At depth `reducer` the
framework's reducer gets the adapter's own token losses.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Framework, Objective, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Depth, Job, Observation, PendingReduction, Unsupported
from adapters.contract.objective import OF_CRITIC
from adapters.engines.shells import OnMegatron
from adapters.slime_family import driving, importing
from adapters.slime_family.adapter import LineageAdapter
from adapters.slime_family.driving import LOG
from adapters.slime_family.framework import ON_MEGATRON
from adapters.slime_family.user_code import CpUtils
from adapters.toolkit.calls import call_supported, refusals, refusals_of_configuration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from adapters.engines.megatron_core import Policy


class MegatronAdapter(OnMegatron, LineageAdapter):
    """Drives a framework of the slime lineage on Megatron-Core."""

    engine = "megatron"
    framework: ClassVar[Framework] = ON_MEGATRON
    log_probs: ClassVar[tuple[str, ...]]  # the paths that the module of log-probabilities has had

    @abstractmethod
    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References to the data of training ranks, converted and split by the framework."""

    def join(self, args: Any, chunks: Sequence[Any] | None = None) -> Any:
        """The framework's own parallel state, made from Megatron's process groups.

        ``chunks`` are the model's chunks. Returns None if a version has no parallel state.
        """
        from megatron.core import mpu

        parallel = self.found("backends.megatron_utils.parallel")
        if parallel is None:
            return None
        parallel.get_args = lambda: args
        # the groups use gloo already
        mpu.get_data_parallel_group_gloo = mpu.get_data_parallel_group
        make = getattr(parallel, "create_megatron_parallel_state", None)
        state = call_supported(
            make or parallel.MegatronParallelState, model=chunks, **self.other_groups()
        )
        CpUtils.state = state
        return state

    def other_groups(self) -> Mapping[str, Any]:
        """The groups of the parallel state that Megatron does not have, by name."""
        return {}

    def bare_parser(self) -> argparse.ArgumentParser:
        """A parser of Megatron's options."""
        return importing.base_parser()

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        from adapters.engines import megatron_core
        from adapters.slime_family import model
        from adapters.toolkit import cuda_on_cpu
        from adapters.toolkit.probe import SEAM

        if self.rollout_field() is None:
            job = driving.single_sample_job(job)
            driving.require_even(job)
        batch = ProbedBatch.of(job)
        SEAM.start(batch)
        LOG.start()
        with rank.framework(), cuda_on_cpu.redirected(), refusals_of_configuration(job):
            args = self.arguments(job)
            per_token = args.calculate_per_token_loss
            megatron_core.join_grid(job.layout, rank)
            trained = model.cached_policy(job, batch.probe_size, rank, per_token=per_token)
            self.join(args, trained.chunks)
            gradients = self.train(args, job, trained, batch)
        return Observation(
            token_weights=batch.weights_of_steps(driving.step_gradients(gradients, job)),
            own_losses=batch.own_losses(driving.step_gradients(gradients, job)),
            pending_reduction=pending_reduction(job.depth, per_token=per_token),
            counted_tokens=tuple(trained.counted_tokens.drain()),
            reported=LOG.reported(self.framework, job),
            forward_passes=batch.forward_passes(trained.passes.drain()),
        )

    def arguments(self, job: Job) -> Any:
        """The validated arguments for a job; raises `Unsupported` or `Refused`."""
        with refusals(), importing.typed(self.record, job, self.parser) as words:
            # A copy, because validation changes default values, which belong to the parser.
            args = deepcopy(self.parser.parse_args(words))
            self.validated(args, job.layout)
        return args

    def train(self, args: Any, job: Job, trained: Policy, batch: ProbedBatch) -> list[Any]:
        """The probe's gradient at every optimizer step of the batch."""
        from adapters.engines import megatron_core

        training = self.module("backends.megatron_utils.model")
        training.get_args = lambda: args
        training.finalize_model_grads = trained.finalize_model_grads
        whole = getattr(training.loss_function, "original", training.loss_function)
        run = self.reducing(whole) if job.depth is Depth.REDUCER else whole
        training.loss_function = counting_in_tensors(run, original=whole)
        actors = self.module("backends.megatron_utils.actor")
        driving.replace_advantages(actors, job, batch)
        optimizer = megatron_core.ReadingOptimizer(trained)
        actor = driving.actor(
            actors.MegatronTrainRayActor,
            args=args,
            role="critic" if job.objective in OF_CRITIC else "actor",
            model=trained.chunks,
            optimizer=optimizer,
            opt_param_scheduler=megatron_core.scheduler(),
        )
        with refusals():
            references = self.references(args, job, batch)
        with self.routing(args, job, trained.chunks):
            call_supported(actor.train, 0, references, witness_info=None, attempt=0)
        return optimizer.gradients.drain()

    def routing(self, args: Any, job: Job, chunks: Sequence[Any]) -> AbstractContextManager[Any]:
        """A context in which the model's routers replay choices, if the layout requires it.

        Raises `Unsupported` below depth `step`, where the model gets no actor; for critics, which
        get no choices of rollouts; and for router losses, because a replaying router computes none.
        """
        if not getattr(args, "use_rollout_routing_replay", False):
            return nullcontext()
        if job.depth is not Depth.STEP or job.objective in (Objective.ROUTER, *OF_CRITIC):
            raise Unsupported(f"no routing replay of {job.objective} at depth {job.depth}")
        from adapters.slime_family import replay

        return self.replaying(replay.give_routers(chunks), replay.choose)

    @abstractmethod
    def replaying(
        self, routers: Sequence[Any], choose: Callable[..., Any]
    ) -> AbstractContextManager[Any]:
        """A context in which the framework replays routers' experts, or calls ``choose``."""

    def reducing(self, loss_function: Any) -> Any:
        """The framework's loss function, with the loss replaced by its reducer's result."""

        def reduce(args: Any, *given: Any, **named: Any) -> Any:
            _, *others = loss_function(args, *given, **named)
            batch = driving.columns_among(given)
            losses = self.token_losses(args, batch, logits=given[-1])
            return self.reducer(args, batch)(losses), *others

        return reduce

    def token_losses(self, args: Any, batch: Any, logits: torch.Tensor) -> torch.Tensor:
        """-advantage · log-probability of the tokens of this rank and micro-batch."""
        import torch

        log_probs = call_supported(
            self.module(*self.log_probs).get_log_probs_and_entropy,
            logits,
            args=args,
            parallel_state=CpUtils.state,
            with_entropy=False,
            **_lengths(batch),
            unconcat_tokens=batch["unconcat_tokens"],
        )
        if isinstance(log_probs, tuple):
            log_probs = log_probs[1]
        return -torch.cat(batch["advantages"]) * torch.cat(log_probs["log_probs"])

    def reducer(self, args: Any, batch: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """The framework's reducer of the policy loss for one micro-batch."""
        masks = batch["loss_masks"]
        shared = call_supported(
            CpUtils.module.get_sum_of_sample_mean,
            loss_masks=masks,
            parallel_state=CpUtils.state,
            calculate_per_token_loss=args.calculate_per_token_loss,
            qkv_format=getattr(args, "qkv_format", "thd"),
            divisor=getattr(args, "pg_loss_divisor", None),
            sample_denoms=batch.get("rollout_mask_sums"),
            denominators=batch.get("rollout_mask_sums"),
            **_lengths(batch),
        )
        chooser = getattr(self.module(*self.losses), "get_pg_loss_reducer", None)
        if chooser is None:
            return shared
        return call_supported(
            chooser,
            args,
            batch,
            pg_loss_masks=masks,
            default_reducer=shared,
            sum_of_sample_mean=shared,
            **_lengths(batch),
        )


def pending_reduction(depth: Depth, *, per_token: bool) -> PendingReduction:
    """The gradient reduction that is still missing after a Megatron step of this depth."""
    if depth is Depth.STEP:
        return PendingReduction.REPLICATED
    if depth is Depth.LOSS:
        return PendingReduction.SUM_PER_COUNTED_TOKEN if per_token else PendingReduction.MEAN
    return PendingReduction.SUM_PER_TOKEN if per_token else PendingReduction.SUM_PER_SAMPLE


def counting_in_tensors(loss_function: Any, original: Any) -> Any:
    """Make the loss's normaliser a tensor, as newer Megatron-Core expects.

    The result keeps ``original`` as an attribute.
    """
    import torch

    def run(*args: Any, **named: Any) -> Any:
        loss, count, log = loss_function(*args, **named)
        return loss, torch.as_tensor(count), log

    run.original = original  # type: ignore[attr-defined]
    return run


def _lengths(batch: Any) -> dict[str, Any]:
    return {
        "total_lengths": batch["total_lengths"],
        "response_lengths": batch["response_lengths"],
        "max_seq_lens": batch.get("max_seq_lens"),
    }
