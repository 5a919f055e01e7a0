"""slime's Megatron engine, from its rollout manager's conversion to what its optimizer sees.

Every rank plays the rollout manager of its own: it converts the same samples and splits them over
data-parallel ranks and micro-batches with slime's code, takes its share through slime's actor, and
runs slime's `train_one_step` for every optimizer step of the batch.
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


class SlimeAdapter(Adapter):
    """Drives THUDM/slime."""

    name = "slime"
    package = "slime"
    tree = ("slime",)
    engines = ("megatron",)
    dependencies = ("megatron-core", "ray", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data × context parallelism on up to 8 ranks, packed rows."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="thd")
            for dp, cp in grids(largest=8)
            for micro_batches in (1, 2, "tokens")
        ]

    def load(self, source: Path | None) -> None:
        """Import slime and put the seam behind its log-probabilities."""
        megatron.install(["slime_plugins"], ["slime.backends.megatron_utils.kernels"])
        import_from("slime", [source] if source else [])
        _choose_accelerator()
        megatron.drop_server_options(
            _module("utils.arguments"), _module("backends.sglang_utils.arguments")
        )
        for name in (
            "ray.rollout",
            "backends.megatron_utils.model",
            "backends.megatron_utils.actor",
        ):
            _module(name)
        for name in ("ray.rollout", "utils.data"):
            _module(name).ray = SimpleNamespace(put=_itself, get=_itself)
        loss = _module("backends.megatron_utils.loss")
        loss.calculate_log_probs_and_entropy = SEAM.around(loss.calculate_log_probs_and_entropy)

    def describe(self) -> Description:
        """Modes are what the argument parser offers; rollouts count since samples have an id."""
        return Description(
            modes=megatron.modes(_parser()),
            depths=frozenset({Depth.STEP}),
            conventions=Conventions(
                sample_unit=SampleUnit.ROLLOUT if _rollout_field() else SampleUnit.SAMPLE
            ),
            stand_ins=tuple(megatron.STOOD_IN),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the optimizer steps of one rollout."""
        batch = ProbedBatch(job.steps)
        with rank.framework(), cuda_on_cpu.redirected():
            args = arguments(job)
            megatron.join_grid(job.layout.cp, rank.cache)
            model = megatron.cached_model(args, job, batch.probe_size, rank)
            SEAM.probe = model.module.probe
            rollout_data = _rollout_data(args, job, batch)
            gradients = _train(args, model, rollout_data)
        return Observation(weights=batch.weights_of_steps(gradients))


def arguments(job: Job) -> Any:
    """slime's own arguments for a job, parsed and validated by slime.

    Raises:
        Unsupported: this version lacks an option that the job needs.
        Refused: slime declines the configuration.
    """
    parser = _parser()
    args = parser.parse_args(megatron.batch_options(job) + megatron.mode_options(job, parser))
    args.train_backend, args.load_debug_rollout_data = "megatron", None
    args.debug_train_only, args.debug_rollout_only = True, False
    try:
        _module("utils.arguments").slime_validate_args(args)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    return args


def _parser() -> Any:
    parser = megatron.base_parser()
    _module("utils.arguments").get_slime_extra_args_provider()(parser)
    return parser


def _rollout_data(args: Any, job: Job, batch: ProbedBatch) -> dict[str, Any]:
    """What this rank trains on, converted and split by slime, with the probe's advantages."""
    manager_actor = _module("ray.rollout").RolloutManager
    manager = object.__new__(manager_actor.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_reward_post_process_func = None
    manager.custom_convert_samples_to_train_data_func = None
    manager.train_parallel_config = megatron.train_parallel_config(job.layout)
    split = manager._split_train_data_by_dp
    dp_size = [job.layout.dp] if "dp_size" in inspect.signature(split).parameters else []
    try:
        references = split(manager._convert_samples_to_train_data(_samples(batch)), *dp_size)
    except (AssertionError, ValueError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    actor_class = _module("backends.megatron_utils.actor").MegatronTrainRayActor
    share = actor_class._get_rollout_data(SimpleNamespace(args=args), references)
    _add_advantages(share, batch)
    return share


def _samples(batch: ProbedBatch) -> list[Any]:
    """The batch as slime's sample objects."""
    sample_class, rollout_field = _module("utils.types").Sample, _rollout_field()
    fields = megatron.sample_fields(batch)
    if rollout_field is None:
        megatron.require_one_sample_per_rollout(batch)
    return [
        sample_class(
            status=sample_class.Status.COMPLETED,
            **{"index": index, rollout_field or "index": rollout},
            **common,
        )
        for index, (rollout, common) in enumerate(fields)
    ]


def _rollout_field() -> str | None:
    """What of a sample tells its rollout: a field of its own, once its index, first nothing."""
    if "rollout_id" in inspect.signature(_module("utils.types").Sample).parameters:
        return "rollout_id"
    return "index" if hasattr(_module("ray.rollout"), "build_dp_schedule") else None


def _add_advantages(share: dict[str, Any], batch: ProbedBatch) -> None:
    """Give each sample of a rank's share its advantages, and 0 as its old log-probabilities."""
    slice_with_cp = _module("backends.megatron_utils.cp_utils").slice_log_prob_with_cp
    advantages = megatron.advantages_of(share["tokens"], batch)
    lengths = zip(advantages, share["total_lengths"], share["response_lengths"], strict=True)
    share["advantages"] = [slice_with_cp(*one) for one in lengths]
    share["log_probs"] = [torch.zeros_like(values) for values in share["advantages"]]


def _train(args: Any, model: Any, rollout_data: dict[str, Any]) -> list[NDArray[np.float32]]:
    """The probe's gradient at every optimizer step of the batch."""
    training = _module("backends.megatron_utils.model")
    training.get_args = lambda: args
    optimizer = megatron.ReadingOptimizer(model)
    iterator, num_microbatches, batch_sizes = _schedule(args, model, rollout_data)
    for step, micro_batches in enumerate(num_microbatches):
        call = {"step_global_batch_size": batch_sizes[step]} if batch_sizes else {}
        training.train_one_step(
            args, 0, step, iterator, [model], optimizer, megatron.scheduler(), micro_batches, **call
        )
    return optimizer.gradients


def _schedule(args: Any, model: Any, rollout_data: dict[str, Any]) -> tuple[Any, Any, Any]:
    """slime's iterator, with the micro-batches and the rollouts of every step."""
    get_data_iterator = _module("backends.megatron_utils.data").get_data_iterator
    if "args" in inspect.signature(get_data_iterator).parameters:
        iterator, num_microbatches = get_data_iterator(args, [model], rollout_data)
        return iterator, num_microbatches, None
    return (
        get_data_iterator(rollout_data),
        rollout_data["num_microbatches"],
        rollout_data["global_batch_sizes"],
    )


def _module(path: str) -> Any:
    return importlib.import_module(f"slime.{path}")


def _choose_accelerator() -> None:
    """Newer versions ask for a device that is at hand: tell them of the CUDA one regardless."""
    try:
        accelerator = _module("utils.accelerator")
    except ModuleNotFoundError:
        return
    accelerator._register_builtin_backends()
    accelerator._ACCELERATOR = accelerator._REGISTRY["cuda"].factory()
    cuda_on_cpu.number_the_device()


def _itself(value: Any) -> Any:
    return value
