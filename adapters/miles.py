"""miles' Megatron engine, from its conversion of samples to what its optimizer sees.

Every rank converts the same samples and splits them over data-parallel ranks with miles' code,
takes its share the way miles' actor does, cuts it into micro-batches with miles' data iterator, and
runs miles' `train_one_step` for every optimizer step of the batch.
"""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from adapters import cuda_on_cpu, megatron
from adapters.contract import (
    Adapter,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Rank,
    Refused,
    grids,
)
from adapters.imports import import_from
from adapters.probe import ProbedBatch
from reference.aggregation import Conventions, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

SEAM = megatron.ProbeSeam()


class MilesAdapter(Adapter):
    """Drives radixark/miles."""

    name = "miles"
    package = "miles"
    tree = ("miles",)
    engines = ("megatron",)
    dependencies = ("megatron-core", "ray", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data × context parallelism on up to 8 ranks, packed rows; padded ones of fixed number."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in grids(largest=8)
            for micro_batches in (1, 2, "tokens")
            for storage in ("thd", "bshd")
            if (micro_batches, storage) != ("tokens", "bshd")
        ]

    def load(self, source: Path | None) -> None:
        """Import miles and put the seam behind its log-probabilities."""
        megatron.install(["miles_plugins"], ["miles.backends.megatron_utils.kernels"])
        import_from("miles", [source] if source else [])
        megatron.drop_server_options(
            _module("utils.arguments"), _module("backends.sglang_utils.arguments")
        )
        _pass_objects_through()
        # sglang's debug dumper reads its settings by a class of its own; it stays off.
        _module("utils.dumper_utils")._get_phase_override_configs = lambda *args: {"enable": False}
        processors = _module("backends.training_utils.loss_hub.logit_processors")
        processors.calculate_log_probs_and_entropy = SEAM.around(
            processors.calculate_log_probs_and_entropy
        )
        _module("backends.megatron_utils.model")

    def describe(self) -> Description:
        """Modes are what the argument parser offers."""
        return Description(
            modes=megatron.modes(_parser()),
            depths=frozenset({Depth.STEP}),
            conventions=Conventions(
                sample_unit=SampleUnit.ROLLOUT if _knows_rollouts() else SampleUnit.SAMPLE
            ),
            stand_ins=tuple(megatron.STOOD_IN),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        batch = ProbedBatch(job.steps)
        if not _knows_rollouts():
            megatron.require_one_sample_per_rollout(batch)
        with rank.framework(), cuda_on_cpu.redirected():
            args = arguments(job)
            megatron.join_grid(job.layout.cp, rank.cache)
            _set_parallel_state(args)
            model = megatron.cached_model(args, job, batch.probe_size, rank)
            SEAM.probe = model.module.probe
            rollout_data = _rollout_data(args, job, batch)
            gradients = _train(args, model, rollout_data)
        return Observation(weights=batch.weights_of_steps(gradients))


def arguments(job: Job) -> Any:
    """miles' own arguments for a job, parsed and validated by miles.

    Raises:
        Unsupported: this version lacks an option that the job needs.
        Refused: miles declines the configuration.
    """
    parser = _parser()
    args = parser.parse_args(
        [
            *megatron.batch_options(job),
            *megatron.mode_options(job, parser),
            f"--qkv-format={job.layout.format}",
        ]
    )
    args.debug_train_only, args.world_size, args.rank = True, job.layout.world_size, 0
    args.actor_num_gpus_per_node = job.layout.world_size
    args.compress_ratios = None
    try:
        _module("utils.arguments").miles_validate_args(args)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    return args


def _parser() -> Any:
    parser = megatron.base_parser()
    _module("utils.arguments").get_miles_extra_args_provider()(parser)
    return parser


def _rollout_data(args: Any, job: Job, batch: ProbedBatch) -> dict[str, Any]:
    """What this rank trains on, converted and split by miles, with the probe's advantages."""
    conversion = _module("ray.rollout.train_data_conversion")
    offered = {
        "metadata": {},
        "custom_convert_samples_to_train_data_func": None,
        "custom_reward_post_process_func": None,
    }
    try:
        data = _call(conversion.convert_samples_to_train_data, args, _samples(batch), **offered)
        references = _split(conversion, args, data, job)
    except (AssertionError, ValueError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    share = _module("backends.training_utils.data").get_rollout_data(args, references)
    if isinstance(share, tuple):  # newer versions also hand out what the share was fetched with
        share = share[0]
    _add_advantages(args, share, batch)
    return share


def _split(conversion: Any, args: Any, data: Any, job: Job) -> Any:
    split = conversion.split_train_data_by_dp
    if "dp_size" in inspect.signature(split).parameters:
        return split(args, data, job.layout.dp)
    return split(args, data, megatron.train_parallel_config(job.layout))


def _knows_rollouts() -> bool:
    return "rollout_id" in inspect.signature(_module("utils.types").Sample).parameters


def _samples(batch: ProbedBatch) -> list[Any]:
    """The batch as miles' sample objects."""
    sample_class = _module("utils.types").Sample
    return [
        sample_class(
            index=index,
            status=sample_class.Status.COMPLETED,
            **({"rollout_id": rollout} if _knows_rollouts() else {}),
            **common,
        )
        for index, (rollout, common) in enumerate(megatron.sample_fields(batch))
    ]


def _add_advantages(args: Any, share: dict[str, Any], batch: ProbedBatch) -> None:
    """Give each sample of a rank's share its advantages, and 0 as its old log-probabilities."""
    slice_with_cp = _module("backends.training_utils.cp_utils").slice_log_prob_with_cp
    advantages = megatron.advantages_of(share["tokens"], batch)
    widths = share.get("max_seq_lens") or [None] * len(advantages)
    share["advantages"] = [
        slice_with_cp(values, total, response, args.qkv_format, width)
        for values, total, response, width in zip(
            advantages, share["total_lengths"], share["response_lengths"], widths, strict=True
        )
    ]
    share["log_probs"] = [torch.zeros_like(values) for values in share["advantages"]]


def _train(args: Any, model: Any, rollout_data: dict[str, Any]) -> list[NDArray[np.float32]]:
    """The probe's gradient at every optimizer step of the batch."""
    training = _module("backends.megatron_utils.model")
    training.get_args = lambda: args
    optimizer = megatron.ReadingOptimizer(model)
    get_data_iterator = _module("backends.training_utils.data").get_data_iterator
    iterator, num_microbatches = get_data_iterator(args, [model], rollout_data)
    rollouts = rollout_data.get("num_rollouts", [None] * len(num_microbatches))
    for step, micro_batches in enumerate(num_microbatches):
        _call(
            training.train_one_step,
            args=args,
            rollout_id=0,
            step_id=step,
            data_iterator=iterator,
            model=[model],
            optimizer=optimizer,
            opt_param_scheduler=megatron.scheduler(),
            num_microbatches=micro_batches,
            num_rollouts=rollouts[step],
            witness_info=None,
            attempt=0,
        )
    return optimizer.gradients


def _pass_objects_through() -> None:
    """Put between conversion and training nothing where miles has an object store."""
    for name in ("ray.rollout.train_data_conversion", "utils.data"):
        module = _module(name)
        if hasattr(module, "ray"):
            module.ray = SimpleNamespace(put=_itself, get=_itself)
        if hasattr(module, "object_store"):
            store = SimpleNamespace(
                put=lambda value, value_spec: value,
                get=lambda value: SimpleNamespace(value=value),
            )
            module.object_store.get_instance = lambda store=store: store


def _set_parallel_state(args: Any) -> None:
    """Tell miles of Megatron's process groups, as its actor does."""
    from megatron.core import mpu

    parallel = _module("backends.megatron_utils.parallel")
    parallel.get_args = lambda: args
    mpu.get_data_parallel_group_gloo = mpu.get_data_parallel_group  # gloo already
    create = parallel.create_megatron_parallel_state
    arguments = {}
    if "indep_dp" in inspect.signature(create).parameters:
        group_info = _module("utils.ft_utils.process_group_utils").GroupInfo
        arguments["indep_dp"] = group_info(0, 1, None)
    _module("backends.training_utils.parallel").set_parallel_state(create(**arguments))


def _call(function: Any, *args: Any, **offered: Any) -> Any:
    """Call with those of the keyword arguments that this version knows."""
    known = inspect.signature(function).parameters
    return function(*args, **{name: value for name, value in offered.items() if name in known})


def _module(path: str) -> Any:
    return importlib.import_module(f"miles.{path}")


def _itself(value: Any) -> Any:
    return value
