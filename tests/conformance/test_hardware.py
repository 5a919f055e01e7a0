"""Devices and backends, on a machine that may have no GPU: its hardware is simulated."""

from pathlib import Path

import pytest
import torch

from adapters.native.adapter import NativeAdapter
from conformance.findings.errors import ConformanceError
from conformance.ranks.hardware import Backend, Device, Dtype, Hardware
from reference.rounding import weight_bound
from tests import command


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
    ("backend", "gpus", "message"),
    [
        (None, 0, "--device=cuda needs a GPU and torch finds none on this machine; give"),
        (
            "nccl",
            2,
            "a GPU for each rank, and 4 ranks are to share 2 here; give --max-ranks=2 or a smaller"
            " --layout, or --backend=gloo for CUDA tensors over gloo",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, gpus: int, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    with pytest.raises(ConformanceError) as caught:
        Hardware.of("cuda", backend, ranks=4)

    assert message in str(caught.value)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_precision_is_any_hardware_s(device: str) -> None:
    assert Hardware.of(device, None, 2, "bfloat16").dtype is Dtype.BFLOAT16
    with pytest.raises(ConformanceError, match="--dtype=fp8 is unknown; choose float32 or bfl"):
        Hardware.of(device, None, 2, "fp8")


def test_gpus_are_not_looked_for_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("CUDA was touched")

    monkeypatch.setattr(torch.cuda, "device_count", fail)

    assert Hardware.of("cpu", None, 8) == Hardware()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--device=cuda", "its torch engine with cpu alone; leave --device out"),
        ("--dtype=bfloat16", "its torch engine with float32 alone; leave --dtype out"),
    ],
)
def test_what_an_adapter_cannot_drive_its_framework_with_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str, words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(NativeAdapter, "devices", ("cpu",))
    monkeypatch.setattr(NativeAdapter, "dtypes", ("float32",))
    result = pytester.runpytest_inprocess("--adapter=native", option)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {option}: the adapter of native drives {words}" in result.stderr.str()


def test_narrow_parameters_conform_within_their_own_bound(tmp_path: Path) -> None:
    chosen = ("--layout=dp2-cp2-mb2-thd", "--checks=weights,metric", "-k", "uneven_lengths")
    result = command.run(tmp_path, "native", "--dtype=bfloat16", *chosen)
    findings = result.report.findings

    assert result.status == 0
    assert result.report.environment.dtype == "bfloat16"
    assert "cpu/gloo/bfloat16" in result.output
    weights = [finding for finding in findings if finding.check == "weights"]
    assert {finding.tolerance for finding in weights} == {weight_bound("bfloat16")}
    errors = [finding.error for finding in weights]
    assert 2**-12 < max(errors) <= 2**-8, "each gradient is rounded once, by half a unit at most"


def test_a_mistake_in_narrow_parameters_is_named_and_can_be_made_again(tmp_path: Path) -> None:
    chosen = ("--dtype=bfloat16", "--checks=weights", "--modes=token_mean", "-k", "fibonacci")
    result = command.run(tmp_path, "onetokenshort", *chosen, "--layout=dp2-cp1-mb1-bshd")
    [finding] = result.report.findings

    assert finding.verdict == "mismatch"
    assert finding.diagnosis.name == "count_off_by_one"
    assert finding.diagnosis.numbers["denominator"] == pytest.approx(31, rel=2**-8)
    assert finding.diagnosis.numbers["expected_denominator"] == 32
    assert "--engine=torch --dtype=bfloat16 --layout=" in result.output
