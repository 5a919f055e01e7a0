"""CUDA tensors over NCCL and over gloo find what the CPU finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import command

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch finds no GPU here"),
]


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        ("dp1-cp1-mb2-thd", "nccl"),
        ("dp2-cp1-mb2-thd", "gloo"),
        ("dp2-cp2-mb2-thd", "gloo"),
    ],
)
def test_findings_are_those_of_the_cpu(tmp_path: Path, layout: str, backend: str) -> None:
    chosen = (f"--layout={layout}", "--checks=weights,metric", "-k", "uneven_lengths or one_token")
    on_cpu = command.run(tmp_path / "cpu", "native", *chosen)
    cuda = ("--device=cuda", f"--backend={backend}")
    on_gpu = command.run(tmp_path / "gpu", "native", *chosen, *cuda)

    environment = on_gpu.report["environment"]
    assert on_gpu.status == 0, on_gpu.output
    assert (environment["device"], environment["backend"]) == ("cuda", backend)
    assert verdicts(on_gpu) == verdicts(on_cpu)


def verdicts(result: command.Result) -> dict[str, str]:
    """Weights of two devices may differ in their last bits, but not in what is made of them."""
    return {finding["id"]: finding["verdict"] for finding in result.report["findings"]}
