"""A toy of slime: from samples to the steps of an optimizer.

Written for the tests of slime's adapter, and right: every denominator is taken from a whole step
before it is cut, and every factor is applied once. Names and signatures that the adapter touches
are slime's. The package in a checkout of the toy has a copy of this module.
"""

from __future__ import annotations

import importlib
import math
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import yaml
from megatron.core import mpu
from megatron.core.distributed import DistributedDataParallel
from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import distributed as dist

Data = dict[str, Any]
Reducer = Callable[[torch.Tensor], torch.Tensor]

SCHEDULE = ("micro_batch_sizes", "num_microbatches", "global_batch_sizes", "num_rollouts")
"""The columns of a rank's share that describe steps and micro-batches; others are by sample."""

LOSSES = ("loss", "pg_loss", "value_loss")
"""Metrics that are means over tokens if the loss is; all others are means over samples."""

MODES = ("sample_mean", "prompt_mean", "token_mean", "constant")


class Group(NamedTuple):
    """This process's rank in a process group."""

    rank: int
    size: int
    group: Any


class Grid(NamedTuple):
    """This process's data-parallel, context-parallel and tensor-parallel groups."""

    dp: Group
    cp: Group
    tp: Group


def megatron_grid() -> Grid:
    groups = (
        mpu.get_data_parallel_group(),
        mpu.get_context_parallel_group(),
        mpu.get_tensor_model_parallel_group(),
    )
    return Grid(*(Group(group.rank(), group.size(), group) for group in groups))


