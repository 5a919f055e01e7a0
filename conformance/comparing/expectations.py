"""Known faults of a framework: a file of expected causes, each with its reason.

A TOML file names a framework and one or several engines, and has an entry for each cause::

    framework = "skyrl"
    engine = "fsdp"

    [[cause]]
    name = "padding_micro_batches_averaged"
    condition = ["in logged numbers"]
    reason = "padding micro-batches are averaged into logged means as zeros"
    link = "https://github.com/owner/framework/issues/1"

An entry covers all findings that its mistake explains. A run fails if it has another cause, or if a
finding shows that the mistake of an entry is gone. Without ``condition``, every condition matches.

One mistake of a framework may be several causes in its reports, and several mistakes may share a
name. ``name`` may therefore be a list. ``suspect`` lists lines, which must include the first
suspect of a cause. ``check`` lists checks, or prefixes of checks, to which all findings of a cause
must belong. If several entries match a cause, the entry with most requirements counts::

    [[cause]]
    name = ["unexplained", "inactive_tokens_weigh"]
    suspect = ["trainer/grpo_trainer.py:1558"]
    check = ["metric.clip_fraction", "weights"]
    reason = "log-probabilities are cut from the padded end of a row"
    reach = "`sequence_parallel_size` above 1 without `padding_free`"
    line = "framework/trainer/grpo_trainer.py:1558"
    upstream = "open pull request 2"
    link = "https://github.com/owner/framework/pull/2"
    looked_up = 2026-09-18

``needs`` is for a mistake that ordinary batches do not show: it lists the facts of a batch that
does. ``reach`` says which users meet it, in the framework's own options. ``looked_up`` is the day
up to which upstream's issues and pull requests were searched. ``deliberate`` is the pull request or
document that introduced the behaviour on purpose: the entry is then a convention and not an
accusation.

The condition of a failure only describes it, so a right finding does not show that the failure is
gone. The entry of a failure therefore lists the findings that must fail, by ids or by patterns in
which ``*`` stands for any characters, and words from the first line of the message. Without
``findings``, the entry covers any finding that fails with these words, and no finding shows that
the failure is gone::

    [[cause]]
    name = "crashed"
    findings = ["weights/*/no_active_token/*"]
    message = "KeyError: 'global_valid_toks'"
    reason = "where no sample of a step is valid, nothing is logged of it"
    link = "https://github.com/owner/framework/issues/2"
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.badness import failure
from conformance.findings.cause import UNEXPLAINED
from conformance.findings.errors import InvalidExpectationsError
from conformance.findings.finding import FrozenModel, first_problem
from conformance.findings.groups import finding_groups
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from conformance.findings.cause import Cause, Clues, SuspectedLine
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

MOST_NAMES = 3
"""The largest number of known names that are proposed for an unknown name."""

FAILURES = (Verdict.CRASHED, Verdict.DECLINED)


def _known(name: str, names: Collection[str]) -> str:
    """The name, if reports use it; otherwise raises `ValueError` with the nearest names."""
    if name not in names:
        nearest = " or ".join(map(repr, get_close_matches(name, sorted(names), n=MOST_NAMES)))
        hint = f"perhaps it is {nearest}" if nearest else "let `expect` draft it from a report"
        raise ValueError(f"no cause of a report can have {name!r}: {hint}")
    return name


Words = Annotated[str, Field(min_length=1)]


def _listed(names: Any) -> Any:
    """Returns a single name as a list, and anything else unchanged."""
    return [names] if isinstance(names, str) else names


def _mistakes(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if info.context is None:
        return names
    return tuple(_known(name, MISTAKES) for name in names)


def _fact(fact: str, info: ValidationInfo) -> str:
    if info.context is None:
        return fact
    from conformance.explain.conditions.facts import facts  # imports numpy

    return _known(fact, facts())


Mistakes = Annotated[
    tuple[Words, ...], Field(min_length=1), BeforeValidator(_listed), AfterValidator(_mistakes)
]
"""Names are validated only with a context: readers of reports accept committed files as is."""

Fact = Annotated[Words, AfterValidator(_fact)]


Line = Annotated[str, Field(pattern=r"^\S+:\d+$")]

Folder = Annotated[str, Field(pattern=r"^https?://\S+/$")]


class _Entry(FrozenModel):
    reason: Words
    """One sentence that stands alone."""

    link: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """The upstream issue or pull request."""

    line: Words | None = None
    """The line in the framework's code, such as ``trl/trainer/grpo_trainer.py:3169``."""

    code: Folder | None = None
    """The address of the folder that contains the line's file; by default ``code`` of the whole
    file of expectations."""

    impact: Words | None = None
    """The effect in production, if a run cannot measure it: the words after ``In production:``."""

    reach: Words | None = None
    """The users who meet the fault, by the framework's options: words after ``Who meets it:``."""

    upstream: Words = "unknown"
    """The state upstream: an issue, a pull request, or the version in which the fault is fixed."""

    looked_up: date | None = None
    """The day up to which upstream's issues and pull requests were searched for the fault."""

    deliberate: Words | None = None
    """The pull request or document that introduced the behaviour on purpose, as a convention."""

    engine: tuple[Words, ...] | None = None
    """The engines that have the fault, among the engines of the file; all if left out."""

    @model_validator(mode="after")
    def _have_evidence(self) -> Self:
        if self.link is None and self.line is None:
            raise ValueError("it has neither a link nor a line")
        return self

    @property
    def why(self) -> str:
        """The reason and the address of its source."""
        return f"{self.reason} ({self.link or self.line})"

    @property
    def address(self) -> str | None:
        """The line on GitHub; None without the number of a line or the address of the code."""
        path, _, number = (self.line or "").rpartition(":")
        if self.code is None or not path or not number.isdigit():
            return None
        return f"{self.code}{path}#L{number}"


