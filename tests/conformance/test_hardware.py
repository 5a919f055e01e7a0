"""Devices and backends, on a machine that may have no GPU: what it has is made up."""

from __future__ import annotations

import pytest
import torch

from conformance.hardware import Backend, Device, Hardware, InvalidHardwareError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "backend", "ranks", "expected"),
    [
        ("cpu", None, 8, Hardware()),
        ("cpu", "gloo", 8, Hardware()),
        ("cuda", None, 2, Hardware(device=Device.CUDA, backend=Backend.NCCL)),
        ("cuda", None, 3, Hardware(device=Device.CUDA, backend=Backend.GLOO)),
        ("cuda", "gloo", 2, Hardware(device=Device.CUDA, backend=Backend.GLOO)),
        ("cuda", "nccl", 2, Hardware(device=Device.CUDA, backend=Backend.NCCL)),
    ],
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu(
    device: str, backend: str | None, ranks: int, expected: Hardware
) -> None:
    assert Hardware.of(device, backend, ranks) == expected


@pytest.mark.parametrize(
    ("device", "backend", "gpus", "message"),
    [
        ("tpu", None, 2, "--device=tpu is unknown; choose cpu or cuda"),
        ("cuda", "mpi", 2, "--backend=mpi is unknown; choose gloo or nccl"),
        ("cpu", "nccl", 2, "--device is cpu; give --device=cuda, or --backend=gloo"),
        ("cuda", None, 0, "--device=cuda needs a GPU and torch finds none on this machine; give"),
        (
            "cuda",
            "nccl",
            2,
            "a GPU for each rank, and 4 ranks are to share 2 here; give --max-ranks=2 or a smaller"
            " --layout, or --backend=gloo for CUDA tensors over gloo",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str | None, gpus: int, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    with pytest.raises(InvalidHardwareError) as caught:
        Hardware.of(device, backend, ranks=4)

    assert message in str(caught.value)


def test_gpus_are_not_looked_for_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("CUDA was touched")

    monkeypatch.setattr(torch.cuda, "device_count", fail)

    assert Hardware.of("cpu", None, 8) == Hardware()


def test_a_device_that_the_adapter_does_not_know_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    result = pytester.runpytest_inprocess("--adapter=skyrl", "--device=cuda")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.re_match_lines([r"ERROR: --device=cuda: the adapter of skyrl drives it on cpu"])
