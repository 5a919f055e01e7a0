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

An entry for a cause stands for all findings that its mistake explains, whatever their ids::

    [[cause]]
    name = "padding_micro_batches_averaged"
    condition = ["in logged numbers"]
    reason = "micro-batches of padding count as 0 in means that are logged"
    link = "https://github.com/owner/framework/issues/2"

A run fails if it has another cause, or if a finding shows that this one is gone. Without
``condition``, any will do.
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from conformance.comparing.groups import finding_groups
from conformance.findings.errors import InvalidExpectationsError
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.comparing.groups import FindingGroup
    from conformance.findings.cause import Cause, Clues
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
        if self.message is not None and self.message not in first_line(finding.message):
            return f"it is {finding.verdict} without the words {self.message!r}"
        return None


class ExpectedCause(BaseModel):
    """One cause that is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Words
    condition: tuple[Words, ...] | None = None
    reason: Words
    link: Annotated[str, Field(pattern=r"^https?://\S+$")]

    def allows(self, cause: Cause) -> bool:
        """Whether a cause shows under the condition that is expected."""
        return self.condition is None or [*self.condition] == cause.condition


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    expect: tuple[Expectation, ...] = ()
    cause: tuple[ExpectedCause, ...] = ()


@dataclass(frozen=True)
class Expectations:
    """All entries of a file."""

    path: Path
    entries: tuple[Expectation, ...]
    causes: tuple[ExpectedCause, ...] = ()

    @property
    def mistakes(self) -> frozenset[str]:
        """The names of the mistakes that are expected somewhere."""
        return frozenset(cause.name for cause in self.causes)

    def explaining(self, finding: Finding, clues: Clues | None) -> ExpectedCause | None:
        """An expected cause that explains a mismatch, alone or with others; None if none does."""
        if finding.verdict is not Verdict.MISMATCH:
            return None
        alone = [] if finding.diagnosis is None else [[[f"/{finding.diagnosis.name}"]]]
        for parts in clues.explanations if clues and clues.explanations else alone:
            named = [{name.partition("/")[2] for name in part} & self.mistakes for part in parts]
            if all(named):
                return next(cause for cause in self.causes if cause.name in named[0])
        return None

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
    """A file of all that is wrong in a report: an entry for each cause, but for reasons and links.

    Without these it cannot be loaded: a fault is known once somebody can say why it is there.
    """
    for group in finding_groups(report):
        if group.example.diagnosis is None:
            yield from _failures(group)
        else:
            yield "[[cause]]"
            yield f"name = {_quoted(group.cause.name)}"
            yield f"condition = {json.dumps(group.cause.condition, ensure_ascii=False)}"
        yield 'reason = ""'
        yield 'link = ""'
        yield ""


def _failures(group: FindingGroup) -> Iterator[str]:
    """Yield the beginning of an entry for steps that crashed or were declined."""
    yield "[[expect]]"
    yield "findings = ["
    yield from (f"    {_quoted(finding.id)}," for finding in group.findings)
    yield "]"
    yield f"verdict = {_quoted(group.example.verdict)}"
    yield f"message = {_quoted(first_line(group.example.message))}"


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
        file = _File.model_validate(document)
        return Expectations(path, file.expect, file.cause)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        words = problem["msg"].removeprefix("Value error, ")
        raise InvalidExpectationsError(f"{path}: {place}: {words}", "mend it") from error
