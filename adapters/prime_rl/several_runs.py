"""The trainer of versions before August 2026, with one run in the place of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.prime_rl.importing import module

if TYPE_CHECKING:
    from collections.abc import Mapping

ONLY_RUN = SimpleNamespace(max_runs=1, used_idxs=(), synchronize_state=lambda: None)
"""Stands for the manager of runs: none has a configuration or an adapter of its own."""

PACKER = SimpleNamespace(
    pack=lambda: None, _arm_watchdog=lambda: None, _disarm_watchdog=lambda: None
)
"""Stands for the packer on the first rank: micro-batches are packed and sent already."""


class Log:
    """Keeps what is logged, as the trainer's monitor does."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Keep metrics of a step."""
        self.history.append({**metrics, "step": step})


def replacements(log: Log) -> list[tuple[Any, dict[str, Any]]]:
    """Modules, each with what to replace in it, where the trainer serves several runs."""
    of_trainer: dict[str, Any] = {
        "setup_multi_run_manager": lambda *_: ONLY_RUN,
        "setup_monitor": lambda *_, **__: log,
        "setup_tokenizer": lambda *_: None,
    }
    of_loader = {
        "get_multi_run_manager": lambda: ONLY_RUN,
        "setup_packer": lambda **_: PACKER,
    }
    trainer = module("trainer.rl.train")
    if hasattr(trainer, "build_bin_cost"):  # from June 2026 on, for the packer
        of_trainer["build_bin_cost"] = lambda _: sum
    return [(trainer, of_trainer), (module("trainer.rl.data"), of_loader)]
