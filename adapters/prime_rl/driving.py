"""prime-rl's trainer, run on every rank: `train()` takes packed micro-batches for all steps."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from adapters.prime_rl.importing import configured, module
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.calls import nothing
from adapters.toolkit.probe import ForwardPasses, GradientReader, ProbedTransformer
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from adapters.contract import Rank, Settings
    from adapters.prime_rl.rollouts import PrimeRLRollouts
    from reference.arrays import Gradient


class PrimeRLTraining:
    """One run of the trainer, with its gradients, forward passes and logs."""

    def __init__(
        self, settings: Settings, rollouts: PrimeRLRollouts, capacity: int, rank: Rank
    ) -> None:
        self._rank = rank
        self.passes, self._history = ForwardPasses(), list[dict[str, Any]]()
        self._readers: list[GradientReader] = []
        with tempfile.TemporaryDirectory(prefix="rl-loss-prime-rl-") as folder:
            rollouts.send(Path(folder))
            of_model = capacity, rollouts.head
            with _fresh_process(), self._replaced(*of_model), cuda_on_cpu.redirected():
                config = configured({**settings, "output_dir": Path(folder)})
                module("trainer.rl.train").train.__wrapped__(config)
            self.logs = _step_logs([*self._history, *_logged(Path(folder) / "metrics.jsonl")])

    def gradients(self) -> list[Gradient]:
        """The probe's gradient of each optimizer step: [capacity]."""
        [reader] = self._readers
        return reader.drain()

    @contextmanager
    def _replaced(self, capacity: int, head: Callable[..., Any]) -> Iterator[None]:
        """Let the trainer make our model, give us its optimizer, and start no services."""
        trainer = module("trainer.rl.train")
        real, make_dims = trainer.setup_optimizer, trainer.get_parallel_dims

        def get_parallel_dims(config: Any) -> Any:
            """The process groups, made once for all jobs of a world."""
            key = "parallel_dims", config.cp, config.dp_replicate
            return cached(self._rank, key, lambda: make_dims(config))

        def setup_optimizer(*arguments: Any, **options: Any) -> Any:
            made = real(*arguments, **options)
            self._readers.append(GradientReader(made[0] if isinstance(made, tuple) else made))
            return made

        of_step = {
            "setup_model": setup_model(capacity, self.passes, self._rank.dtype, head),
            "setup_optimizer": setup_optimizer,
            "get_parallel_dims": get_parallel_dims,
        }
        replaced = [
            (trainer, of_step),
            (trainer, WITHOUT_SERVICES),
            (torch.cuda, WITHOUT_GPU),
            *_older_trainer_patches(self._history),
        ]
        with ExitStack() as stack:
            for home, names in replaced:
                stack.enter_context(mock.patch.multiple(home, **names))
            yield


WITHOUT_SERVICES: dict[str, Any] = {
    "setup_torch_distributed": nothing,
    "setup_weight_broadcast": lambda *_, **__: SimpleNamespace(
        broadcast_weights=nothing, maybe_clean=nothing
    ),
    "get_perf_counter": lambda *_: SimpleNamespace(
        count_tokens=nothing,
        get_tokens_per_second=lambda *_: 0.0,
        get_mfu=lambda *_: 0.0,
        get_step_tokens_per_second=lambda *_: 0.0,
        get_step_mfu=lambda *_: 0.0,
    ),
    "clip_grad_norm_": lambda *_, **__: torch.zeros(()),
}
"""Stubs of the trainer's functions: the world exists already, speed is not measured, and gradients
are not clipped."""

WITHOUT_GPU: dict[str, Any] = {"reset_peak_memory_stats": nothing, "max_memory_reserved": lambda: 0}

ONLY_RUN = SimpleNamespace(max_runs=1, used_idxs=(), synchronize_state=nothing)
"""A stub of the manager of runs, without configurations or LoRA adapters of single runs."""

PACKER = SimpleNamespace(pack=nothing, _arm_watchdog=nothing, _disarm_watchdog=nothing)
"""A stub of the first rank's packer, because micro-batches are packed and sent already."""


def _older_trainer_patches(history: list[dict[str, Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields modules with replacements of attributes that only some versions have.

    Before August 2026 the trainer served several runs and packed their samples, and before August
    15 it created its monitor itself, whose ``history`` it also reads.
    """

    def log(metrics: Mapping[str, Any], step: int) -> None:
        history.append({**metrics, "step": step})

    of_trainer: dict[str, Any] = {
        "build_bin_cost": lambda _: sum,
        "setup_multi_run_manager": lambda *_, **__: ONLY_RUN,
        "setup_monitor": lambda *_, **__: SimpleNamespace(log=log, history=history),
        "setup_tokenizer": nothing,
    }
    of_loader = {"get_multi_run_manager": lambda: ONLY_RUN, "setup_packer": lambda **_: PACKER}
    for path, replaced in (("trainer.rl.train", of_trainer), ("trainer.rl.data", of_loader)):
        home = module(path)
        if of_version := {name: one for name, one in replaced.items() if hasattr(home, name)}:
            yield home, of_version


@contextmanager
def _fresh_process() -> Iterator[None]:
    """Reset the world and the monitors of an earlier trainer, and at the end the logger."""
    module("trainer.world").reset_world()
    if hasattr(module("trainer.rl.train"), "monitors"):
        module("monitors").MONITORS.clear()
    try:
        yield
    finally:
        module("utils.logger").reset_logger()


def _logged(file: Path) -> list[dict[str, float]]:
    """All metrics that the file monitor has written; only the first rank has a file."""
    return [*map(json.loads, file.read_text("utf-8").splitlines())] if file.exists() else []


def _step_logs(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The logged numbers of each step, by prime-rl's names."""
    steps: defaultdict[float, dict[str, float]] = defaultdict(dict)
    for row in rows:
        steps[row["step"]].update(row)
    return [steps[number] for number in sorted(steps)]


def setup_model(
    capacity: int, passes: ForwardPasses, dtype: str, head: Callable[..., Any]
) -> Callable[..., ProbedTransformer]:
    """A stub of prime-rl's `setup_model`, which makes the probe instead of loading a checkpoint."""

    def setup(config: Any, parallel_dims: Any, *_: object) -> ProbedTransformer:
        of_model = SimpleNamespace(vocab_size=capacity, tie_word_embeddings=True)
        policy = ProbedTransformer(capacity, passes, head, of_model)
        models = module("trainer.model")
        policies = mock.patch.object(models, "MixedPrecisionPolicy", _dtype_policy(models, dtype))
        with policies:
            models.setup_fsdp(policy, config, parallel_dims)
        return policy

    return setup


def _dtype_policy(models: Any, dtype: str) -> Callable[..., Any]:
    """FSDP2's mixed-precision policy with this dtype instead of prime-rl's fixed bfloat16."""
    policy = models.MixedPrecisionPolicy
    return lambda **options: policy(**options | {"param_dtype": getattr(torch, dtype)})


def policy_gradient(inputs: Any) -> Any:
    """A user's custom loss: the policy gradient of a sample, without ratios.

    The loss is summed over tokens, as prime-rl documents for custom losses.
    """
    losses = -inputs.advantages * inputs.trainer_logprobs
    return module("trainer.rl.loss").LossOutputs(loss=losses[inputs.loss_mask].sum(), metrics={})
