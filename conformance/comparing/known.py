"""The known mistakes of the newest version of each framework: ``reports/known``.

Each framework has a file in the form of `expectations`, with one entry for each mistake. An entry
may be limited to an ``engine``. It says which users meet the mistake. Its ``line`` in the
framework's code is relative to the address of ``code`` at a commit or release. ``upstream`` is an
issue, a pull request, or the version in which the mistake is fixed. ``reports/audit.md`` works out
each mistake by hand.
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
"""The folder of the files: a link to ``reports/known``, which a wheel replaces by the files."""

NAME = "known"
"""The value of ``--expect`` that stands for these files."""


@cache
def known(framework: str, engine: str) -> Expectations | None:
    """The known causes of an engine's newest version; None if there is no file.

    Raises:
        InvalidExpectationsError: the file is wrong.
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
    """The expectations that ``--expect`` names: those in a file, or ``known``.

    Raises:
        InvalidExpectationsError: the file does not exist, is wrong, or is about another framework.
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
