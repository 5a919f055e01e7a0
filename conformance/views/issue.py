"""A cause as a bug report for the framework's tracker, in GitHub's Markdown.

Every number in the bug report is in the report, or is the reference's for the same step.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import metadata, version
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.known import entry_of
from conformance.explain.conditions.wording import subject
from conformance.findings.badness import explain, failure
from conformance.findings.cause import Severity
from conformance.findings.sanitize import printable
from conformance.findings.verdict import JUDGED, Check, Verdict
from conformance.plan.checks import CHECK_SPECS
from conformance.runs.options import PLACEHOLDERS, command
from conformance.views import worked_step as words
from conformance.views.formatting import environment, escape_markdown, preformatted
from conformance.worked.step import ShownCause, worked_step
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.comparing.expectations import KnownFailure, KnownMistake
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

PROJECT = "rl-loss-conformance"

FRAME_AND_CODE = re.compile(r'^(  File "[^\n]*\n)(?: {4}[^\n]*\n)+', re.MULTILINE)
"""A frame of a traceback with the framework's own code, which is not repeated."""

MOST_LINES = 40
"""The number of last lines of a message that are shown."""

RULES = (Check.ARGUMENTS, Check.LOGGING)
"""Checks of whether a framework refuses bad input, which compare no step."""


class Heading(NamedTuple):
    """The beginnings of the title and of the first sentence for one kind of cause."""

    title: str
    sentence: str


ADVICE = Heading("Advice", "This is not a bug, since it breaks nothing that {} promises")
CRASH = Heading("Crash", "{} crashes in {}")
HANG = Heading("Hang", "{} hangs in {}")
DECLINED = Heading("Step declined", "{} declines {}")
GRADIENT = Heading("Wrong gradient", "{} computes a wrong gradient in a training step")
NUMBER = Heading("Wrong logged number", "{} logs a wrong number for a training step")

FAILURES = (CRASH, HANG, DECLINED)
"""Kinds of causes that end a step before it gives numbers."""

HANGING = "hang: "
"""The beginning of the message on a step that does not end."""

FOLDERS = re.compile(r"(?<= at )\S+/")
"""The folders in a place, which are left out because the traceback has them."""

BY_VERDICT = {Verdict.CRASHED: CRASH, Verdict.DECLINED: DECLINED}

BY_CHECK = {
    Check.ARGUMENTS: Heading(
        "Configuration", "{} handles a configuration differently from what it states"
    ),
    Check.LOGGING: Heading(
        "Log", "{} handles the logs of micro-batches differently from what it states"
    ),
    Check.SHARDING: Heading(
        "Wrong sharding", "{} distributes the samples of a training step wrongly"
    ),
    Check.METRIC: NUMBER,
    Check.ROLLOUTS: NUMBER,
}


def as_markdown(report: Report, cause: Cause, elsewhere: Sequence[str] = ()) -> Iterator[str]:
    """Yields the lines of a bug report; ``elsewhere`` names other engines with the mistake."""
    shown = ShownCause(report, cause)
    example, kind = shown.example, _kind(shown)
    is_of_rules = kind is ADVICE or example.check in RULES
    worked = None if is_of_rules else worked_step(report, example)
    judged = sum(one.verdict in JUDGED for one in report.findings)
    slugs = Counter(sorted(finding.identity.slug for finding in shown.findings))
    said = _failed(shown, kind) if kind in FAILURES else escape_markdown(cause.words)
    statement = ", ".join([said, *map(_fact, cause.condition_words)])
    entry = entry_of(report, cause)
    text = TEMPLATE.render(
        report=report,
        shown=shown,
        title=_title(shown, kind, _title_of_rules(shown) if is_of_rules else statement, entry),
        sentence=kind.sentence.format(f"{report.adapter} (engine {report.engine})", _step(shown)),
        what=(is_of_rules and escape_markdown(_explanation(example))) or statement,
        judged="the" if kind is ADVICE else judged,  # advice is not among the judged verdicts
        known=entry,
        reach=(entry and entry.reach) or escape_markdown(str(cause.reach)),
        impact=(entry and entry.impact) or str(cause.impact),
        elsewhere=elsewhere,
        key=_key(report, example),
        is_of_rules=is_of_rules,
        is_failure=kind in FAILURES,
        example=example,
        worked=worked,
        modes=words.MODES,
        right=words.DENOMINATORS,
        choices=words.open_choices(worked) if worked else {},
        seen_in=", ".join(f"{subject(slug)} ({count})" for slug, count in slugs.items()),
        places=Counter(one.place for one in shown.findings if one.place).most_common(),
        command=command(report, example),
        placeholders=PLACEHOLDERS,
        project=PROJECT,
        homepage=_homepage(),
        versions=_versions(report),
    )
    yield from text.rstrip().split("\n")


