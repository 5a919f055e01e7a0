"""Makes wrong findings of committed reports again, each by its own command, and compares the bytes.

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.reproduction [--sample=200] [REPORT …]`` prints
a line for each finding that came out otherwise; the exit status is 1 if any did. Takes about six
seconds of two cores for each.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.groups import finding_groups
from conformance.comparing.report_file import load
from conformance.findings.finding import Finding
from conformance.findings.report import Report
from conformance.runs.reproduce import command
from tests.command import ROOT, SOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence

CLONES = {"skyrl": "SkyRL"}
"""Names of clones that are not those of their adapters."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A wrong finding and the report that it stands in."""

    path: Path
    report: Report
    finding: Finding

    @property
    def name(self) -> str:
        """The report and the finding."""
        return f"{self.path.parent.name}/{self.path.name}: {self.finding.id}"


def sample(reports: Sequence[tuple[Path, Report]], size: int, seed: int = 0) -> list[Committed]:
    """Wrong findings at random: one of every kind in every report first, then any."""
    chance = random.Random(seed)
    first: list[Committed] = []
    others: list[Committed] = []
    for path, report in reports:
        for kind in _kinds(report):
            chance.shuffle(kind)
            one, *rest = (Committed(path=path, report=report, finding=f) for f in kind)
            first.append(one)
            others += rest
    chance.shuffle(first)
    chance.shuffle(others)
    return [*first, *others][:size]


def _kinds(report: Report) -> list[list[Finding]]:
    """The wrong findings of a report by mistake, and by check and subject."""
    kinds: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for group in finding_groups(report):
        for finding in group.findings:
            kinds[group.cause.name, finding.identity.slug].append(finding)
    return list(kinds.values())


def made_again(committed: Committed, sources: Path) -> str:
    """What is different of a finding made by its own command; empty if not a byte is."""
    adapter = committed.report.adapter
    clone = str(sources / CLONES.get(adapter, adapter))
    words = shlex.split(command(committed.report, committed.finding).replace("CLONE", clone))
    with tempfile.TemporaryDirectory(prefix="rl-loss-reproduction-") as folder:
        path = Path(folder, "report.json")
        run = subprocess.run(
            [sys.executable, "-m", *words, "-q", f"--report={path}"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not path.exists():
            return f"no report: {run.stdout[-2000:]}{run.stderr[-2000:]}"
        return difference(committed.finding, load(path).findings)


def difference(committed: Finding, found: Sequence[Finding]) -> str:
    """In words; empty if the one finding there is has the bytes of the committed one."""
    if len(found) != 1:
        return f"{len(found)} findings instead of one"
    again = found[0].model_copy(update={"clues": committed.clues})  # its place in a list
    if again.model_dump_json() == committed.model_dump_json():
        return ""
    before, after = committed.model_dump(mode="json"), again.model_dump(mode="json")
    return "; ".join(
        f"{name}: {before[name]!r} became {after[name]!r}"
        for name in before
        if before[name] != after[name]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a sample again, two findings at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.reproduction")
    parser.add_argument("--sample", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT")
    options = parser.parse_args(arguments)
    paths = options.reports or sorted((ROOT / "reports").glob("*/*.json.gz"))
    chosen = sample([(path, load(path)) for path in paths], options.sample, options.seed)
    sources = Path(os.environ[SOURCES])
    with ThreadPoolExecutor(2) as executor:
        outcomes = executor.map(lambda one: made_again(one, sources), chosen)
        different = [
            f"{one.name}: {outcome}"
            for one, outcome in zip(chosen, outcomes, strict=True)
            if outcome
        ]
    print(*different, sep="\n")
    print(f"{len(chosen) - len(different)} of {len(chosen)} findings are the same, byte for byte")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
