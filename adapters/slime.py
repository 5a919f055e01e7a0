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

import numpy as np
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
    Unsupported,
)
from adapters.imports import import_from
from adapters.probe import ProbedBatch
from reference.aggregation import Conventions, Mode, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
        grids = [(dp, cp) for dp in (1, 2, 4) for cp in (1, 2, 4) if dp * cp <= 8]
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="thd")
            for dp, cp in sorted(grids, key=lambda grid: grid[0] * grid[1])
            for micro_batches in (1, 2, "tokens")
        ]

    def load(self, source: Path | None) -> None:
        """Import slime and put the seam behind its log-probabilities."""
        megatron.install(["slime_plugins"], ["slime.backends.megatron_utils.kernels"])
        import_from("slime", [source] if source else [])
        _choose_accelerator()
        _drop_server_options()
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
        four_modes = _has_option("--loss-aggregation")
        return Description(
            modes=frozenset(Mode if four_modes else (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)),
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
            model = _cached_model(args, job, batch.probe_size, rank)
            SEAM.probe = model.module.probe
            rollout_data = _rollout_data(args, job, batch)
            gradients = _train(args, model, rollout_data)
        weights = [batch.weights(gradient.numpy()) for gradient in gradients]
        if len(weights) != len(job.steps):
            raise RuntimeError(f"{len(weights)} optimizer steps were made of {len(job.steps)}")
        return Observation(
            weights=tuple(batch.split(flat)[step] for step, flat in enumerate(weights))
        )


def arguments(job: Job) -> Any:
    """slime's own arguments for a job, parsed and validated by slime.

    Raises:
        Unsupported: this version lacks an option that the job needs.
        Refused: slime declines the configuration.

    """
    rollouts = _same({len(np.unique(step.rollouts)) for step in job.steps}, "rollouts in steps")
    per_prompt = _same(
        {
            len(np.unique(step.rollouts[step.groups == group]))
            for step in job.steps
            for group in np.unique(step.groups)
        },
        "rollouts of prompts",
    )
    parser = _parser()
    args = parser.parse_args(
        [
            f"--rollout-batch-size={rollouts * len(job.steps) // per_prompt}",
            f"--n-samples-per-prompt={per_prompt}",
            f"--global-batch-size={rollouts}",
            "--num-rollout=1",
            f"--context-parallel-size={job.layout.cp}",
            *_mode_options(job),
            *_micro_batch_options(job),
        ]
    )
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


def _has_option(name: str) -> bool:
    return name in _parser()._option_string_actions


def _mode_options(job: Job) -> list[str]:
    aggregation = job.aggregation
    if not _has_option("--loss-aggregation"):
        return ["--calculate-per-token-loss"] if aggregation.mode is Mode.TOKEN_MEAN else []
    options = [f"--loss-aggregation={aggregation.mode}"]
    if aggregation.divisor is not None:
        options.append(f"--loss-aggregation-divisor={aggregation.divisor}")
    return options


def _micro_batch_options(job: Job) -> list[str]:
    layout = job.layout
    if isinstance(layout.micro_batches, int):
        return [f"--micro-batch-size={_micro_batch_size(job, layout.micro_batches)}"]
    if layout.micro_batches == "tokens":
        tokens = [int((step.prompt_lengths + step.response_lengths).sum()) for step in job.steps]
        budget = max(tokens) // (3 * layout.dp * layout.cp) + 1
        return ["--use-dynamic-batch-size", f"--max-tokens-per-gpu={budget}"]
    raise Unsupported(f"no micro-batches by {layout.micro_batches}")


def _micro_batch_size(job: Job, micro_batches: int) -> int:
    """The size of which slime makes just so many micro-batches on every rank, in every step."""
    wanted = job.layout.dp * micro_batches
    sizes = range(1, max(step.size for step in job.steps) + 1)
    for size in sizes:
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no size of micro-batches that makes {wanted} of the samples of every step")


def _same(counts: set[int], what: str) -> int:
    if len(counts) > 1:
        raise Unsupported(f"no different numbers of {what}: {sorted(counts)}")
    return counts.pop()


def _cached_model(args: Any, job: Job, probe_size: int, rank: Rank) -> Any:
    capacity = 1 << probe_size.bit_length()
    key = (args.calculate_per_token_loss, capacity)
    if key not in rank.cache:
        rank.cache[key] = megatron.build_model(
            capacity,
            calculate_per_token_loss=args.calculate_per_token_loss,
            context_parallel_size=job.layout.cp,
        )
    return rank.cache[key]


def _rollout_data(args: Any, job: Job, batch: ProbedBatch) -> dict[str, Any]:
    """What this rank trains on, converted and split by slime, with the probe's advantages."""
    manager_actor = _module("ray.rollout").RolloutManager
    manager = object.__new__(manager_actor.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_reward_post_process_func = None
    manager.custom_convert_samples_to_train_data_func = None
    manager.train_parallel_config = {
        "dp_size": job.layout.dp,
        "cp_size": job.layout.cp,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
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
    """The batch as slime's sample objects; identifiers are unique over its steps."""
    sample_class, rollout_field = _module("utils.types").Sample, _rollout_field()
    owners = [(n, i) for n, step in enumerate(batch.steps) for i in range(step.size)]
    groups = _numbered([(n, batch.steps[n].groups[i]) for n, i in owners])
    rollouts = _numbered([(n, batch.steps[n].rollouts[i]) for n, i in owners])
    if rollout_field is None and len(set(rollouts)) < len(rollouts):
        raise Unsupported("no several samples of one rollout")
    return [
        sample_class(
            group_index=groups[index],
            tokens=np.concatenate([prompt, response]).tolist(),
            response_length=len(response),
            loss_mask=mask.astype(int).tolist(),
            reward=0.0,
            status=sample_class.Status.COMPLETED,
            **{"index": index, rollout_field or "index": rollouts[index]},
        )
        for index, (prompt, response, mask) in enumerate(
            zip(batch.prompts, batch.responses, batch.masks, strict=True)
        )
    ]


def _rollout_field() -> str | None:
    """What of a sample tells its rollout: a field of its own, once its index, first nothing."""
    if "rollout_id" in inspect.signature(_module("utils.types").Sample).parameters:
        return "rollout_id"
    return "index" if hasattr(_module("ray.rollout"), "build_dp_schedule") else None


def _numbered(keys: list[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _add_advantages(share: dict[str, Any], batch: ProbedBatch) -> None:
    """Give each sample of a rank's share its advantages, and 0 as its old log-probabilities.

    Samples are known by their first token, whatever slime did with their order.
    """
    slice_with_cp = _module("backends.megatron_utils.cp_utils").slice_log_prob_with_cp
    of_first_token = {int(ids[0]): i for i, ids in enumerate(batch.prompts)}
    owners = [of_first_token[int(tokens[0])] for tokens in share["tokens"]]
    advantages = [torch.from_numpy(batch.advantages[i]).float() for i in owners]
    lengths = zip(advantages, share["total_lengths"], share["response_lengths"], strict=True)
    share["advantages"] = [slice_with_cp(*one) for one in lengths]
    share["log_probs"] = [torch.zeros_like(values) for values in share["advantages"]]


def _train(args: Any, model: Any, rollout_data: dict[str, Any]) -> list[torch.Tensor]:
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


def _drop_server_options() -> None:
    """Add none of sglang's own options to slime's parser: no train step reads them."""
    for path, name in (
        ("utils.arguments", "RouterArgs"),
        ("backends.sglang_utils.arguments", "ServerArgs"),
    ):
        options = getattr(_module(path), name, None)
        if options is not None:
            options.add_cli_args = staticmethod(lambda *args, **kwargs: None)


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
