"""Liger-Kernel's `LigerFusedLinearGRPOLoss`, which goes from hidden states to the loss."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from adapters.contract import Job, Objective
from adapters.contract.tables import read_departures
from adapters.toolkit.calls import call_supported
from adapters.toolkit.imports import import_from
from adapters.trl_losses.adapter import LossAdapter, PaddedRows, micro_batches
from reference.aggregation import Mode

if TYPE_CHECKING:
    from pathlib import Path

    import torch


LOSSES = "liger_kernel.chunked_loss"

COUNT = "num_items_in_batch"
DIVIDED_BY_TOKENS = ("dapo", "cispo", "vespo")
"""Loss types that the function divides by the token count of all micro-batches, if the count is
given."""


class LigerAdapter(LossAdapter):
    """Drives linkedin/Liger-Kernel."""

    name = "liger"
    package = "liger_kernel"
    distribution = "liger-kernel"
    versions = "Liger-Kernel since 0.7.0"
    tree = ("src/liger_kernel",)
    roots = ("src",)
    default_mode = Mode.TOKEN_MEAN
    departures = read_departures("adapters.trl_losses", "liger")

    def load(self, source: Path | None) -> None:
        """Import the chunked losses, which need no Triton."""
        import_from("liger_kernel", [source / "src", source] if source else [])
        importlib.import_module(LOSSES)

    def option_names(self) -> frozenset[str]:
        """The arguments of the loss's constructor."""
        return frozenset(inspect.signature(_loss_class()).parameters)

    def loss(
        self, job: Job, log_probs: torch.Tensor, rows: PaddedRows, advantages: torch.Tensor
    ) -> torch.Tensor:
        """The fused loss, divided by the number of micro-batches if it is a micro-batch mean."""
        import torch

        from adapters.toolkit.probe import CERTAIN_LOGIT

        chosen = self.settings(job)
        function = _loss_class()(
            compiled=False, use_ref_model=job.objective is Objective.KL, **chosen
        )
        found, _ = call_supported(
            function.forward,
            # Logits of padding and of the token, whose softmax in float32 is 1 and exp(-64).
            torch.stack([torch.full_like(log_probs, CERTAIN_LOGIT), log_probs], dim=-1),
            torch.eye(2),
            torch.ones_like(rows.ids),
            rows.mask,
            advantages,
            old_per_token_logps=rows.old_log_probs - CERTAIN_LOGIT,
            ref_per_token_logps=rows.reference_log_probs - CERTAIN_LOGIT,
            **{COUNT: rows.items},
        )
        assert isinstance(found, torch.Tensor)
        takes_count = COUNT in inspect.signature(function.forward).parameters
        whole = takes_count and chosen["loss_type"] in DIVIDED_BY_TOKENS
        return found if whole else found / micro_batches(job)


def _loss_class() -> Any:
    return importlib.import_module(LOSSES).LigerFusedLinearGRPOLoss
