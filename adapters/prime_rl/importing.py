"""Imports prime-rl's trainer on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, stub, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

ROOTS = ("src", "packages/prime-rl-configs/src")
"""Folders of the repository that its package is imported from: the trainer, and configurations."""

GPU_PACKAGES = ("dion", "fla", "ring_flash_attn", "torchtitan")

SERVICES = ("prime_cli", "setproctitle", "verifiers", "wandb", "wandb_gql", "wandb_workspaces")

RUNS = ("tomli", "tomli_w")
"""What versions before August 2026 read and write the configurations of runs with."""

ORCHESTRATOR = ("prime_rl.configs.orchestrator",)
"""The configuration of an orchestrator, which versions before August 2026 read for each run."""

KERNELS = (
    "prime_rl.trainer.distributed.expert_parallel",
    "prime_rl.trainer.models.fp8",
    "prime_rl.trainer.models.kernels",
    "prime_rl.trainer.models.layers.fp8_grouped_gemm",
    "prime_rl.trainer.models.layers.mxfp8_grouped_gemm",
    "prime_rl.trainer.models.layers.mxfp8_linear",
    "prime_rl.trainer.rl.broadcast",
    "prime_rl.transports.weights",
)
"""Modules of prime-rl that hold kernels, or import them, for models and for inference engines."""

STUBBED: list[str] = []  # what `import_prime_rl` stubbed in this process


def import_prime_rl(source: Path | None) -> None:
    """Import the trainer, from the folders of a checkout if given."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    _prepare()
    import_from("prime_rl", [source / root for root in ROOTS] if source else [])
    module("trainer.rl.train")
    if _is_without_gpu():
        module("trainer.parallel_dims").device_type = "cpu"


def module(path: str) -> Any:
    """Import a module of prime-rl by its path below the package."""
    return importlib.import_module(f"prime_rl.{path}")


@cache
def _prepare() -> None:
    """Stub what no training step of ours enters, and let code for CUDA run on the CPU."""
    from adapters.toolkit import cuda_on_cpu, worlds

    cuda_on_cpu.install()
    worlds.sum_gradients_of_all_gather()
    stub([*KERNELS, *ORCHESTRATOR])
    missing = stub_missing([*GPU_PACKAGES, *SERVICES, *RUNS])
    STUBBED.extend([*missing, *KERNELS, *ORCHESTRATOR])


def _is_without_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()
