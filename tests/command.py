"""Runs pytest as a user does, in its own process and folder, with broken adapters installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import broken, broken_rarely, broken_skyrl, faulty

ROOT = Path(__file__).parents[1]

SOURCES = "RL_LOSS_CONFORMANCE_SOURCES"
"""Environment variable: a folder of clones, such as ``SkyRL``, for what is on no package index."""


@dataclass(frozen=True)
class Result:
    """What a finished run left."""

    status: int
    output: str
    report_path: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report, as any reader of JSON would have it."""
        document: dict[str, Any] = json.loads(self.report_path.read_text())
        return document

    @property
    def findings(self) -> bytes:
        """The findings as bytes, to compare runs."""
        return json.dumps(self.report["findings"]).encode()


def start(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), torchrun: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start ``pytest`` in a folder where every class of `tests.broken` is an adapter.

    ``prefix`` is a program that starts it in turn, such as ``prlimit``; with options of torchrun,
    that starts it.
    """
    launcher = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
    program = [*prefix, sys.executable, *launcher, "-m", "pytest", "-p", "no:cacheprovider"]
    install_broken_adapters(folder / "site")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)])}
    return subprocess.Popen(
        [*program, *arguments],
        cwd=folder,
        env={k: v for k, v in environment.items() if not k.startswith(("PYTEST_", "_RL_LOSS"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore SIGINT, and hand that on to all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str], folder: Path, adapter: str) -> Result:
    """Wait for a run to end."""
    output, _ = process.communicate(timeout=600)
    return Result(process.returncode, output, folder / "reports" / "latest" / f"{adapter}.json")


def run(folder: Path, adapter: str, *arguments: str, torchrun: Sequence[str] = ()) -> Result:
    """Run ``pytest --adapter=ADAPTER …`` to its end."""
    process = start(folder, f"--adapter={adapter}", *arguments, torchrun=torchrun)
    return finish(process, folder, adapter)


def interrupt(process: subprocess.Popen[str], sign: signal.Signals) -> None:
    """Signal all of a run's processes, as a terminal does on Ctrl-C."""
    os.killpg(process.pid, sign)


def install_broken_adapters(site: Path) -> None:
    """Declare them as an installed distribution would, by entry points."""
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{name.lower()} = {module.__name__}:{name}"
        for module in (broken, broken_rarely, broken_skyrl, faulty)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    (info / "entry_points.txt").write_text(
        "[rl_loss_conformance.adapters]\n" + "\n".join(lines) + "\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
