"""Wall time of a check over the time its ranks spend in the framework's own code."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from adapters.slime.adapter import SlimeAdapter
from tests import command

WEIGHTS = ("--checks=weights",)

RELEASES = {
    "skyrl": ("skyrl", None),
    "verl": ("verl", None),
    "trl": ("trl", None),
    "openrlhf": ("deepspeed", "pypi:0.11.2"),
}
"""The package that a framework needs to run at all, and the source if it is not installed."""

FOUR_RANKS = [f"--layout={layout}" for layout in SlimeAdapter().layouts() if layout.world_size == 4]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The times of a run of the suite in seconds; ``inside`` is that of the slowest ranks."""

    findings: int
    to_start: float
    to_run: float
    inside: float

    def print(self, name: str, where: str = "") -> None:
        """Print the ratio of wall time to the time in the framework's own code."""
        print(f"suite: {self.findings} findings on {name}{where} in {self.to_run:.1f} s")
        print(f"  wall time / time in {name}'s own code: {self.to_run / self.inside:.2f}")


def main() -> None:
    """Print the ratios; for releases also the ratio of the time to start to one plain import."""
    for name, (package, source) in RELEASES.items():
        if importlib.util.find_spec(package) is None:
            print(f"suite: {name} was not run: {package} is not installed")
            continue
        options = [f"--source={source}"] if source else []
        timing = run(name, *WEIGHTS, *options)
        timing.print(name)
        ratio = timing.to_start / import_seconds(name, source)
        print(f"  time to start / one plain import: {ratio:.2f}")
    for name, ref in (("slime", "refs/pull/2090/head"), ("miles", "refs/pull/1498/head")):
        sources = os.environ.get(command.SOURCES)
        if sources is None:
            print(f"suite: {name} was not run: {command.SOURCES} names no folder of clones")
            continue
        source = f"--source={sources}/{name}@{ref}"
        run(name, source, *WEIGHTS, *FOUR_RANKS).print(name, " on 4 ranks")


def run(adapter: str, *arguments: str) -> Timing:
    """Run the suite and read its last lines."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = (f"--adapter={adapter}", *arguments)
        result = command.finish(command.start(Path(folder), *chosen), Path(folder), adapter)
        findings = len(result.report.findings)
    found = re.search(r"([\d.]+) s to start, ([\d.]+) s to run, ([\d.]+) s of", result.output)
    assert found, result.output
    to_start, to_run, inside = map(float, found.groups())
    return Timing(findings=findings, to_start=to_start, to_run=to_run, inside=inside)


def import_seconds(name: str, source: str | None) -> float:
    """The seconds that a fresh interpreter takes to import a framework's trainer and worker."""
    load = (
        "from conformance.sources.source import resolve; from conformance.runs import registry;"
        f" adapter = registry.create({name!r}); adapter.load(resolve(adapter, {source!r}).path)"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", load], check=True, capture_output=True)
    return time.perf_counter() - start
