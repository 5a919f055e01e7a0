"""unsloth_zoo's `grpo_compute_loss`, which Unsloth puts into TRL's trainer."""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import TYPE_CHECKING, Any

from adapters.contract.tables import read_departures
from adapters.toolkit.imports import import_from
from adapters.trl_losses.adapter import LossAdapter, PaddedRows, micro_batches
from reference.aggregation import Mode

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from adapters.contract import Job


class UnslothAdapter(LossAdapter):
    """Drives unslothai/unsloth-zoo."""

    name = "unsloth"
    package = "unsloth_zoo"
    distribution = "unsloth_zoo"
    versions = (
        "unsloth_zoo since 2026.8.17, and earlier releases only where torch has an accelerator"
    )
    tree = ("unsloth_zoo",)
    default_mode = Mode.SAMPLE_MEAN
    departures = read_departures("adapters.trl_losses", "unsloth")

    def load(self, source: Path | None) -> None:
        """Import the replacements of TRL's functions."""
        os.environ.setdefault("UNSLOTH_ZOO_DISABLE_GPU_INIT", "1")
        with tempfile.TemporaryDirectory(prefix="rl-loss-unsloth-") as folder:
            # the folder for generated code, which is written even at import
            os.environ["UNSLOTH_COMPILE_LOCATION"] = folder
            import_from("unsloth_zoo", [source] if source else [])
            _replacements()

    def loss(self, job: Job, log_probs: Tensor, rows: PaddedRows, advantages: Tensor) -> Tensor:
        """The loss of a micro-batch, which the function itself scales for all micro-batches."""
        parts = micro_batches(job)
        found: Tensor = _replacements()["grpo_compute_loss"](
            ref=rows.reference_log_probs,
            new=log_probs,
            old=rows.old_log_probs,
            sampling_per_token_logps=None,
            input_ids=rows.ids,
            mask=rows.mask,
            advantages=advantages,
            num_items_in_batch=rows.items,
            num_processes=job.layout.dp,
            current_gradient_accumulation_steps=parts,
            steps_per_generation=parts,
            **self.settings(job),
        )[0]
        return found


def _replacements() -> dict[str, Any]:
    """The functions that Unsloth replaces in TRL, by name."""
    found: dict[str, Any] = importlib.import_module("unsloth_zoo.rl_replacements").RL_REPLACEMENTS
    return found