class KnownMistake(_Entry):
    """A mistake of a framework, with the names that reports use for it."""

    names: Annotated[Mistakes, Field(alias="name")]
    condition: tuple[Fact, ...] | None = None
    suspect: Annotated[tuple[Line, ...], Field(min_length=1)] | None = None
    """The first suspect of a cause must be one of these lines, compared by the ends of paths."""

    check: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    """Checks, or prefixes of checks, to which all findings of a cause must belong."""

    needs: tuple[Fact, ...] = ()
    """Facts of every batch that shows the mistake; a right finding on a batch without these facts
    does not exclude the mistake.
    """

    @property
    def demands(self) -> int:
        """The number of properties that it requires of a cause, besides the name."""
        return sum(one is not None for one in (self.condition, self.suspect, self.check))

    def covers(self, finding_id: str) -> bool:
        """Whether a finding belongs to one of the expected checks."""
        return self.check is None or finding_id.startswith(self.check)

    def allows(self, cause: Cause) -> bool:
        """Whether a cause's condition, its checks and its first suspect, if it has any, fit."""
        return (
            (self.condition is None or [*self.condition] == cause.condition)
            and (self.suspect is None or not cause.suspects or self._suspects(cause.suspects[0]))
            and all(map(self.covers, cause.findings))
        )

    def is_of(self, cause: Cause) -> bool:
        """Whether a cause is this mistake."""
        is_told = self.suspect is None or bool(cause.suspects)
        return cause.name in self.names and is_told and self.allows(cause)

    def _suspects(self, line: SuspectedLine) -> bool:
        place = f"/{line.file}:{line.line}"
        return any(place.endswith(f"/{one}") for one in self.suspect or ())


