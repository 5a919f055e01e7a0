"""Wall time of the whole suite on SkyRL over the time its ranks spend in SkyRL's own code."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import command


def main() -> None:
    """Print the ratio, and the time to start against one plain import of the framework."""
    with tempfile.TemporaryDirectory() as folder:
        result = command.run(Path(folder), "skyrl")
        findings = len(result.report["findings"])
    found = re.search(r"([\d.]+) s to start, ([\d.]+) s to run, of which ([\d.]+) s", result.output)
    assert found, result.output
    to_start, to_run, inside = map(float, found.groups())
    plain = import_seconds()
    print(f"suite: {findings} findings on SkyRL in {to_run:.1f} s")
    print(f"  wall time / time in SkyRL's own code: {to_run / inside:.2f}")
    print(f"  time to start / one plain import of SkyRL: {to_start / plain:.2f}")


def import_seconds() -> float:
    """Time in which a fresh interpreter imports SkyRL's trainer and worker."""
    load = "from adapters.skyrl.fsdp import SkyRLFsdpAdapter; SkyRLFsdpAdapter().load(None)"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", load], check=True, capture_output=True)
    return time.perf_counter() - start