def add_options(parser: ArgumentParser) -> None:
    for name in ("rollout-batch-size", "n-samples-per-prompt", "num-rollout"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("global-batch-size", "micro-batch-size", "max-tokens-per-gpu"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("eps-clip", "eps-clip-high"):
        parser.add_argument(f"--{name}", type=float, default=0.2)
    for flag in ("use-dynamic-batch-size", "balance-data"):
        parser.add_argument(f"--{flag}", action="store_true")
    add_custom_options(parser)


def add_custom_options(parser: ArgumentParser) -> None:
    if "--calculate-per-token-loss" not in parser._option_string_actions:
        parser.add_argument("--calculate-per-token-loss", action="store_true")
    parser.add_argument("--use-tis", action="store_true")
    for name in ("tis-function", "pg-loss-reducer-function", "convert-samples-to-train-data"):
        parser.add_argument(f"--custom-{name}-path")
    parser.add_argument("--custom-config-path", type=Path)


def add_aggregation_options(parser: ArgumentParser) -> None:
    parser.add_argument("--loss-aggregation", choices=MODES, default="sample_mean")
    parser.add_argument("--loss-aggregation-divisor", type=float)


def validate(args: Namespace) -> None:
    """Derive settings from the options and the file; raises an error if these are contradictory."""
    if args.custom_config_path is not None:
        vars(args).update(yaml.safe_load(args.custom_config_path.read_text()))
    if args.loss_aggregation == "sample_mean" and args.calculate_per_token_loss:
        args.loss_aggregation = "token_mean"
    mode, per_token = args.loss_aggregation, args.calculate_per_token_loss
    if per_token and mode != "token_mean":
        raise ValueError(f"--loss-aggregation={mode} contradicts --calculate-per-token-loss")
    validate_divisor(mode, args.loss_aggregation_divisor)
    if args.custom_tis_function_path and mode in ("prompt_mean", "token_mean"):
        raise ValueError(f"--custom-tis-function-path may change what {mode} divides by")
    if mode == "prompt_mean" and args.global_batch_size % args.n_samples_per_prompt:
        raise ValueError("--global-batch-size is no multiple of --n-samples-per-prompt")
    args.calculate_per_token_loss = mode == "token_mean"


def validate_divisor(mode: str, divisor: Any) -> None:
    if mode != "constant" and divisor is not None:
        raise ValueError(f"--loss-aggregation={mode} takes no --loss-aggregation-divisor")
    number = isinstance(divisor, int | float) and not isinstance(divisor, bool)
    if mode == "constant" and not (number and 0 < divisor < math.inf):
        raise ValueError(f"--loss-aggregation-divisor is {divisor!r} and has to be positive")


def load_function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@dataclass(kw_only=True)
class Sample:
    class Status(Enum):
        COMPLETED = "completed"

    index: int
    group_index: int
    tokens: list[int]
    response_length: int
    loss_mask: list[int]
    reward: float
    status: Status


def convert(samples: Sequence[Sample], rollouts: Sequence[int]) -> Data:
    """Samples as columns; ``rollouts`` are numbered from 0 in the order of optimizer steps."""
    masks = [sample.loss_mask for sample in samples]
    given = [getattr(sample, "rollout_log_probs", None) for sample in samples]
    return {
        **({} if None in given else {"rollout_log_probs": given}),
        "tokens": [sample.tokens for sample in samples],
        "loss_masks": masks,
        "total_lengths": [len(sample.tokens) for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rollouts": rollouts,
        "groups": [sample.group_index for sample in samples],
        "rewards": group_normalised(samples),
        "rollout_mask_sums": unit_tokens(rollouts, masks),
        "prompt_mask_sums": unit_tokens([sample.group_index for sample in samples], masks),
    }


def group_normalised(samples: Sequence[Sample]) -> list[float]:
    """Rewards, normalised within their prompt groups."""
    normalised = []
    for sample in samples:
        group = [one.reward for one in samples if one.group_index == sample.group_index]
        std = float(torch.tensor(group).std()) if len(group) > 1 else 0.0
        normalised.append((sample.reward - sum(group) / len(group)) / (std + 1e-6))
    return normalised


def estimate_advantages(args: Namespace, data: Data, dp: Group, cp: Group) -> None:
    """Give each token its sample's reward as advantage, whitened over all ranks if configured."""
    pairs = [*zip(data["rewards"], data["response_lengths"], strict=True)]
    given = [slice_response(torch.full([length], reward), cp) for reward, length in pairs]
    if args.normalize_advantages:
        masks = torch.cat([slice_response(mask, cp) for mask in data["loss_masks"]])
        flat = torch.cat(given)
        sums = torch.stack([(flat * masks).sum(), (flat**2 * masks).sum(), masks.sum().float()])
        for group in (dp.group, cp.group):
            dist.all_reduce(sums, group=group)
        total, squares, tokens = sums
        variance = (squares / tokens - (total / tokens) ** 2) * tokens / (tokens - 1)
        flat = (flat - total / tokens) / torch.sqrt(variance + 1e-8)
        given = [*flat.split([len(values) for values in given])]
    data["advantages"] = data["returns"] = given


def unit_tokens(units: Sequence[int], masks: Iterable[Any]) -> list[int]:
    """For each sample, the number of active tokens of its unit, a rollout or a prompt group."""
    tokens: Counter[int] = Counter()
    for unit, mask in zip(units, masks, strict=True):
        tokens[unit] += int(sum(mask))
    return [max(tokens[unit], 1) for unit in units]


def require_whole_groups(args: Namespace, data: Data) -> None:
    """Require that prompt groups have all their rollouts, and that their token counts are right."""
    groups, sums = data["groups"], data.get("prompt_mask_sums")
    rollouts = Counter(group for group, _ in set(zip(groups, data["rollouts"], strict=True)))
    sizes = sorted(rollouts.values())
    if {*sizes} != {args.n_samples_per_prompt} or None in groups:
        raise ValueError(f"prompt_mean needs whole groups of --n-samples-per-prompt: {sizes}")
    if sums is None:
        raise ValueError("prompt_mean needs prompt_mask_sums of custom train data")
    if sums != unit_tokens(groups, data["loss_masks"]):
        raise ValueError(f"prompt_mask_sums are not those of prompt groups: {sums}")


def split(args: Namespace, data: Data, dp_size: int) -> list[Data]:
    """The share of every data-parallel rank, in micro-batches."""
    if getattr(args, "loss_aggregation", None) == "prompt_mean":
        require_whole_groups(args, data)
    owner = [rollout // args.global_batch_size for rollout in data["rollouts"]]
    steps = [
        micro_batches(args, [i for i, n in enumerate(owner) if n == step], data, dp_size)
        for step in range(max(owner) + 1)
    ]
    return [share(args, data, [step[rank::dp_size] for step in steps]) for rank in range(dp_size)]


def share(args: Namespace, data: Data, steps: list[list[list[int]]]) -> Data:
    """A rank's share of the data: some micro-batches of each step, as numbers of samples."""
    batches = [batch for step in steps for batch in step]
    columns = {key: [values[i] for b in batches for i in b] for key, values in data.items()}
    return columns | {
        "micro_batch_sizes": [len(batch) for batch in batches],
        "num_microbatches": [len(step) for step in steps],
        "global_batch_sizes": [args.global_batch_size] * len(steps),
    }


def micro_batches(args: Namespace, rows: list[int], data: Data, dp_size: int) -> list[list[int]]:
    """Cut the samples of a step into micro-batches, the same number for each rank."""
    lengths = data["total_lengths"]
    if args.balance_data:
        rows = sorted(rows, key=lambda row: lengths[row])
    if args.use_dynamic_batch_size:
        return filled(rows, lengths, args.max_tokens_per_gpu * args.context_parallel_size, dp_size)
    size = args.micro_batch_size
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    if len(batches) % dp_size:
        raise ValueError(f"{len(batches)} micro-batches cannot be dealt to {dp_size} ranks")
    return batches


def filled(rows: list[int], lengths: list[int], budget: int, dp_size: int) -> list[list[int]]:
    """Micro-batches with as many tokens as the budget allows, and at least one sample each."""
    batches: list[list[int]] = [[]]
    for row in rows:
        if batches[-1] and sum(lengths[i] for i in [*batches[-1], row]) > budget:
            batches.append([])
        batches[-1].append(row)
    while len(batches) % dp_size:
        batches.append([max(batches, key=len).pop()])
    return batches


def to_device(data: Data) -> Data:
    """The data with tokens and masks as tensors on the device that trains."""
    device = torch.cuda.current_device()
    tensors = {
        key: [torch.tensor(values, device=device) for values in data[key]]
        for key in ("tokens", "loss_masks")
    }
    return data | tensors


class Timer:
    """A process's timer, which runs from the start of an actor, except while the actor trains."""

    start_time: ClassVar[set[str]] = set()

    def start(self, name: str) -> None:
        assert name not in self.start_time
        self.start_time.add(name)

    def end(self, name: str) -> None:
        self.start_time.remove(name)

    def reset(self) -> None:
        """Do nothing, as nothing is measured."""

    @contextmanager
    def interrupted(self, name: str) -> Iterator[None]:
        self.end(name)
        try:
            yield
        finally:
            self.start(name)


class TrainProfiler:
    """A profiler of a training, which makes no profiles."""

    def __init__(self, args: Namespace) -> None:
        assert args.use_pytorch_profiler is False

    def step(self, rollout_id: int) -> None:
        """Note that a batch of rollouts was trained."""


def old_log_probs(data: Data, cp: Group) -> list[torch.Tensor]:
    """The policy's log-probabilities of a rank's share: 0, as the policy knows only one token."""
    return [slice_response(torch.zeros(length), cp) for length in data["response_lengths"]]


def rollout_metrics(data: Data) -> dict[str, float]:
    """The log of a rank's share before it is trained on: sums of per-token values."""
    names = ("advantages", "log_probs", "returns")
    return {f"rollout/{name}": float(sum(map(torch.sum, data[name]))) for name in names}


def slice_response(values: torch.Tensor, cp: Group) -> torch.Tensor:
    """The values of a response that a context-parallel rank holds: every cp-th value."""
    return values[cp.rank :: cp.size]


def batches(data: Data, cp: Group) -> Iterator[Data]:
    """Yields the micro-batches of a rank's share, each with the inputs of its model."""
    start = 0
    for size in data["micro_batch_sizes"]:
        batch = {k: v[start : start + size] for k, v in data.items() if k not in SCHEDULE}
        start += size
        rows = [
            slice_response(tokens[-length - 1 : -1], cp)
            for tokens, length in zip(batch["tokens"], batch["response_lengths"], strict=True)
        ]
        if "rollout_log_probs" in batch:
            batch["rollout_log_probs"] = [
                slice_response(torch.tensor(values), cp) for values in batch["rollout_log_probs"]
            ]
        yield batch | {"unconcat_tokens": batch["tokens"], "input_ids": torch.cat(rows)[None]}


def calculate_log_probs_and_entropy(
    logits: torch.Tensor, tokens: torch.Tensor, tp_group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of a policy that knows one token, which has no entropy."""
    if not len(tokens):  # Megatron's kernel accepts no empty tensor
        empty = logits.sum(dim=-1, keepdim=True)
        return empty, empty
    losses = fused_vocab_parallel_cross_entropy(logits[:, None].clone(), tokens[:, None], tp_group)
    return -losses, torch.zeros_like(losses)


def log_probs(
    calculate: Callable[..., Any],
    logits: torch.Tensor,
    tokens: Sequence[torch.Tensor],
    response_lengths: Sequence[int],
    grid: Grid,
) -> dict[str, tuple[torch.Tensor, ...]]:
    """The log-probabilities and entropies of this rank's response tokens, by sample."""
    labels = [
        slice_response(ids[-length:], grid.cp)
        for ids, length in zip(tokens, response_lengths, strict=True)
    ]
    lengths = [len(label) for label in labels]
    calculated = calculate(logits[0], torch.cat(labels), grid.tp.group)
    return {
        name: values.squeeze(-1).split(lengths)
        for name, values in zip(("log_probs", "entropy"), calculated, strict=True)
    }


def reducer(masks: Sequence[torch.Tensor], denominators: Sequence[float], cp: Group) -> Reducer:
    """A function that sums the samples' masked sums, each divided by its denominator."""
    local = [slice_response(mask, cp) for mask in masks]
    weights = [mask / denominator for mask, denominator in zip(local, denominators, strict=True)]
    return lambda values: (values * torch.cat(weights)).sum()


def get_pg_loss_reducer(
    args: Namespace, batch: Data, masks: Sequence[torch.Tensor], default: Reducer, cp: Group
) -> Reducer:
    """The custom reducer or the mode's; Megatron or `scaled` divides by tokens or rollouts."""
    if args.custom_pg_loss_reducer_function_path:
        factory = load_function(args.custom_pg_loss_reducer_function_path)
        lengths = batch["total_lengths"], batch["response_lengths"]
        custom: Reducer = factory(*lengths, masks, args.calculate_per_token_loss)
        return custom
    if args.loss_aggregation == "prompt_mean":
        tokens = batch["prompt_mask_sums"]
        return reducer(masks, [count / args.n_samples_per_prompt for count in tokens], cp)
    if args.loss_aggregation == "constant":
        return reducer(masks, [args.loss_aggregation_divisor] * len(masks), cp)
    return default


def scaled(
    args: Namespace,
    batch: Data,
    num_microbatches: int,
    rollouts: int,
    loss: torch.Tensor,
    logged: Data,
    grid: Grid,
) -> tuple[torch.Tensor, torch.Tensor, Data]:
    """A micro-batch's loss, scaled for Megatron's schedule, its number of tokens, and its log."""
    # Every slice of a sample counts the whole sample's tokens.
    num_tokens = torch.stack([mask.sum() for mask in batch["loss_masks"]]).sum()
    tokens = num_tokens / grid.cp.size
    share = rollouts / num_microbatches / grid.dp.size / grid.cp.size
    log = counted(args, logged, tokens, share)
    if args.calculate_per_token_loss:
        return loss * grid.cp.size, num_tokens, log
    # Megatron divides by the number of micro-batches, and averages over all ranks.
    scale = grid.dp.size * grid.cp.size * num_microbatches / rollouts
    return loss * scale, torch.tensor(1), log


def counted(args: Namespace, logged: Data, tokens: Any, share: Any) -> Data:
    """The values to log, each with this micro-batch's part of the step's divisor of the value."""
    return {
        name: torch.stack([value.detach(), torch.as_tensor(count).to(value)])
        for name, value in logged.items()
        for count in [tokens if is_per_token(args, name) else share]
    }


def is_per_token(args: Namespace, name: str) -> bool:
    per_token: bool = args.calculate_per_token_loss
    return per_token and name in LOSSES


def log_of(entries: Sequence[Data]) -> dict[str, float]:
    """The log of micro-batches' entries: sums of values over one count, or each over its own."""
    first, form = entries[0]["keys"], entries[0].keys()
    size = len(first) + ("normalizers" not in form)
    for entry in entries:
        if entry["keys"] != first or entry.keys() != form:
            raise ValueError(f"{[*entry]} of {entry['keys']} after {[*form]} of {first}")
        if len(entry["values"]) != size or len(entry.get("normalizers", first)) != len(first):
            raise ValueError(f"values or normalizers of another number than {first}")
    values = torch.stack([entry["values"] for entry in entries]).sum(dim=0).tolist()
    divisors = [values.pop(0)] * len(first) if "normalizers" not in form else None
    if divisors is None:
        divisors = torch.stack([entry["normalizers"] for entry in entries]).sum(dim=0).tolist()
    if min(divisors) <= 0:
        raise ValueError(f"divided by {divisors}")
    return {key: value / by for key, value, by in zip(first, values, divisors, strict=True)}


def reported(logs: Sequence[Data], group: Any) -> Data:
    """The log of a step, from its micro-batches on all ranks."""
    total = torch.stack([torch.stack([*log.values()]) for log in logs]).sum(dim=0)
    torch.distributed.all_reduce(total, group=group)
    return {
        f"train/{name}": value / count if count else 0.0
        for name, (value, count) in zip(logs[0], total.tolist(), strict=True)
    }


def train(
    args: Namespace,
    model: Any,
    optimizer: Any,
    scheduler: Any,
    data_iterator: Iterator[Data],
    steps: Iterable[tuple[int, ...]],
    loss_function: Callable[..., Any],
    finalize_model_grads: Callable[..., None],
    log: Callable[[Data], None],
) -> None:
    """Make optimizer steps, each given as its number of micro-batches and arguments of the loss.

    The first rank of the last pipeline stage logs each step.
    """
    everyone = mpu.get_data_parallel_group(with_context_parallel=True)
    config = model.config
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce and isinstance(model, DistributedDataParallel):
        assert config.no_sync_func is None
        config.no_sync_func = model.no_sync
    for step in steps:

        def forward_step(batches: Iterator[Data], chunk: Any, step: Any = step) -> tuple[Any, Any]:
            batch = next(batches)
            return chunk(batch["input_ids"]), partial(loss_function, args, batch, *step)

        model.zero_grad_buffer()
        optimizer.zero_grad()
        logs = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=data_iterator,
            model=[model],
            num_microbatches=step[0],
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        optimizer.step()
        scheduler.step(increment=args.global_batch_size)
        if not mpu.is_pipeline_last_stage():
            continue
        metrics = reported(logs, everyone)
        if everyone.rank() == 0 and mpu.get_tensor_model_parallel_rank() == 0:
            log(metrics)
