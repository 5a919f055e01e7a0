"""Reports of the bases of earlier reviews, in the user's cache.

A report is found by the commit, adapter and options of its run and by a checksum of all code that a
finding depends on. A later review of a branch with the same base then runs only the head.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from conformance.comparing import report_file
from conformance.findings import user_cache
from conformance.findings.errors import ReportFileError
from conformance.findings.report import Header, Selection
from conformance.runs.recorder import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from adapters.contract import Adapter
    from conformance.findings.report import Report
    from conformance.sources.source import Commit

BASES = "bases"
"""The folder of the reports in the cache."""

MOST = 30
"""The most reports that are kept; the oldest ones are removed."""


@dataclass(frozen=True)
class Kept:
    """The file in the cache with the report of one version."""

    path: Path

    @classmethod
    def of(cls, adapter: Adapter, commit: Commit, options: Iterable[str]) -> Self:
        """The file for the report of a commit that is run with the given options."""
        digest = hashlib.sha256(user_cache.digest_of_code().encode())
        installed = [
            f"{name} {installed_version(name)}" for name in ("torch", *adapter.dependencies)
        ]
        of_adapter = (type(adapter).__module__, adapter.name, adapter.engine, commit.revision)
        for part in (sys.version, *of_adapter, *installed, *options):
            digest.update(f"{part}\n".encode())
        return cls(user_cache.folder(BASES) / f"{digest.hexdigest()[:32]}.json.gz")

    def load(self) -> Report | None:
        """The report; None if there is no report that can be read."""
        with suppress(ReportFileError):
            return report_file.load_reliable(self.path)
        return None

    def save(self, report: Report) -> None:
        """Write a report to the file, if it can be written."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            report_file.write(report, self.path)
            oldest_first = sorted(self.path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
            for one in oldest_first[:-MOST]:
                one.unlink(missing_ok=True)


def merged(former: Report | None, latter: Report | None) -> Report | None:
    """One report with the findings of two reports of the same version."""
    if former is None or latter is None:
        return former or latter
    header = Header(**{name: getattr(latter, name) for name in Header.model_fields})
    moved = [
        one
        if one.clues is None
        else one.model_copy(update={"clues": one.clues + len(former.clues)})
        for one in latter.findings
    ]
    findings = {one.id: one for one in (*former.findings, *moved)}
    return report_file.assembled(
        header,
        [*findings.values()],
        [*former.clues, *latter.clues],
        Selection(selected=len(findings), deselected=0),
    )
