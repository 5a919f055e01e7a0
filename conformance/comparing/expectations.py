"""Known faults of a framework: a file that says which findings are wrong, how, and why that is so.

A TOML file with an entry for each fault::

    [[expect]]
    findings = ["auxiliary.entropy/token_mean/*/dp1-*", "auxiliary.combined/token_mean/*/dp1-*"]
    verdict = "mismatch"
    diagnosis = "denominators_per_micro_batch"
    reason = "the entropy bonus is averaged over micro-batches"
    link = "https://github.com/owner/framework/issues/1"

``findings`` are ids, or patterns in which ``*`` stands for any characters. They are held to as
strictly as to right ones: what is listed and no longer wrong, or wrong in another way, fails.
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from conformance.findings.errors import InvalidExpectationsError
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import WRONG, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

Words = Annotated[str, Field(min_length=1)]


class Expectation(BaseModel):
    """One fault that is known.

    Of a mismatch one of the names in ``diagnosis`` must explain the weights; of a crash, or of a
    step that is declined, the last line of its message must hold the words in ``message``, so that
    another crash, or a time-out, does not pass for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    findings: Annotated[tuple[Words, ...], Field(min_length=1)]
    verdict: Literal[Verdict.MISMATCH, Verdict.DECLINED, Verdict.CRASHED]
    diagnosis: Words | Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    message: Words | None = None
    reason: Words
    link: Annotated[str, Field(pattern=r"^https?://\S+$")]

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        needed, other = ("diagnosis", "message")
        if self.verdict is not Verdict.MISMATCH:
            needed, other = other, needed
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"of a {self.verdict} finding give the {needed} and no {other}")
        return self

    @property
    def diagnoses(self) -> tuple[str, ...]:
        """All names that are expected."""
        if self.diagnosis is None:
            return ()
        return (self.diagnosis,) if isinstance(self.diagnosis, str) else self.diagnosis

    def objection(self, finding: Finding) -> str | None:
        """How a finding differs from what is expected of it; None if it does not."""
        if finding.verdict is Verdict.CONFORMS:
            return "it conforms: fixed; remove it"
        if finding.verdict is not self.verdict:
            return f"it is {finding.verdict}, not {self.verdict}"
        found = [finding.diagnosis.name, *finding.diagnosis.also] if finding.diagnosis else []
        if self.diagnoses and not set(found) & set(self.diagnoses):
            return f"the diagnosis is {' or '.join(found)}, not {' or '.join(self.diagnoses)}"
        if self.message is not None and self.message not in last_line(finding.message):
            return f"it is {finding.verdict} without the words {self.message!r}"
        return None


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    expect: tuple[Expectation, ...]


@dataclass(frozen=True)
class Expectations:
    """All entries of a file."""

    path: Path
    entries: tuple[Expectation, ...]

    def of(self, finding_id: str) -> Expectation | None:
        """The entry that lists a finding, if one does."""
        return next((e for p, e in self._patterns() if fnmatchcase(finding_id, p)), None)

    def require_each_to_match_once(self, ids: Sequence[str]) -> None:
        """Hold the patterns against the ids of everything that can be found.

        Raises:
            InvalidExpectationsError: a pattern matches no finding, or a finding has two entries.
        """
        listed: dict[str, Expectation] = {}
        for pattern, entry in self._patterns():
            matched = fnmatch.filter(ids, pattern)
            if not matched:
                raise InvalidExpectationsError(
                    f"{self.path}: {pattern!r} matches no finding of this adapter and engine",
                    "mend or remove it",
                )
            for name in matched:
                if listed.setdefault(name, entry) is not entry:
                    raise InvalidExpectationsError(
                        f"{self.path}: {name} is listed twice, for {listed[name].reason!r} and for"
                        f" {entry.reason!r}",
                        "list it once",
                    )

    def _patterns(self) -> Iterator[tuple[str, Expectation]]:
        for entry in self.entries:
            for pattern in entry.findings:
                yield pattern, entry


def draft(report: Report) -> Iterator[str]:
    """A file that lists all that a report says is wrong, line by line, but for reasons and links.

    Without these it cannot be loaded: a fault is known once somebody can say why it is there.
    """
    groups: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.verdict in WRONG:
            groups.setdefault(_fault(finding), []).append(finding.id)
    for fault, ids in groups.items():
        yield "[[expect]]"
        yield "findings = ["
        yield from (f"    {_quoted(one)}," for one in ids)
        yield "]"
        yield fault
        yield 'reason = ""'
        yield 'link = ""'
        yield ""


def _fault(finding: Finding) -> str:
    """What the entry of a finding says is wrong with it."""
    what = (
        f"message = {_quoted(last_line(finding.message))}"
        if finding.diagnosis is None
        else f"diagnosis = {_quoted(finding.diagnosis.name)}"
    )
    return f"verdict = {_quoted(finding.verdict)}\n{what}"


def _quoted(text: str) -> str:
    """As TOML quotes it, which is as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def load(path: Path) -> Expectations:
    """Read a file of known faults.

    Raises:
        InvalidExpectationsError: it cannot be read, or an entry is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidExpectationsError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidExpectationsError(f"{path} is no TOML: {error}", "mend it") from error
    try:
        return Expectations(path, _File.model_validate(document).expect)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        words = problem["msg"].removeprefix("Value error, ")
        raise InvalidExpectationsError(f"{path}: {place}: {words}", "mend it") from error