class KnownFailure(_Entry):
    """A crash, or the refusal of an ordinary step, in certain findings.

    The first line of each finding's message, or the place of its error, must contain the words in
    ``message``, so that another crash, or a time-out, is not mistaken for it.
    """

    name: Literal[Verdict.CRASHED, Verdict.DECLINED]
    findings: Annotated[tuple[Words, ...], Field(min_length=1)] | None = None
    message: Words

    def is_of(self, cause: Cause) -> bool:
        """Whether a cause is a failure with the entry's words, or at the place that they name."""
        said = f"{cause.statement} {cause.place or ''}"
        return cause.name == self.name and self.message in said

    def explains(self, finding: Finding) -> bool:
        """Whether a finding fails with the entry's words, or at the place that they name."""
        return finding.verdict is self.name and self.message in failure(finding)

    def objection(self, finding: Finding) -> str | None:
        """Words on how a finding differs from the expectation; None if it does not."""
        if finding.verdict is Verdict.CONFORMS:
            return "it conforms: fixed; remove it"
        if finding.verdict is not self.name:
            return f"it is {finding.verdict}, not {self.name}"
        if not self.explains(finding):
            return f"it is {finding.verdict} without the words {self.message!r}"
        return None


def _kind(entry: Any) -> str:
    return "failure" if isinstance(entry, dict) and entry.get("name") in FAILURES else "mistake"


class _File(FrozenModel):
    framework: Words
    engine: Words | Annotated[tuple[Words, ...], Field(min_length=1)]
    code: Folder | None = None
    """The address of the folder that contains the files of all lines."""

    cause: tuple[
        Annotated[
            Annotated[KnownMistake, Tag("mistake")] | Annotated[KnownFailure, Tag("failure")],
            Discriminator(_kind),
        ],
        ...,
    ] = ()


@dataclass(frozen=True)
class Expectations:
    """All entries of a file for some engines of a framework."""

    path: Path
    framework: str
    engines: tuple[str, ...]
    mistakes: tuple[KnownMistake, ...]
    failures: tuple[KnownFailure, ...]
    is_strict: bool = True
    """Whether a run fails if it shows that a mistake is gone."""

    def of_engine(self, engine: str) -> Expectations:
        """The entries of one engine."""

        def is_here(entry: _Entry) -> bool:
            return entry.engine is None or engine in entry.engine

        return replace(
            self,
            mistakes=tuple(filter(is_here, self.mistakes)),
            failures=tuple(filter(is_here, self.failures)),
        )

    @property
    def names(self) -> frozenset[str]:
        """The names of all expected mistakes."""
        return frozenset(name for mistake in self.mistakes for name in mistake.names)

    def mistake_of(self, finding: Finding, clues: Clues | None) -> KnownMistake | None:
        """An expected mistake that explains a mismatch, alone or with others; None if none does."""
        if finding.verdict is not Verdict.MISMATCH:
            return None
        name = None if finding.diagnosis is None else finding.diagnosis.name
        explanations = clues.by_mistake if clues else []
        # Mistakes that fit an unexplained finding by chance do not explain it.
        if name is not None and (name == UNEXPLAINED or not explanations):
            explanations = [*explanations, [{name}]]
        here = [mistake for mistake in self.mistakes if mistake.covers(finding.id)]
        names = {name for mistake in here for name in mistake.names}
        for parts in explanations:
            expected = [part & names for part in parts]
            if all(expected):
                return _most_demanding(one for one in here if expected[0] & {*one.names})
        return None

    def of(self, cause: Cause) -> KnownMistake | KnownFailure | None:
        """The entry that describes a cause; None if there is none."""
        failure = next((one for one in self.failures if one.is_of(cause)), None)
        return failure or _most_demanding(one for one in self.mistakes if one.is_of(cause))

    def known_failure(self, finding: Finding) -> KnownFailure | None:
        """The failure that a finding shows, among the failures that list no findings."""
        unlisted = (one for one in self.failures if one.findings is None)
        return next((one for one in unlisted if one.explains(finding)), None)

    def failure_of(self, finding_id: str) -> KnownFailure | None:
        """The failure that lists a finding; None if none does."""
        return next((e for p, e in self._patterns() if fnmatchcase(finding_id, p)), None)

    def require_framework(self, framework: str, engine: str) -> None:
        """Require the file to be about the framework and engine of the run.

        Raises:
            InvalidExpectationsError: the file is about another framework or engine.
        """
        if framework != self.framework or engine not in self.engines:
            raise InvalidExpectationsError(
                f"{self.path} is of {self.framework} on {' and '.join(self.engines)}, and this run"
                f" is of {framework} on {engine}",
                "give a file for these, or correct its lines framework and engine",
            )

    def require_each_to_match_once(self, ids: Sequence[str]) -> None:
        """Compare the patterns with the ids of all possible findings.

        Raises:
            InvalidExpectationsError: a pattern matches no finding, or a finding has two entries.
        """
        listed: dict[str, KnownFailure] = {}
        for pattern, entry in self._patterns():
            matched = fnmatch.filter(ids, pattern)
            if not matched:
                raise InvalidExpectationsError(
                    f"{self.path}: {pattern!r} matches no finding of this adapter and engine",
                    "correct or remove it",
                )
            for name in matched:
                if listed.setdefault(name, entry) is not entry:
                    raise InvalidExpectationsError(
                        f"{self.path}: {name} is listed twice, for {listed[name].reason!r} and for"
                        f" {entry.reason!r}",
                        "list it once",
                    )

    def _patterns(self) -> Iterator[tuple[str, KnownFailure]]:
        return ((pattern, entry) for entry in self.failures for pattern in entry.findings or ())


