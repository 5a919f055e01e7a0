"""A cause as a bug report for the framework's tracker, in GitHub's Markdown.

Every number in it stands in the report, or is one that the reference expects of the same step.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import metadata, version
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.objective import CORRECTIONS, FROM_REWARDS, POLICY_LOSSES
from conformance.comparing.groups import FindingGroup
from conformance.corpus.cases import ALL_CASES
from conformance.explain.find import causes
from conformance.explain.impact import impact_words
from conformance.findings.badness import explain, off_by
from conformance.findings.cause import Severity
from conformance.findings.sanitize import printable
from conformance.findings.verdict import JUDGED, Check, Verdict
from conformance.plan.checks import CHECK_SPECS
from conformance.runs.reproduce import command
from conformance.views.tables import escape_markdown, preformatted
from conformance.views.worked_step import (
    DENOMINATORS,
    MODES,
    WorkedStep,
    layout_words,
    open_choices,
    ratios,
    token_table,
    worked_step,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

PROJECT = "rl-loss-conformance"

FRAME_AND_CODE = re.compile(r'^(  File "[^\n]*\n)(?: {4}[^\n]*\n)+', re.MULTILINE)
"""A frame of a traceback with the framework's own code, which is left to it."""

MOST_LINES = 40
"""Last lines of a message that are shown."""

ALTERNATIVES = "; or it is "
"""What stands before other mistakes that explain a finding as well."""

RULES = (Check.ARGUMENTS, Check.LOGGING)
"""Checks of what a framework refuses, which compare no step."""

PLACEHOLDERS = {
    "CLONE": "a clone of the framework's repository",
    "CHECKOUT": "a checkout of the framework",
    "FILE": "the step that the user gave",
}
"""What stands for places in commands."""

SLUGS = frozenset(one.slug for one in CHECK_SPECS)


class Kind(NamedTuple):
    """How the title and the first sentence on a kind of cause begin."""

    title: str
    sentence: str


ADVICE = Kind("Advice", "This is not a bug, as nothing that {} promises is broken")
CRASH = Kind("Crash", "{} crashes in an ordinary training step")
DECLINED = Kind("Ordinary step declined", "{} declines an ordinary training step")
GRADIENT = Kind("Wrong gradient", "{} computes a wrong gradient in a training step")
NUMBER = Kind("Wrong logged number", "{} logs a wrong number for a training step")

BY_VERDICT = {Verdict.CRASHED: CRASH, Verdict.DECLINED: DECLINED}

BY_CHECK = {
    Check.ARGUMENTS: Kind("Configuration", "{} treats a configuration otherwise than it states"),
    Check.LOGGING: Kind("Log", "{} treats the logs of micro-batches otherwise than it states"),
    Check.SHARDING: Kind("Wrong sharding", "{} distributes the samples of a training step wrongly"),
    Check.METRIC: NUMBER,
    Check.ROLLOUTS: NUMBER,
}

SUBJECTS = {
    "weights": "the gradient of the policy loss",
    "metric": "the logged policy loss",
    "rejection": "the gradient after rejection sampling",
    "rejection.metric": "the logged share of rejected tokens",
    "auxiliary.entropy": "the gradient of the entropy term",
    "auxiliary.kl": "the gradient of the KL term",
    "auxiliary.combined": "the gradient of policy loss, entropy and KL term together",
    "metric.loss": "the logged sum of policy loss, entropy and KL term",
    "sharding": "the distribution of samples over data-parallel ranks",
    "logging": "the logs of micro-batches",
    "off_policy": "the gradient of the policy loss where ratios are not 1",
    **{
        f"{Check.ADVANTAGES}.{name}": f"the gradient of the policy loss with {name} advantages"
        for name in FROM_REWARDS
    },
    **{
        f"{Check.OFF_POLICY}.{name}": f"the gradient of the {name} loss where ratios are not 1"
        for name in (*POLICY_LOSSES, *CORRECTIONS)
    },
}
"""What a check looks at, by the beginning of its findings' ids."""


