"""Runs on GPUs, over NCCL or gloo, find what runs on the CPU find, with every framework.

Traces, which follow tensors on the GPU, find the same lines, too.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests import command
from tests.pools import clone

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch finds no GPU here"),
]


@dataclass(frozen=True)
class Engine:
    """A framework's engine, and the commit of a clone if the framework is not installed."""

    adapter: str
    engine: str
    ref: str | None = None

    def __str__(self) -> str:
        return f"{self.adapter}-{self.engine}"

    @property
    def options(self) -> list[str]:
        """The options that choose the engine and its source."""
        chosen = [f"--engine={self.engine}"]
        if self.ref is None:
            return chosen
        return [*chosen, f"--source={clone(self.adapter)}@{self.ref}"]


ENGINES = [
    Engine("native", "torch"),
    Engine("skyrl", "fsdp"),
    Engine("skyrl", "megatron"),
    Engine("slime", "megatron", "refs/pull/2090/head"),
    Engine("miles", "megatron", "refs/pull/1498/head"),
    Engine("miles", "fsdp", "refs/pull/1498/head"),
    Engine("verl", "fsdp"),
    Engine("verl", "fsdp2"),
    Engine("verl", "megatron"),
]


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        ("dp1-cp1-mb2-thd", "nccl"),
        ("dp2-cp1-mb2-thd", "gloo"),
        ("dp4-cp1-mb2-thd", "gloo"),
        ("dp2-cp2-mb2-thd", "gloo"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_findings_are_those_of_the_cpu(
    tmp_path: Path, engine: Engine, layout: str, backend: str
) -> None:
    chosen = (*engine.options, f"--layout={layout}", "--checks=weights,metric")
    chosen = (*chosen, "-k", "uneven_lengths or one_token")
    on_cpu = run(tmp_path / "cpu", engine, *chosen)
    on_gpu = run(tmp_path / "gpu", engine, *chosen, "--device=cuda", f"--backend={backend}")

    environment = on_gpu.report.environment
    assert (environment.device, environment.backend) == ("cuda", backend)
    assert verdicts(on_gpu) == verdicts(on_cpu), on_gpu.output
    assert suspects(on_gpu) == suspects(on_cpu), on_gpu.output
    assert on_gpu.status == on_cpu.status


def test_every_check_finds_on_cuda_what_it_finds_on_the_cpu(tmp_path: Path) -> None:
    """This includes checks of rollouts, of metrics and of models other than the actor."""
    engine, layout = Engine("native", "torch"), "--layout=dp1-cp1-mb2-thd"
    on_cpu = run(tmp_path / "cpu", engine, layout)
    on_gpu = run(tmp_path / "gpu", engine, layout, "--device=cuda")
    assert verdicts(on_gpu) == verdicts(on_cpu), on_gpu.output


@pytest.mark.parametrize("layout", ["dp1-cp1-mb1-thd", "dp2-cp1-mb1-thd"])
def test_a_wrong_count_is_traced_to_its_line(tmp_path: Path, layout: str) -> None:
    """The adapter counts tokens in Python, and divides a tensor on the GPU by the count."""
    chosen = (f"--layout={layout}", "--checks=weights", "--modes=token_mean", "--device=cuda")
    engine = Engine("onetokenshort", "torch")
    found = run(tmp_path, engine, *chosen, "--backend=gloo", "--case=uneven_lengths")
    assert [function for [(_, _, function), *_] in suspects(found).values()] == ["divided"]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_bfloat16_is_judged_like_float32(tmp_path: Path, engine: Engine) -> None:
    """bfloat16 has a wider bound, but the mistakes that float32 shows exceed that, too."""
    chosen = (*engine.options, "--layout=dp1-cp1-mb2-thd", "--checks=weights")
    chosen = (*chosen, "-k", "uneven_lengths", "--device=cuda")
    single = run(tmp_path / "float32", engine, *chosen)
    half = run(tmp_path / "bfloat16", engine, *chosen, "--dtype=bfloat16")

    assert half.report.environment.dtype == "bfloat16"
    assert verdicts(half) == verdicts(single), half.output


def run(folder: Path, engine: Engine, *arguments: str) -> command.Result:
    """Run pytest in a new process: one forked after CUDA was initialized could not use it."""
    process = command.start(folder, f"--adapter={engine.adapter}", *arguments)
    return command.finish(process, folder, engine.adapter)


def verdicts(result: command.Result) -> dict[str, str]:
    """The verdicts by finding; unlike them, weights may differ between devices in the last bits."""
    return {finding.id: finding.verdict for finding in result.report.findings}


def suspects(result: command.Result) -> dict[str, list[tuple[str, int, str]]]:
    """The lines to look at for each cause: file, number and function."""
    return {
        cause.findings[0]: [(line.file, line.line, line.function) for line in cause.suspects]
        for cause in result.report.causes
    }
