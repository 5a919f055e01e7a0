"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Job, Layout, Option, Rank
from adapters.engines.shells import ON_FOUR, OnFsdp, cuts
from adapters.verl.adapter import VerlAdapter, made_engine, new_worker
from adapters.verl.framework import FSDP, FSDP2

if TYPE_CHECKING:
    from adapters.contract.framework import Framework, Settings

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in verl


class VerlFsdpAdapter(OnFsdp, VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    framework: ClassVar[Framework] = FSDP
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows.

        The layout options need packed rows.
        """
        hybrid, legacy = (Option.HYBRID_SHARDING,), (Option.LEGACY_TRAINER,)
        epochs = (Option.TWO_EPOCHS,)
        plain = [
            layout
            for layout in cuts(ON_FOUR, "bshd", "thd")
            if layout.cp == 1 or layout.format == "thd"
        ]
        return [
            *plain,
            Layout(dp=4, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, cp=2, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, micro_batches=2, format="thd", options=(Option.NOT_SHARDED,)),
            Layout(dp=2, micro_batches=2, format="thd", options=epochs),
            Layout(dp=2, micro_batches=2, format="thd", options=legacy),
            Layout(cp=2, micro_batches="tokens", format="thd", options=legacy),
        ]

    def settings(self, job: Job, dtype: str) -> Settings:
        """The options of a job, with parameters in the dtype of the run."""
        precisions = {
            "param_dtype": PRECISIONS[dtype],
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        }
        return {**super().settings(job, dtype), "fsdp_config.mixed_precision": precisions}

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer tells the gradient that it steps with."""
        from adapters.engines import fsdp1
        from adapters.verl.model import PASSES

        worker = new_worker(role, config, rank)
        engine = made_engine(role, worker)
        worker.gradients = fsdp1.gradients_of_steps(engine, engine.module)
        worker.passes = PASSES[role]
        return worker


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"
    framework = FSDP2
