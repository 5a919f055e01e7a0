"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.engines.shells import OnFsdp
from adapters.verl.adapter import VerlAdapter, made_engine, new_worker
from adapters.verl.framework import FSDP, FSDP2

if TYPE_CHECKING:
    from adapters.contract import Framework, Job, Layout, Rank, Settings

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # verl's names of dtypes


class VerlFsdpAdapter(OnFsdp, VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    framework: ClassVar[Framework] = FSDP
    dependencies = ("ray", "tensordict", "transformers")

    def settings(self, job: Job, dtype: str) -> Settings:
        """The options of a job, with parameters in the dtype of the run."""
        precisions = {
            "param_dtype": PRECISIONS[dtype],
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        }
        return {**super().settings(job, dtype), "fsdp_config.mixed_precision": precisions}

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer records the gradient of each step."""
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
