"""Reports of the bases of earlier reviews, in the user's cache.

It is kept by commit, adapter and options of the run, and by all code that a finding depends on, so
that a review of a branch that changes runs one version.
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
    from adapters.toolkit.source import Commit
    from conformance.findings.report import Report

BASES = "bases"
"""The folder of the reports in the cache."""

MOST = 30
"""Reports that are kept; the oldest goes."""


@dataclass(frozen=True)
class Kept:
    """The place of the report of one version."""

    path: Path

    @classmethod
    def of(cls, adapter: Adapter, commit: Commit, options: Iterable[str]) -> Self:
        """The place of a commit's report, run with options."""
        digest = hashlib.sha256(user_cache.digest_of_code().encode())
        installed = [
            f"{name} {installed_version(name)}" for name in ("torch", *adapter.dependencies)
        ]
        of_adapter = (type(adapter).__module__, adapter.name, adapter.engine, commit.revision)
        for part in (sys.version, *of_adapter, *installed, *options):
            digest.update(f"{part}\n".encode())
        return cls(user_cache.folder(BASES) / f"{digest.hexdigest()[:32]}.json.gz")

    def load(self) -> Report | None:
        """The report, if there is one that can be read."""
        with suppress(ReportFileError):
            return report_file.load_reliable(self.path)
        return None

    def save(self, report: Report) -> None:
        """Keep a report, if there is room for it."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            report_file.write(report, self.path)
            oldest_first = sorted(self.path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
            for one in oldest_first[:-MOST]:
                one.unlink(missing_ok=True)


def merged(former: Report | None, latter: Report | None) -> Report | None:
    """The findings of two reports of one version in one."""
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
