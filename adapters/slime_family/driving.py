"""Drives slime's and miles' own code: samples of their rollout side, actors and their logs.

Actors are entered at `train`, as in their trainers. They are made without their `init`, which
starts CUDA and loads checkpoints, and get a model, an optimizer and bookkeeping instead.
"""

from __future__ import annotations

import sys
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Depth, Job, Layout, LogEntry, Metric, Objective, Option, Unsupported
from adapters.contract.objective import (
    CORRECTIONS,
    FROM_REWARDS,
    OF_ROLLOUTS,
    OF_TERMS,
    OF_VALUES,
    OFF_POLICY,
    PENALISING,
    WITH_REJECTION,
)
from adapters.slime_family import user_code
from adapters.slime_family.user_code import SLICE, CpUtils
from adapters.toolkit.calls import call_supported, refusals
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Framework
    from reference.arrays import Values

    Columns = dict[str, Any]


MANAGER = "ray.rollout:RolloutManager.__ray_metadata__.modified_class"
"""The rollout manager's class without Ray's wrapper."""

OBJECT_STORE = SimpleNamespace(put=lambda value: value, get=lambda value: value)
TRACKERS = ("logging_utils", "tracking", "tracking_utils")


def samples(
    args: Any, batch: ProbedBatch, sample_class: Any, rollout_field: str | None
) -> list[Any]:
    """The batch as a framework's sample objects, with ``rollout_field`` naming the rollout.

    Identifiers are unique over the steps. Samples have log-probabilities of the rollout policy if
    the objective needs them, and the rollout's experts if routing is replayed.
    """
    columns = {
        "index": range(len(batch.responses)),
        rollout_field or "index": batch.trajectories.tolist(),
        "group_index": batch.groups.tolist(),
        "tokens": [sequence.tolist() for sequence in batch.sequences],
        "response_length": [len(response) for response in batch.responses],
        "loss_mask": [mask.astype(int).tolist() for mask in batch.original_masks],
        "reward": batch.rewards.tolist(),
    }
    if batch.objective in (*WITH_REJECTION, *CORRECTIONS, *FROM_REWARDS):
        columns["rollout_log_probs"] = [values.tolist() for values in batch.rollout_log_probs]
    if getattr(args, "use_rollout_routing_replay", False):
        from adapters.slime_family.replay import routed_experts

        columns["rollout_routed_experts"] = routed_experts(batch, args.num_layers)
    completed = sample_class.Status.COMPLETED
    return [
        call_supported(sample_class, status=completed, **dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def references_of_manager(
    manager_class: type,
    args: Any,
    job: Job,
    batch: ProbedBatch,
    sample_class: Any,
    rollout_field: str | None,
) -> Any:
    """References to the ranks' data, made by a rollout manager whose init is skipped."""
    manager: Any = object.__new__(manager_class)
    manager.args = args
    manager.custom_reward_post_process_func = None
    manager.custom_convert_samples_to_train_data_func = None
    manager.train_parallel_config = train_parallel_config(job.layout)
    own = copy(manager)
    manager.custom_convert_samples_to_train_data_func = user_code.conversion(
        job, lambda args, samples: own._convert_samples_to_train_data(samples)
    )
    sent = samples(args, batch, sample_class, rollout_field)
    data = manager._convert_samples_to_train_data(user_code.samples_to_convert(sent, job))
    if hasattr(manager, "_split_train_data_by_dp"):
        return call_supported(manager._split_train_data_by_dp, data, dp_size=job.layout.dp)
    return SimpleNamespace(inner=data)  # a training rank of older versions takes its share


def decline_in_fetch(actors: ModuleType, actor_class: Any) -> None:
    """Let actors decline a job when they fetch their share of the data."""
    is_method = hasattr(actor_class, "_get_rollout_data")
    holder, name = (actor_class, "_get_rollout_data") if is_method else (actors, "get_rollout_data")
    setattr(holder, name, refusals()(getattr(holder, name)))


def single_sample_job(job: Job) -> Job:
    """Returns the job for a version without rollouts of several samples.

    Every sample is then its own rollout. Because options give all prompts the same number of
    rollouts, every sample also becomes its own prompt. Raises `Unsupported` if prompts matter, or
    if the batch is not a multiple of its micro-batches, which Megatron would refuse.
    """
    if all(len(np.unique(step.rollouts)) == step.size for step in job.steps):
        return job
    if is_uneven(job) or job.aggregation.mode is Mode.PROMPT_MEAN or job.objective in FROM_REWARDS:
        raise Unsupported("no rollouts of several samples")
    alone = [
        replace(step, groups=np.arange(step.size), rollouts=np.arange(step.size))
        for step in job.steps
    ]
    return replace(job, steps=tuple(alone))


def require_even(job: Job) -> None:
    """Raise `Unsupported` if a step's samples cannot be cut into equal micro-batches.

    Versions without rollouts give the batch size to Megatron at startup, which declines such steps.
    """
    if is_uneven(job):
        raise Unsupported("global batch size is not divisible by micro batch size times ranks")


def is_uneven(job: Job) -> bool:
    """Whether a step's samples cannot be cut into micro-batches of one size."""
    parts = job.layout.micro_batches if isinstance(job.layout.micro_batches, int) else 1
    return any(step.size % (job.layout.dp * parts) for step in job.steps)


def replace_advantages(actors: ModuleType, job: Job, batch: ProbedBatch) -> None:
    """Replace the function of an actor's module that computes advantages and returns.

    The actor's old log-probabilities are kept unless the objective needs another old policy. In
    checks of the framework's own advantages, the replaced function is called on our inputs.
    """
    current = actors.compute_advantages_and_returns
    original = getattr(current, "original", current)

    def compute_advantages_and_returns(args: Any, *given: Any) -> None:
        add_columns(args, columns_among(given), _columns(job, batch), batch)
        if batch.objective in FROM_REWARDS:
            original(args, *given)

    compute_advantages_and_returns.original = original  # type: ignore[attr-defined]
    actors.compute_advantages_and_returns = compute_advantages_and_returns  # type: ignore[attr-defined]


def add_columns(
    args: Any, share: Columns, columns: dict[str, list[Values]], batch: ProbedBatch
) -> None:
    """Add sliced columns of token values to a rank's share, whose samples may be reordered."""
    from adapters.toolkit.probe import token_table

    widths = share.get("max_seq_lens") or [None] * len(share["tokens"])
    lengths = share["total_lengths"], share["response_lengths"]
    for name, values in columns.items():
        table = token_table(batch, values).to(share["tokens"][0].device)
        share[name] = [
            CpUtils.call(SLICE, args, table[ids[total - response :]], total, response, width=width)
            for ids, total, response, width in zip(share["tokens"], *lengths, widths, strict=True)
        ]


def columns_among(given: Sequence[Any]) -> Columns:
    """The columns among a function's arguments; a parallel state may come before the columns."""
    return next(one for one in given if isinstance(one, dict))


def step_gradients(gradients: list[Any], job: Job) -> list[Any]:
    """Each step's gradient; their sum if a batch size cuts the job's only step into several."""
    if job.configuration.batch_size is None or len(job.steps) > 1:
        return gradients
    return [sum(gradients)]


def _columns(job: Job, batch: ProbedBatch) -> dict[str, list[Values]]:
    """Model outputs that an objective's loss or its advantages require, by sample."""
    objective, reference = batch.objective, {"ref_log_probs": batch.reference_log_probs}
    if objective in FROM_REWARDS:
        values = {"values": batch.values} if objective in OF_VALUES else {}
        if job.configuration.distils or objective is Objective.DISTILLED:
            values["teacher_log_probs"] = batch.teacher_log_probs
        return values | (reference if objective in PENALISING else {})
    columns = {"advantages": batch.advantages, "returns": batch.returns}
    if objective is Objective.VALUE_CLIPPED:
        columns["values"] = batch.old_values
    if objective in OFF_POLICY:
        columns["log_probs"] = batch.old_log_probs
    if objective in (Objective.KL, *OF_TERMS):
        columns |= reference
    if job.configuration.kl:
        columns["ref_log_probs"] = batch.old_log_probs
    return columns


def train_parallel_config(layout: Layout) -> dict[str, int]:
    """The layout as slime's and miles' trainers describe it to the rollout side."""
    interleaved = Option.INTERLEAVED in layout.options
    return {
        "dp_size": layout.dp,
        "cp_size": layout.cp,
        "vpp_size": 2 if interleaved else 1,
        "microbatch_group_size_per_vp_stage": layout.pp if interleaved else 1,
    }


def actor(actor_class: type, *, args: Any, **trained: Any) -> Any:
    """An actor that is ready to train on rollouts, with ``trained`` as further attributes."""
    made: Any = object.__new__(actor_class)
    actors = sys.modules[actor_class.__module__]
    timer = actors.Timer()  # a process has one timer, which a failed job may leave running
    timer.reset()
    timer.start_time.clear()
    timer.start("train_wait")
    if hasattr(actors, "TrainProfiler"):
        made.prof = actors.TrainProfiler(args)
    vars(made).update(
        trained,
        args=args,
        weights_backuper=SimpleNamespace(
            backup_tags=("actor",), backup=lambda tag: None, restore=lambda tag: None
        ),
        weights={"actor": {}},  # older versions read and copy these weights
        update_gpu_params_dict=lambda weights: None,
        update_cpu_params_dict=lambda weights: None,
        weight_updater=SimpleNamespace(pop_metrics=dict),
        rollout_data_postprocess=None,
        sleep=lambda: None,
        wake_up=lambda: None,
        _asleep=False,
        with_ref=False,
        with_opd_teacher=False,
        _active_model_tag="actor",
        parallel_state=CpUtils.state,
        _actor_critic_groups=None,
        _flops_args=None,
        _ft_test_action_executor=None,
        _heartbeat=SimpleNamespace(bump=lambda: None),
    )
    return made


def as_dictionaries(entries: Sequence[LogEntry], *, with_normalizers: bool) -> list[dict[str, Any]]:
    """Entries as micro-batches log them; raises `Unsupported` for unsupported normalizers."""
    import torch

    if not with_normalizers and any(entry.normalizers is not None for entry in entries):
        raise Unsupported("no separate normalizers for logged values")

    def as_dictionary(entry: LogEntry) -> dict[str, Any]:
        if entry.normalizers is None:
            return {"keys": [*entry.keys], "values": torch.tensor([entry.count, *entry.values])}
        tensors = {"values": entry.values, "normalizers": entry.normalizers}
        return {"keys": [*entry.keys]} | {name: torch.tensor(of) for name, of in tensors.items()}

    return [as_dictionary(entry) for entry in entries]


class TrackerLog:
    """Collects the numbers logged on this rank, in place of the trackers."""

    def __init__(self) -> None:
        self._logs: list[Mapping[str, Any]] = []

    def listen(self, module: ModuleType) -> None:
        """Replace the tracker of a module."""
        for name in TRACKERS:
            if hasattr(module, name):
                getattr(module, name).log = self._collect

    def start(self) -> None:
        """Clear the numbers of a job that may have ended early."""
        self._logs.clear()

    def reported(self, record: Framework, job: Job) -> dict[Metric, tuple[float | None, ...]]:
        """The metrics of a job's rollouts and of each step; empty on a rank that logs none."""
        if job.depth is not Depth.STEP:
            return {}
        of_steps = {name for metric, name in record.metrics.items() if metric not in OF_ROLLOUTS}
        steps = [log for log in self._logs if of_steps & log.keys()]
        merged = {name: value for log in self._logs for name, value in log.items()}
        return record.reported(steps, rollouts=merged)

    def _collect(self, args: Any, metrics: Mapping[str, Any], **options: Any) -> None:
        """Keep the numbers of a training step, or of rollouts."""
        self._logs.append(dict(metrics))


LOG = TrackerLog()
