"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Job, Layout, Option, Rank
from adapters.engines.shells import ON_FOUR, OnFsdp, cuts
from adapters.verl.adapter import VerlAdapter, made_engine, new_worker
from adapters.verl.framework import FSDP, FSDP2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract.framework import Framework, Settings
    from adapters.toolkit.probe import Records

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

    def leave_world(self) -> None:
        """Take the models apart, and clear torch's cache of their meshes."""
        from adapters.engines import fsdp1

        super().leave_world()
        fsdp1.take_models_apart()

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer tells the gradient that it steps with."""
        from adapters.verl.model import PASSES

        worker = new_worker(role, config, rank)
        worker.gradients, worker.passes = _reader(made_engine(role, worker)), PASSES[role]
        return worker


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"
    framework = FSDP2


def _reader(engine: Any) -> Records[NDArray[np.float32] | None]:
    """The gradients of an engine's steps; None for a step skipped because it is not finite."""
    from adapters.engines import fsdp1
    from adapters.toolkit.probe import GradientReader, Records

    fsdp1.WRAPPED.append(engine.module)
    reader = GradientReader(engine.optimizer, partial(fsdp1.whole, engine.module))
    taken, step = Records["NDArray[np.float32] | None"](), engine.optimizer_step

    def optimizer_step() -> Any:
        norm = step()
        taken.append(reader.take())
        return norm

    engine.optimizer_step = optimizer_step
    return taken