@dataclass(frozen=True)
class Issue:
    """A cause of a report, with the finding by which it is shown."""

    report: Report
    cause: Cause

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings that the cause explains, the best examples first."""
        ids = {*self.cause.findings}
        return sorted((one for one in self.report.findings if one.id in ids), key=self._size)

    @cached_property
    def example(self) -> Finding:
        """The smallest finding that shows this cause alone, or else the smallest."""
        alone = (one for one in self.findings if self.named_alone(one) == [self.cause.name])
        return next(alone, self.findings[0])

    def named_alone(self, finding: Finding) -> list[str]:
        """The names of the causes of a report of this finding alone."""
        return [one.name for one in causes([finding], self.report.clues)]

    def _size(self, finding: Finding) -> tuple[bool, int, bool, int, int, str]:
        """A sort key: what the cause is named after, then fewest ranks, tokens, plainest check."""
        gradient = self.cause.severity is Severity.GRADIENT
        case = next((one for one in ALL_CASES if one.name == finding.case), None)
        tokens = sum(len(step.mask) for step in case.steps) if case else 0
        check = [*Check].index(finding.check)
        is_sum = finding.subject in ("combined", "loss")
        size = finding.layout.world_size
        return gradient and finding.picture is None, size, is_sum, tokens, check, finding.id

    @property
    def kind(self) -> Kind:
        """The kind of the cause."""
        if self.cause.severity is Severity.ADVICE:
            return ADVICE
        of_check = NUMBER if self.example.logged else BY_CHECK.get(self.example.check, GRADIENT)
        return BY_VERDICT.get(self.example.verdict, of_check)

    @property
    def is_of_rules(self) -> bool:
        """Whether it is about what a framework refuses or documents, and not about a step."""
        return self.kind is ADVICE or self.example.check in RULES

    @property
    def framework(self) -> str:
        """The framework with its engine."""
        return f"{self.report.adapter} (engine {self.report.engine})"

    @cached_property
    def worked(self) -> WorkedStep | None:
        """The step of the example; None if it is of a rule, or of no case that is known."""
        slug, name = self.example.identity.slug, self.example.case
        spec = next((one for one in CHECK_SPECS if one.slug == slug), None)
        case = next((one for one in ALL_CASES if one.name == name), None)
        if spec is None or case is None or self.is_of_rules or self.report.request.case:
            return None
        return WorkedStep(self.report, self.example, spec, case)


def as_markdown(report: Report, cause: Cause) -> Iterator[str]:
    """Yields the lines of a bug report."""
    issue = Issue(report, cause)
    yield f"# {issue.kind.title}: {_title(issue)}"
    yield from ("", _summary(issue))
    for heading, lines in (
        ("The cases" if issue.is_of_rules else "The smallest step that shows it", _example(issue)),
        ("What a right denominator is", _right(issue)),
        ("Impact", _impact(issue)),
        ("Where", _where(issue)),
        ("How to see it again", _again(issue)),
        ("Versions", _versions(report)),
        ("What this run does otherwise than a user's", _departures(report)),
    ):
        if text := [*lines]:
            yield from ("", f"## {heading}", "", *text)


def _title(issue: Issue) -> str:
    """Returns what is wrong, and where that shows."""
    if issue.is_of_rules:
        more = len(issue.findings) - 1
        first = _explanation(issue.example).partition(";")[0].partition(": here")[0]
        return f"{escape_markdown(first)}{f', and {more} more' if more else ''}"
    return _statement(issue)


def _statement(issue: Issue) -> str:
    """Returns the cause in words that need no knowledge of this project's checks."""
    cause = issue.cause
    words = cause.statement.removesuffix("".join(f", {fact}" for fact in cause.condition))
    said = _code(words) if issue.kind in (CRASH, DECLINED) else escape_markdown(words)
    return ", ".join([said, *map(_fact, cause.condition)])


def _fact(fact: str) -> str:
    where, _, name = fact.rpartition(" ")
    if name in tuple(Mode):
        return f"{where} `{name}`"
    return f"{where} {_subject(name)}" if where == "in" and name in SLUGS else escape_markdown(fact)


def _subject(slug: str) -> str:
    check, _, name = slug.partition(".")
    words = name.replace("_", " ")
    others = {
        "metric": f"the logged {words}",
        "rollouts": f"the logged mean {words} of the rollouts",
        "other_losses": f"the gradient of the {words} loss",
    }
    return SUBJECTS.get(slug) or others.get(check) or f"{check}: {words}"


def _explanation(finding: Finding) -> str:
    """Returns what the diagnosis says of a finding, or else the framework's last words."""
    if finding.diagnosis is None:
        return explain(finding)
    return finding.diagnosis.explanation.partition(ALTERNATIVES)[0]


def _summary(issue: Issue) -> str:
    """Returns two sentences: what is wrong, and what that does."""
    words = _explanation(issue.example) if issue.is_of_rules else ""
    what = escape_markdown(words) if words else _statement(issue)
    effect = impact_words(issue.cause.impact) or off_by(issue.example)
    judged = sum(one.verdict in JUDGED for one in issue.report.findings)
    those = "the" if issue.kind is ADVICE else f"{judged}"  # advice is not one of the judged
    return (
        f"{issue.kind.sentence.format(issue.framework)}: {what}."
        f" It shows in {len(issue.findings)} of {those} comparisons of this run"
        f"{f': {effect}' if effect else ''}."
    )


def _example(issue: Issue) -> Iterator[str]:
    """Yields the smallest step that shows the cause, or all that is said of a rule."""
    if issue.is_of_rules:
        yield from (f"- {escape_markdown(_explanation(finding))}" for finding in issue.findings)
        yield from _message(issue.example)
        return
    finding = issue.example
    yield f"- Compared: {_subject(finding.identity.slug)}{_how(finding)}."
    yield f"- Mode: `{finding.mode}`, {MODES[finding.mode]}."
    yield f"- Cut: {layout_words(finding.layout)}."
    if finding.diagnosis is not None and finding.diagnosis.name == issue.cause.name:
        yield f"- In this step: {escape_markdown(_explanation(finding))}."
    yield ""
    if issue.worked is not None:
        yield from worked_step(issue.worked)
    elif finding.picture is not None:
        yield from token_table(finding.picture)
    yield from _message(finding)


