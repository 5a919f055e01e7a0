"""The known mistakes of the newest version of each framework: ``reports/known``.

A file for each, in the form of `expectations`, with one entry for each mistake of the framework. An
entry may be of some ``engine`` alone. It says whom it reaches, has the ``line`` in the framework's
code, below the address of ``code`` at a commit or release, and what became of it ``upstream``: an
issue, a pull request, the version in which it is fixed. It is worked out by hand in
``reports/audit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.expectations import load, read
from conformance.findings.errors import InvalidExpectationsError

if TYPE_CHECKING:
    from conformance.comparing.expectations import Expectations, KnownFailure, KnownMistake
    from conformance.findings.cause import Cause
    from conformance.findings.report import Report

KNOWN = Path(__file__).parent / "known_mistakes"
"""The folder of the files: a link to ``reports/known``, whose files a wheel holds."""

NAME = "known"
"""The name that ``--expect`` has for them."""


@cache
def known(framework: str, engine: str) -> Expectations | None:
    """The known causes of an engine's newest version; None if it has no file of them.

    Raises:
        InvalidExpectationsError: its file is wrong.
    """
    path = KNOWN / f"{framework}.toml"
    if not path.exists():
        return None
    every = read(path)
    if engine not in every.engines:
        return None
    return replace(every.of_engine(engine), is_strict=False)


def entry_of(report: Report, cause: Cause) -> KnownMistake | KnownFailure | None:
    """The entry that describes a cause of a report; None if no entry does."""
    audited = known(report.adapter, report.engine)
    return None if audited is None else audited.of(cause)


def expected(text: Path, framework: str, engine: str) -> Expectations:
    """The expectations that ``--expect`` names: of a file, or ``known``.

    Raises:
        InvalidExpectationsError: there is no such file, or it is wrong, or of another framework.
    """
    if text.name == NAME and not text.exists():
        found = known(framework, engine)
        if found is None:
            raise InvalidExpectationsError(
                f"nothing is known of {framework} on {engine}", "give --expect=FILE"
            )
        return found
    found = load(text)
    found.require_framework(framework, engine)
    return found.of_engine(engine)
