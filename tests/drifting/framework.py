"""A framework of functions that fail; its adapter hands them objects of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Actor:
    """A worker whose constructor no adapter can run."""

    def __init__(self) -> None:
        self.mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (1,))

    def size(self) -> int:
        """Read an attribute that only the constructor sets."""
        return int(self.mesh.size())

    def rank(self) -> object:
        """Read an attribute that is never set."""
        return self.local_rank  # type: ignore[attr-defined]


def read_new_attribute(bridge: Any) -> object:
    """Read an attribute that only the bridge of a later release has."""
    return bridge.TransformerConfigClass


def call_with_losses(callback: Callable[..., object]) -> object:
    """Pass a keyword that was added later."""
    return callback(losses=1)


def call_module(module: torch.nn.Module) -> object:
    """Pass a keyword that was added later, through torch."""
    return module(torch.ones(1), attention_mask=None)


def import_new_package() -> None:
    """Import a package that a later release depends on."""
    import werkzeug_of_a_later_release  # type: ignore[import-not-found] # noqa: F401


def import_moved_module() -> None:
    """Import a module of the framework by its old name."""
    import tests.drifting.framework.moved  # type: ignore[import-not-found] # noqa: F401


def refuse(mode: str) -> None:
    """Raise an error with a message on purpose."""
    raise ValueError(
        f"\n{mode} is not supported with per-token losses;\nuse token-mean, or turn them off"
    )


def insist(tokens: int) -> None:
    """Fail an assert that has a message."""
    assert tokens > 0, f"Sequence at index {tokens} is fully masked."


def insist_without_words(tokens: int) -> None:
    """Fail an assert without a message."""
    assert tokens > 0, f"{tokens} {tokens + 1}"


def look_up(metrics: dict[str, float]) -> float:
    """Look up a metric that is missing."""
    return metrics["global_valid_toks"]


def concatenate() -> torch.Tensor:
    """Call a function of torch wrongly, while calls for CUDA are redirected to the CPU."""
    return torch.cat([torch.ones(())])


def call(callback: Callable[[], object]) -> object:
    """Call the adapter back."""
    return callback()


def setup(losses: int) -> int:
    """Take an argument that was added later; adapters replace this function."""
    return losses


def call_setup() -> object:
    """Pass an argument that was added later."""
    return setup(losses=1)


def import_megatron() -> None:
    """Import a name of an optional dependency that is not installed."""
    raise ModuleNotFoundError("No module named 'megatron'", name="megatron")


def read_newer_python() -> None:
    """Parse a file that needs a newer Python than any that exists."""
    compile("lazy import torch", "areal/newer.py", "exec")