def _how(finding: Finding) -> str:
    """Returns how weights are observed, as the end of a sentence."""
    if finding.picture is None:
        return ""
    return (
        ", token by token. The weight of a token is the derivative of the step's loss by the loss"
        " of this token; it is read off the gradient that the framework's own train step makes of a"
        " parameter with one entry per token"
    )


def _message(finding: Finding) -> Iterator[str]:
    """Yields the end of what the framework said, if it said something."""
    if finding.message:
        without_code = FRAME_AND_CODE.sub(r"\1", finding.message)
        yield from ("", *preformatted(without_code.splitlines()[-MOST_LINES:]))


def _right(issue: Issue) -> Iterator[str]:
    """Yields the rule that right denominators follow; nothing if no step was worked out."""
    if issue.worked is None:
        return
    for term in issue.worked.terms:
        context = term.context
        if not context.per_micro_batch:
            yield (
                f"- `{term.metric}` is reduced by `{context.mode}`: the loss of an active token is"
                f" divided by {DENOMINATORS[context.mode]}, however the step is cut over ranks and"
                " micro-batches."
            )
    choices, documented = open_choices(issue.worked), issue.report.documented
    for name, words in choices.items():
        if name in documented:
            yield f"- As the framework documents ({escape_markdown(documented[name])}), {words}."
    if assumed := [words for name, words in choices.items() if name not in documented]:
        yield f"- Assumed, as we found no document of it: {'; '.join(assumed)}."


def _impact(issue: Issue) -> Iterator[str]:
    """Yields how bad it is: every number as a range over the findings that it was measured on."""
    findings = tuple(issue.findings)
    group = FindingGroup(cause=issue.cause, findings=findings, example=findings[0])
    yield f"- Severity: {issue.cause.severity}."
    for words in filter(None, impact_words(issue.cause.impact).split("; ")):
        yield f"- In effect {words}."
    found = ratios(issue.findings)
    if found is not None:
        low, high = found
        yield f"- Single active tokens weigh {low:.4g} to {high:.4g} times what they should."
    slugs = Counter(sorted(finding.identity.slug for finding in findings))
    where = ", ".join(f"{_subject(slug)} ({count})" for slug, count in slugs.items())
    yield f"- Seen in {where}."
    yield f"- Modes: {', '.join(f'`{mode}`' for mode in group.modes)}; layouts: {group.layouts}."


def _where(issue: Issue) -> Iterator[str]:
    """Yields the code locations that findings determine, or where the framework raised."""
    places = Counter(one.place for one in issue.findings if one.place)
    for place, count in places.most_common():
        yield f"- {_code(place)} ({count} of {len(issue.findings)} findings)"
    if not places:
        yield "The findings do not determine the place in the code."


def _again(issue: Issue) -> Iterator[str]:
    """Yields the command of the example, what it prints, and what stands for places in it."""
    line = command(issue.report, issue.example)
    yield f"With [{PROJECT}]({_homepage()}) installed:"
    yield from ("", "```sh", line, "```", "")
    if issue.kind is ADVICE:
        yield "The run passes and ends with the advice."
    else:
        named = issue.named_alone(issue.example)
        yield f"The run fails and names the cause {' and '.join(map(_code, named))}."
        if issue.cause.name not in named:
            yield f"For {_code(issue.cause.name)}, which explains it as well, speak the other steps"
            yield "of the run that this report is made of."
    yield from (f"{name} is {words}." for name, words in PLACEHOLDERS.items() if name in line)


def _homepage() -> str:
    urls = dict(url.split(", ") for url in metadata(PROJECT).get_all("Project-URL", []))
    return str(urls["Homepage"])


def _versions(report: Report) -> Iterator[str]:
    source, environment = report.source, report.environment
    named = {
        report.adapter: source.version,
        "ref": source.ref,
        "commit": source.revision,
        "uncommitted changes": "yes" if source.dirty else None,
        "engine": report.engine,
        "torch": environment.torch,
        **environment.dependencies,
        "python": environment.python,
        "device": f"{environment.hardware}, {environment.platform}",
        PROJECT: version(PROJECT),
    }
    yield from (f"- {name}: {_code(value)}" for name, value in named.items() if value)


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '')}`"


def _departures(report: Report) -> Iterator[str]:
    """Yields what the run sets, stubs or passes by, folded."""
    if not report.departures and not report.environment.stubs:
        return
    yield from ("<details><summary>Settings, stubs and calls that are passed by</summary>", "")
    for one in report.departures:
        kind = one.kind.replace("_", " ")
        yield f"- {kind}: {escape_markdown(one.what)} ({escape_markdown(one.why)})"
    if report.environment.stubs:
        yield f"- packages that are stubs: {escape_markdown(', '.join(report.environment.stubs))}"
    yield from ("", "</details>")
