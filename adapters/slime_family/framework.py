"""Imports and calls of slime's and miles' own code: stubs, actors and their logs.

Actors are entered at `train`, as in their trainers. They are made without their `init`, which
starts CUDA and loads checkpoints, and get a model, an optimizer and bookkeeping instead.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import Depth, Job, LogEntry, Unsupported
from adapters.contract.objective import Metric
from adapters.toolkit.imports import stub, stub_missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

SERVERS = ("aiohttp", "fastapi", "openai", "sglang", "sglang_router", "starlette", "uvicorn", "zmq")
TRACKING = ("structlog", "tensorboard", "wandb")
GPU_CODE = ("megatron.training", "ring_flash_attn", "torch_memory_saver")
DATA = ("blake3", "mooncake", "polars", "pylatexenc", "qwen_vl_utils")
PACKAGES = sorted((*SERVERS, *TRACKING, *GPU_CODE, *DATA))  # no training step uses them
STUBBED: list[str] = []  # packages that `install` stubbed in this process
OBJECT_STORE = SimpleNamespace(put=lambda value: value, get=lambda value: value)
TRACKERS = ("logging_utils", "tracking", "tracking_utils")

KEYS = {
    "train/loss": Metric.LOSS,
    "train/value_loss": Metric.LOSS,
    "train/pg_loss": Metric.POLICY_LOSS,
    "train/pg_clipfrac": Metric.CLIP_FRACTION,
    "train/ppo_kl": Metric.POLICY_KL,
    "train/entropy_loss": Metric.ENTROPY,
    "train/kl_loss": Metric.KL,
    "train/rejected": Metric.REJECTED,
}
"""Metrics by the names under which they are logged; the last is that of `user_code.reject`."""

KEYS_OF_ROLLOUTS = {
    "rollout/raw_reward": Metric.REWARD,
    "rollout/response_lengths": Metric.RESPONSE_LENGTH,
    "rollout/advantages": Metric.ADVANTAGE,
    "rollout/values": Metric.VALUE,
    "rollout/ref_log_probs": Metric.REFERENCE_LOG_PROB,
}

METRICS = frozenset((KEYS | KEYS_OF_ROLLOUTS).values())


def install(package: str, *, megatron: bool) -> None:
    """Prepare this process for importing a framework, with or without its Megatron engine."""
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    kernels = [f"{package}.backends.megatron_utils.kernels", f"{package}.utils.fp8_kernel"]
    stubbed = kernels if megatron else []  # modules, by version, with nothing but GPU kernels
    stub(stubbed)
    STUBBED.extend([*stub_missing([*PACKAGES, f"{package}_plugins"]), *stubbed])


def drop_server_options(package: str) -> None:
    """Remove sglang's options from a framework's parser; no train step reads them."""
    for path in ("utils.arguments", "backends.sglang_utils.arguments"):
        module = importlib.import_module(f"{package}.{path}")
        for options in (getattr(module, name, None) for name in ("RouterArgs", "ServerArgs")):
            if options is not None:
                options.add_cli_args = staticmethod(lambda *args, **kwargs: None)


def actor(actor_class: type, *, args: Any, **trained: Any) -> Any:
    """An actor that waits for a batch of rollouts, with ``trained`` as further attributes."""
    made: Any = object.__new__(actor_class)
    actors = sys.modules[actor_class.__module__]
    timer = actors.Timer()  # one per process, perhaps still running after a failed job
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
        weights={"actor": {}},  # for older versions, with the function that copies them
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
        _actor_critic_groups=None,
        _flops_args=None,
        _ft_test_action_executor=None,
        _heartbeat=SimpleNamespace(bump=lambda: None),
    )
    return made


def as_dictionaries(entries: Sequence[LogEntry], *, with_normalizers: bool) -> list[dict[str, Any]]:
    """Entries in the form of micro-batches; raises `Unsupported` for unknown normalizers."""
    import torch

    if not with_normalizers and any(entry.normalizers is not None for entry in entries):
        raise Unsupported("no separate normalizers for logged values")

    def as_dictionary(entry: LogEntry) -> dict[str, Any]:
        if entry.normalizers is None:
            return {"keys": [*entry.keys], "values": torch.tensor([entry.count, *entry.values])}
        tensors = {"values": entry.values, "normalizers": entry.normalizers}
        return {"keys": [*entry.keys]} | {name: torch.tensor(of) for name, of in tensors.items()}

    return [as_dictionary(entry) for entry in entries]


class Log:
    """Collects the numbers logged on this rank, in place of the trackers."""

    def __init__(self) -> None:
        self._steps: list[dict[Metric, float]] = []
        self._rollouts: dict[Metric, float] = {}

    def listen(self, module: ModuleType) -> None:
        """Replace the tracker of a module."""
        for name in TRACKERS:
            if hasattr(module, name):
                getattr(module, name).log = self._collect

    def start(self) -> None:
        """Clear the numbers of a job that may have ended early."""
        self._steps.clear()
        self._rollouts.clear()

    def reported(self, job: Job) -> dict[Metric, tuple[float | None, ...]]:
        """The metrics of a job's rollouts and of each step; empty on a rank that logs none."""
        if job.depth is not Depth.STEP:
            return {}
        metrics = {metric for step in self._steps for metric in step}
        return {metric: (value,) for metric, value in self._rollouts.items()} | {
            metric: tuple(step.get(metric) for step in self._steps) for metric in metrics
        }

    def _collect(self, args: Any, metrics: Mapping[str, Any], **options: Any) -> None:
        """Keep the numbers of a training step, or of rollouts."""
        if known := _named(metrics, KEYS):
            self._steps.append(known)
        self._rollouts |= _named(metrics, KEYS_OF_ROLLOUTS)


def _named(numbers: Mapping[str, Any], keys: Mapping[str, Metric]) -> dict[Metric, float]:
    return {metric: float(numbers[key]) for key, metric in keys.items() if key in numbers}


LOG = Log()