def _title(
    shown: ShownCause, kind: Heading, statement: str, entry: KnownMistake | KnownFailure | None
) -> str:
    """Returns the kind of mistake, the logged number if the mistake is in one, and the mistake."""
    key = _key(shown.report, shown.example) if kind is NUMBER else ""
    number = f" `{key}`" if key else ""
    return f"{kind.title}{number}: {entry.reason.removesuffix('.') if entry else statement}"


def _key(report: Report, finding: Finding) -> str:
    """Returns the framework's own name of a finding's logged number, if it is known."""
    if finding.logged is None:
        return ""
    spec = next((one for one in CHECK_SPECS if one.slug == finding.identity.slug), None)
    return report.logged_as.get(str(spec.metric), "") if spec else ""


def _step(shown: ShownCause) -> str:
    """Returns words on the step of the example: a training step, with its rare properties."""
    if not shown.rare:
        return "an ordinary training step"
    return f"a training step {' and '.join(shown.rare)}"


def _kind(shown: ShownCause) -> Heading:
    if shown.cause.severity is Severity.ADVICE:
        return ADVICE
    example = shown.example
    if shown.cause.statement.startswith(HANGING):
        return HANG
    of_check = NUMBER if example.logged else BY_CHECK.get(example.check, GRADIENT)
    return BY_VERDICT.get(example.verdict, of_check)


def _failed(shown: ShownCause, kind: Heading) -> str:
    """Returns the framework's message, or for a hang the places where the example's ranks wait."""
    if kind is not HANG:
        return _name(shown.cause.words)
    return _name(FOLDERS.sub("", failure(shown.example).removeprefix("hang: ")))


def _title_of_rules(shown: ShownCause) -> str:
    more = len(shown.findings) - 1
    first = _explanation(shown.example).partition(";")[0].partition(": here")[0]
    return f"{escape_markdown(first)}{f', and {more} more' if more else ''}"


def _fact(words: str) -> str:
    """Returns a fact of a condition, with the name of a mode as code."""
    where, _, name = words.rpartition(" ")
    return f"{where} `{name}`" if name in tuple(Mode) else escape_markdown(words)


def _explanation(finding: Finding) -> str:
    """Returns the diagnosis of a finding, or else the end of the framework's message."""
    if finding.diagnosis is None:
        return explain(finding)
    return finding.diagnosis.first_explanation


def _message(finding: Finding) -> str:
    """Returns the end of the framework's message."""
    without_code = FRAME_AND_CODE.sub(r"\1", finding.message or "")
    return "\n".join(preformatted(without_code.splitlines()[-MOST_LINES:]))


def _homepage() -> str:
    urls = dict(url.split(", ") for url in metadata(PROJECT).get_all("Project-URL", []))
    return str(urls["Homepage"])


def _versions(report: Report) -> dict[str, str | None]:
    source, environment = report.source, report.environment
    return {
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


def _name(text: str) -> str:
    """Returns a text as code, in which no character has an effect."""
    return f"`{printable(text).replace('`', '')}`"


TEMPLATE = environment(
    explanation=_explanation,
    subject=subject,
    message=_message,
    name=_name,
    layout=words.layout_words,
    samples=words.sample_table,
    denominators=words.denominators,
    factors=words.factors,
    logged=words.logged,
    tokens=words.token_table,
    rows=words.table,
).get_template("issue.md.jinja")
