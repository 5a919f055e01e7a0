"""The ranks that a run may have, their devices and dtypes, and their backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from conformance.findings.errors import InvalidHardwareError, InvalidSettingsError
from reference import did_you_mean

if TYPE_CHECKING:
    from typing import Self

_Choice = TypeVar("_Choice", bound=StrEnum)


MAX_RANKS = 8
"""Largest number of ranks of a layout, unless the user allows more."""


@dataclass(frozen=True, kw_only=True)
class RankBudget:
    """The largest number of ranks of a run, and of ranks on this machine.

    ``rule`` is the option or setting that limits the number. ``way_out`` tells how to change the
    limit, with ``{needed}`` for the number of ranks.
    """

    ranks: int
    here: int
    rule: str
    way_out: str

    @classmethod
    def of(cls, max_ranks: int) -> RankBudget:
        """The budget of a run whose ranks are all on this machine."""
        return cls(
            ranks=max_ranks,
            here=max_ranks,
            rule=f"--max-ranks is {max_ranks}",
            way_out="raise --max-ranks to {needed}",
        )

    def way_out_for(self, ranks: int) -> str:
        """A hint on how to get this number of ranks."""
        return self.way_out.format(needed=ranks)


class Device(StrEnum):
    """The device that holds the tensors of a rank."""

    CPU = "cpu"
    CUDA = "cuda"


class Backend(StrEnum):
    """The communication backend of torch.distributed."""

    GLOO = "gloo"
    NCCL = "nccl"


class Dtype(StrEnum):
    """The dtype of a model's parameters; losses are always in float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device, one backend and one precision for all ranks."""

    device: Device = Device.CPU
    backend: Backend = Backend.GLOO
    dtype: Dtype = Dtype.FLOAT32

    @classmethod
    def of(cls, device: str, backend: str | None, ranks: int, dtype: str = Dtype.FLOAT32) -> Self:
        """Check the options of a user for a number of ranks on this machine.

        The default backend is nccl if each rank has a GPU of its own, else gloo.

        Raises:
            InvalidSettingsError: an option has an unknown value.
            InvalidHardwareError: this machine lacks the hardware, or has too few GPUs.
        """
        chosen = choice(Device, "device", device)
        precision = choice(Dtype, "dtype", dtype)
        asked = None if backend is None else choice(Backend, "backend", backend)
        if chosen is Device.CPU:
            _require_no_nccl(asked)
            return cls(dtype=precision)
        found = _require_gpus()
        if asked is Backend.NCCL and ranks > found:
            raise InvalidHardwareError(
                f"--backend=nccl takes a GPU for each rank, and {ranks} ranks are to share"
                f" {found} here",
                f"give --max-ranks={found} or a smaller --layout, or --backend=gloo for CUDA"
                " tensors over gloo",
            )
        enough = Backend.NCCL if ranks <= found else Backend.GLOO
        return cls(device=chosen, backend=asked or enough, dtype=precision)


ON_CPU = Hardware()


def gpus() -> int:
    """The number of GPUs that this machine has for torch."""
    import torch

    return torch.cuda.device_count()


def choice(known: type[_Choice], option: str, text: str) -> _Choice:
    """The value of an option as a member of ``known``.

    Raises:
        InvalidSettingsError: the text is not a known value.
    """
    try:
        return known(text)
    except ValueError:
        raise InvalidSettingsError(
            f"--{option}={text} is unknown",
            did_you_mean(text, known, f"choose {' or '.join(known)}"),
        ) from None


def _require_no_nccl(asked: Backend | None) -> None:
    if asked is Backend.NCCL:
        raise InvalidHardwareError(
            "--backend=nccl carries CUDA tensors only and --device is cpu",
            "give --device=cuda, or --backend=gloo",
        )


def _require_gpus() -> int:
    found = gpus()
    if not found:
        raise InvalidHardwareError(
            "--device=cuda needs a GPU and torch finds none on this machine",
            "give --device=cpu, or install a torch that is built for CUDA where there is one",
        )
    return found
