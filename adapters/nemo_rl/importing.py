"""Imports NeMo-RL's trainers and workers on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import typing
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, provide, stub, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = ("decord", "mlflow", "nvtx", "plotly", "pynvml", "soundfile", "swanlab", "wandb")
"""Packages that follow a run or read media."""

OF_DATA = ("nemo_rl.data.datasets",)
"""NeMo-RL's data sets, which are read by packages for images and sound."""

KERNELS = (
    "nemo_automodel.components._peft.lora_kernel",
    "nemo_automodel.components.quantization",
)
"""Modules of Automodel that hold kernels, or want torchao."""

STUBBED: list[str] = []  # what `import_nemo_rl` stubbed in this process


def import_nemo_rl(source: Path | None) -> None:
    """Import the trainers, the policy and its worker, from a checkout if given."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    _prepare()
    import_from("nemo_rl", [source] if source else [])
    for path in ("algorithms.grpo", "algorithms.sft", "models.policy.lm_policy"):
        module(path)
    module("models.policy.workers.dtensor_policy_worker")


def import_second_worker() -> None:
    """Import the worker that builds on Automodel; raises `ImportError` without Automodel."""
    module("models.policy.workers.dtensor_policy_worker_v2")


def module(path: str) -> Any:
    """Import a module of NeMo-RL by its path below the package."""
    return importlib.import_module(f"nemo_rl.{path}")


def example(name: str) -> Path:
    """The file of one of NeMo-RL's example configurations, which lie beside the package."""
    from pathlib import Path

    return Path(module("package_info").__file__).parents[1] / "examples" / "configs" / name


@cache
def _prepare() -> None:
    """Stub what no training step of ours enters, and let code for CUDA run on the CPU."""
    from adapters.toolkit import cuda_on_cpu

    if sys.version_info < (3, 12):  # pydantic takes no others there, and NeMo-RL wants 3.13
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    cuda_on_cpu.install()
    stub([*OF_DATA, *KERNELS])
    STUBBED.extend([*stub_missing(SERVICES), *OF_DATA, *KERNELS])
    if importlib.util.find_spec("matplotlib") is None:
        provide("matplotlib", pyplot=SimpleNamespace(Figure=object))
        STUBBED.append("matplotlib")