def _most_demanding(mistakes: Iterable[KnownMistake]) -> KnownMistake | None:
    """The first mistake with the most requirements; None if there are no mistakes."""
    return max(mistakes, key=lambda one: one.demands, default=None)


def draft(report: Report) -> Iterator[str]:
    """Yield the lines of a draft: an entry for each cause of a report, without reasons and links.

    A draft cannot be loaded before these are added: a fault is known only once somebody can say why
    it is there.
    """
    yield f"framework = {_quoted(report.adapter)}"
    yield f"engine = {_quoted(report.engine)}"
    for group in finding_groups(report):
        yield ""
        yield "[[cause]]"
        yield f"name = {_quoted(group.cause.name)}"
        if group.cause.name in FAILURES:
            yield "findings = ["
            yield from (f"    {_quoted(finding.id)}," for finding in group.findings)
            yield "]"
            yield f"message = {_quoted(first_line(group.example.message))}"
        else:
            yield f"condition = {_quoted(group.cause.condition)}"
        yield 'reason = ""'
        yield 'link = ""'


def _quoted(value: str | list[str]) -> str:
    """A TOML string or list of strings, which TOML writes as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def load(path: Path) -> Expectations:
    """Read a file of known faults.

    Raises:
        InvalidExpectationsError: the file cannot be read, or an entry is wrong.
    """
    return read(path, context={})


def read(path: Path, context: dict[str, Any] | None = None) -> Expectations:
    """Read a file; with a context, names of mistakes and facts must be known ones."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidExpectationsError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidExpectationsError(f"{path} is not TOML: {error}", "correct it") from error
    _require_reasons(path, document)
    try:
        file = _File.model_validate(document, context=context)
    except ValidationError as error:
        place, words = first_problem(error)
        raise InvalidExpectationsError(f"{path}: {place}: {words}", _way_out(place)) from error
    entries = [one.model_copy(update={"code": one.code or file.code}) for one in file.cause]
    return Expectations(
        path,
        file.framework,
        (file.engine,) if isinstance(file.engine, str) else file.engine,
        tuple(one for one in entries if isinstance(one, KnownMistake)),
        tuple(one for one in entries if isinstance(one, KnownFailure)),
    )


def _require_reasons(path: Path, document: Mapping[str, Any]) -> None:
    """Require a draft to be filled in.

    Raises:
        InvalidExpectationsError: an entry has no reason or no link.
    """
    table = document.get("cause")
    entries = [one for one in table if isinstance(one, dict)] if isinstance(table, list) else []
    empty = sum("" in (one.get("reason"), one.get("link")) for one in entries)
    if empty:
        raise InvalidExpectationsError(
            f"{path} is a draft: {empty} of its {len(entries)} entries have no reason or no link",
            "write in each why the framework does so (reason), and the address where that can be"
            " read, of an issue, a commit or code (link)",
        )


def _way_out(place: str) -> str:
    if place.startswith(("framework", "engine")):
        return 'say what the file is of, such as framework = "skyrl" and engine = "fsdp"'
    return "correct it"
