"""prime-rl's trainer, run on every rank: `train()` takes packed micro-batches to the last step."""

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

from adapters.contract import Option
from adapters.contract.objective import Metric, Objective
from adapters.prime_rl import custom_loss, several_runs, versions
from adapters.prime_rl.importing import module
from adapters.prime_rl.model import setup_model
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ForwardPasses, GradientReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract import Job, Layout, Rank
    from adapters.prime_rl.rollouts import Rollouts

NAMES = {Metric.POLICY_LOSS: "loss/mean", Metric.REJECTED: "is_masked/mean"}
"""Names of the metrics that prime-rl logs."""

LOSSES: dict[Objective, dict[str, object]] = {
    # It rejects a token whose probability has moved, up or down, whatever its advantage.
    Objective.REJECTION: {"type": "ipo", "kl_tau": 0.0},
    Objective.GPG: {"type": "custom", "import_path": custom_loss.PATH},
}
"""Losses other than the default one."""


class Training:
    """One run of the trainer, and what was read off it."""

    def __init__(self, job: Job, rollouts: Rollouts, capacity: int, rank: Rank) -> None:
        self._job, self._rank = job, rank
        self.passes, self._log = ForwardPasses(), several_runs.Log()
        self._readers: list[GradientReader] = []
        with tempfile.TemporaryDirectory(prefix="rl-loss-prime-rl-") as folder:
            rollouts.send(Path(folder))
            with _as_in_a_new_process(), self._replaced(capacity), cuda_on_cpu.redirected():
                module("trainer.rl.train").train.__wrapped__(self._config(Path(folder)))
            self._logs = _by_step([*self._log.history, *_logged(Path(folder) / "metrics.jsonl")])

    def gradients(self) -> list[NDArray[np.float32]]:
        """The probe's gradient of each optimizer step: [capacity]."""
        [reader] = self._readers
        return reader.drain()

    @property
    def reported(self) -> Mapping[Metric, tuple[float | None, ...]]:
        """What is logged of each step, on the first rank alone."""
        return {
            metric: tuple(log.get(name) for log in self._logs)
            for metric, name in NAMES.items()
            if any(name in log for log in self._logs)
        }

    def _config(self, folder: Path) -> Any:
        """The configuration of the job, as validated."""
        configs, layout = module("configs.trainer"), self._job.layout
        model = {
            "name": "probe",
            "attn": "flash_attention_2",
            "impl": "custom",
            "ep": 1,
            "cp": layout.cp,
            "dp_replicate": _copies(layout),
            "ac_offloading": None,
            "optim_cpu_offload": False,
        }
        loss = LOSSES.get(self._job.objective)
        settings = {
            "output_dir": folder,
            "max_steps": len(self._job.steps),
            "rollout_transport": {"type": "filesystem"},
            "optim": {"lr": 0.0, "weight_decay": 0.0, "max_norm": versions.no_clipping()},
            "model": versions.supported(configs.ModelConfig, model),
            "gc": None,
            "log": {"level": "error"},
            **({"loss": loss} if loss else {}),
        }
        return configs.TrainerConfig(**versions.supported(configs.TrainerConfig, settings))

    @contextmanager
    def _replaced(self, capacity: int) -> Iterator[None]:
        """Let the trainer make our model, tell its optimizer, and start nothing outside a step."""
        trainer = module("trainer.rl.train")
        real = trainer.setup_optimizer

        def setup_optimizer(*arguments: Any, **options: Any) -> Any:
            made = real(*arguments, **options)
            self._readers.append(GradientReader(made[0] if isinstance(made, tuple) else made))
            return made

        of_step = {
            "setup_model": setup_model(capacity, self.passes, self._rank.dtype),
            "setup_optimizer": setup_optimizer,
            "get_parallel_dims": self._parallel_dims(trainer.get_parallel_dims),
        }
        replaced = [(trainer, of_step), (trainer, WITHOUT_SERVICES), (torch.cuda, WITHOUT_GPU)]
        if versions.serves_several_runs():
            replaced += several_runs.replacements(self._log)
        with ExitStack() as stack:
            for home, names in replaced:
                stack.enter_context(mock.patch.multiple(home, **names))
            yield

    def _parallel_dims(self, make: Any) -> Any:
        """Makes the process groups of a world once for all of its jobs."""

        def cached(config: Any) -> Any:
            key = "parallel_dims", config.cp, config.dp_replicate
            if key not in self._rank.cache:
                self._rank.cache[key] = make(config)
            return self._rank.cache[key]

        return cached


WITHOUT_SERVICES: dict[str, Any] = {
    "setup_torch_distributed": lambda **_: None,
    "setup_weight_broadcast": lambda *_: None,
    "get_perf_counter": lambda *_: SimpleNamespace(
        count_tokens=lambda *_: None,
        get_tokens_per_second=lambda *_: 0.0,
        get_mfu=lambda *_: 0.0,
        get_step_tokens_per_second=lambda *_: 0.0,
        get_step_mfu=lambda *_: 0.0,
    ),
    "clip_grad_norm_": lambda *_, **__: torch.zeros(()),
}
"""Functions of the trainer's module: the world is there, speed is not looked at, and no gradient is
clipped."""

WITHOUT_GPU: dict[str, Any] = {
    "reset_peak_memory_stats": lambda: None,
    "max_memory_reserved": lambda: 0,
}


def _copies(layout: Layout) -> int:
    """The number of groups of ranks that each have a whole model."""
    if Option.NOT_SHARDED in layout.options:
        return layout.dp
    return 2 if Option.HYBRID_SHARDING in layout.options else 1


@contextmanager
def _as_in_a_new_process() -> Iterator[None]:
    """Forget the world and the monitors of a trainer that ran before, and its logger at the end."""
    module("trainer.world").reset_world()
    if not versions.serves_several_runs():
        module("monitors").MONITORS.clear()
    try:
        yield
    finally:
        module("utils.logger").reset_logger()


def _logged(file: Path) -> list[dict[str, float]]:
    """All that the file monitor has written, which is on the first rank alone."""
    return [*map(json.loads, file.read_text("utf-8").splitlines())] if file.exists() else []


def _by_step(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """What was logged of each step, by prime-rl's names."""
    steps: defaultdict[float, dict[str, float]] = defaultdict(dict)
    for row in rows:
        steps[row["step"]].update(row)
    return [steps[number] for number in sorted(steps)]
