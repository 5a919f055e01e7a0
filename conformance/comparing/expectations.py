"""Known faults of a framework: a file that says which findings are wrong, how, and why that is so.

A TOML file says which framework and engine it is of, or which engines, and has an entry for each
fault::

    framework = "skyrl"
    engine = "fsdp"

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
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from conformance.comparing.groups import finding_groups
from conformance.explain.catalogue.mistake import MISTAKES
from conformance.explain.step_conditions import facts
from conformance.findings.errors import InvalidExpectationsError
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from conformance.comparing.groups import FindingGroup
    from conformance.findings.cause import Cause, Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

Words = Annotated[str, Field(min_length=1)]

MOST_NAMES = 3
"""How many known names are proposed for an unknown one."""


class Expectation(BaseModel):
    """One fault that is known.

    Of a mismatch one of the names in ``diagnosis`` must explain the weights; of a crash, or of a
    step that is declined, the first line of its message must hold the words in ``message``, so that
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

    framework: Words
    engine: Words | Annotated[tuple[Words, ...], Field(min_length=1)]
    expect: tuple[Expectation, ...] = ()
    cause: tuple[ExpectedCause, ...] = ()


@dataclass(frozen=True)
class Expectations:
    """All entries of a file, which is of some engines of a framework."""

    path: Path
    framework: str
    engines: tuple[str, ...]
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

    def require_framework(self, framework: str, engine: str) -> None:
        """Require the file to be of what is run.

        Raises:
            InvalidExpectationsError: it is of another framework or engine.
        """
        if framework != self.framework or engine not in self.engines:
            raise InvalidExpectationsError(
                f"{self.path} is of {self.framework} on {' and '.join(self.engines)}, and this run"
                f" is of {framework} on {engine}",
                "give a file of that, or mend its lines framework and engine",
            )

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
    yield f"framework = {_quoted(report.adapter)}"
    yield f"engine = {_quoted(report.engine)}"
    yield ""
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
    _require_reasons(path, document)
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        words = problem["msg"].removeprefix("Value error, ")
        raise InvalidExpectationsError(f"{path}: {place}: {words}", _way_out(place)) from error
    for number, cause in enumerate(file.cause):
        _require_known(f"{path}: cause.{number}.name", cause.name, MISTAKES)
        for fact in cause.condition or ():
            _require_known(f"{path}: cause.{number}.condition", fact, facts())
    engines = (file.engine,) if isinstance(file.engine, str) else file.engine
    return Expectations(path, file.framework, engines, file.expect, file.cause)


def _require_reasons(path: Path, document: Mapping[str, object]) -> None:
    """Require a draft to be filled in.

    Raises:
        InvalidExpectationsError: it has entries without a reason or link.
    """
    tables = (document.get(name) for name in ("expect", "cause"))
    entries = [one for table in tables if isinstance(table, list) for one in table]
    said = [(one.get("reason"), one.get("link")) for one in entries if isinstance(one, dict)]
    empty = sum("" in one for one in said)
    if empty:
        raise InvalidExpectationsError(
            f"{path} is a draft: {empty} of its {len(entries)} entries have no reason or no link",
            "write in each why the framework does so (reason), and the address where that can be"
            " read, of an issue, a commit or code (link)",
        )


def _way_out(place: str) -> str:
    if place.startswith(("framework", "engine")):
        return 'say what the file is of, such as framework = "skyrl" and engine = "fsdp"'
    return "mend it"


def _require_known(place: str, name: str, known: Collection[str]) -> None:
    """Require a name to be one of those that reports use.

    Raises:
        InvalidExpectationsError: it is none; the error has the nearest ones.
    """
    if name in known:
        return
    nearest = get_close_matches(name, sorted(known), n=MOST_NAMES)
    raise InvalidExpectationsError(
        f"{place}: no cause of a report can have {name!r}",
        f"perhaps it is {' or '.join(map(repr, nearest))}"
        if nearest
        else "rl-loss-conformance expect drafts entries from a report",
    )
