"""What a run of a recipe answers: which known mistakes reach it, and which numbers are wrong."""

from __future__ import annotations

import pickle
import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import Metric
from adapters.contract.recipe import Typed
from conformance.comparing.known import known
from conformance.explain.conditions.wording import counted
from conformance.findings.badness import explain, failure
from conformance.findings.cause import UNEXPLAINED, Severity
from conformance.findings.errors import InvalidRecipeError
from conformance.findings.finding import FrozenModel
from conformance.findings.verdict import UNJUDGED, Check
from conformance.plan.checks import CHECK_SPECS
from conformance.recipes import words
from conformance.recipes.matching import looked_at, of_match
from conformance.recipes.running import BUDGET, MOST_RANKS, Run, run
from conformance.recipes.scaling import ORDER
from conformance.recipes.size import effect
from conformance.runs import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.comparing.expectations import KnownFailure, KnownMistake
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding

OF_NUMBERS = (Check.METRIC, Check.ROLLOUTS, Check.LAWS)
"""Checks of logged numbers; `Check.REJECTION` has some as well."""

METRICS = {spec.slug: spec.metric for spec in CHECK_SPECS if spec.metric is not None}

NOT_LOOKED_AT = "not looked at"

NAMED_KEY = re.compile(r"`([^`]+)` changes from")
"""How a law's finding names a number that the framework logs."""


class Reached(FrozenModel):
    """A mistake that reaches a recipe."""

    mistake: str
    says: str
    """The sentence of `reports/known`, or of the catalogue if it was not known before."""

    severity: Severity
    is_known: bool
    on_purpose: str | None
    """The pull request or document that made it on purpose."""

    rare: list[str]
    """What all batches that show it have, and an ordinary one has not."""

    keys: list[str]
    """The logged numbers that it makes wrong."""

    at_size: str
    """What it does to a step of the recipe's own size."""

    line: str | None
    upstream: str | None
    example: str
    """A finding that shows it, in words."""

    finding: str


class NotReached(FrozenModel):
    """A known mistake that this recipe does not have."""

    mistake: str
    says: str
    reach: str | None
    finding: str | None
    """The finding in which it would show; None if none was made."""


class Key(FrozenModel):
    """A number of the log."""

    name: str
    means: str
    state: str


class Answer(FrozenModel):
    """Everything that is said of a recipe."""

    sentence: str
    is_right: bool
    framework: str
    version: str
    engine: str
    weight: list[str]
    losses: list[str]
    chosen: dict[str, str]
    defaults: dict[str, str]
    ran: str
    reached: list[Reached]
    not_reached: list[NotReached]
    not_tested: list[NotReached]
    unsteady: list[str]
    """Findings that were wrong once, and right when they were made again."""

    logged: list[Key]
    instead: list[str]
    not_looked_at: dict[str, str]


def answered(
    adapter: str,
    typed: Typed,
    *,
    engine: str | None = None,
    source: str | None = None,
    most_ranks: int = MOST_RANKS,
    budget: float = BUDGET,
) -> Answer:
    """Reads and runs a recipe.

    Raises:
        ConformanceError: the recipe or an option is wrong.
    """
    return answer(
        run(adapter, typed, engine=engine, source=source, most_ranks=most_ranks, budget=budget)
    )


def of_object(config: object, ranks: int = 1, **options: Any) -> Answer:
    """Which known mistakes reach a run with a framework's configuration object, on so many ranks.

    ``options`` are ``engine``, ``source``, ``most_ranks`` and ``budget``.

    Raises:
        ConformanceError: no adapter reads such an object.
    """
    package = type(config).__module__.partition(".")[0]
    name = next((name for name in registry.known() if _package(name) == package), None)
    if name is None:
        raise InvalidRecipeError(
            f"no adapter reads a {type(config).__qualname__} of {package}",
            "give the configuration of a framework, or use the command rl-loss-conformance recipe",
        )
    return answered(name, Typed(fields=_plain(config), ranks=ranks), **options)


def _package(name: str) -> str | None:
    return next(iter(registry.adapter_classes(name).values())).package


def _plain(config: object) -> dict[str, Any]:
    """The fields of an object that another process can be given."""
    return {name: value for name, value in vars(config).items() if _is_portable(value)}


def _is_portable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


def answer(run: Run) -> Answer:
    """The answer of a run."""
    record = run.record
    report = run.report
    reached = [_reached(cause, run) for cause in report.causes]
    absent = [*_absent(run)]
    known_options = looked_at(record)
    telling = of_match(record, run.match)
    values, chosen = run.recipe.values, run.recipe.chosen
    return Answer(
        sentence=_sentence(run, reached),
        is_right=_is_right(run, reached),
        framework=record.title,
        version=report.source.version or (report.source.revision or "")[:12],
        engine=report.engine,
        weight=[*words.weight(run.recipe, run.match, record)],
        losses=[*words.losses(run.match, report.conventions)],
        chosen={n: str(values[n]) for n in sorted(chosen) if n in known_options},
        defaults={
            n: str(values[n])
            for n in sorted(known_options)
            if n in values and n not in chosen and (n in telling or _is_switch(values[n]))
        },
        ran=_ran(run),
        reached=reached,
        not_reached=[one for one in absent if one.finding],
        not_tested=[one for one in absent if not one.finding],
        unsteady=[*run.unsteady],
        logged=[*_logged(run)],
        instead=[
            f"{name}={theirs} is run as {name}={ours}"
            for name, (theirs, ours) in run.match.instead.items()
        ],
        not_looked_at=dict(run.match.not_looked_at),
    )


def _is_switch(value: object) -> bool:
    """Whether a default says which of several losses is trained, and is no number of another."""
    return isinstance(value, str | bool)


def _judged(run: Run) -> list[Finding]:
    return [one for one in run.report.findings if one.verdict not in UNJUDGED]


def _ran(run: Run) -> str:
    """What was run, in words."""
    layout = run.layout
    made = len(run.report.findings)
    cut = "" if made == run.planned else f" of {run.planned}; a larger --budget makes the others,"
    left = f"; without {', '.join(run.left_out)}" if run.left_out else ""
    return f"{len(_judged(run))} findings{cut} on {layout}{left}"


def _is_gradient(finding_id: str) -> bool:
    return _keys_check(finding_id) is None


def _keys_check(finding_id: str) -> str | None:
    """The slug of a finding that is of a logged number; None if it is of a gradient."""
    slug = finding_id.partition("/")[0]
    return slug if slug in METRICS or slug.partition(".")[0] == Check.LAWS else None


def _keys(cause: Cause, run: Run) -> list[str]:
    """The framework's names of the logged numbers that a cause is about."""
    by_id = {one.id: one for one in run.report.findings}
    found: dict[str, None] = {}
    for name in cause.findings:
        metric = METRICS.get(name.partition("/")[0])
        if metric is not None:
            found[run.report.logged_as.get(metric, str(metric))] = None
        elif _keys_check(name):
            finding = by_id[name]
            found |= dict.fromkeys(NAMED_KEY.findall(explain(finding)))
    return [*found]


def _reached(cause: Cause, run: Run) -> Reached:
    """What is said of a cause."""
    entry = _entry(cause, run)
    [example] = [one for one in run.report.findings if one.id == cause.findings[0]]
    is_of_gradient = any(map(_is_gradient, cause.findings))
    sized = effect(cause.name, run.recipe, run.match, run.report.conventions)
    return Reached(
        mistake=cause.name,
        says=entry.reason if entry else f"{cause.statement}.",
        severity=cause.severity,
        is_known=entry is not None,
        on_purpose=entry.deliberate if entry else None,
        rare=cause.reach.rare,
        keys=_keys(cause, run),
        at_size=str(sized) if is_of_gradient else "",
        line=(entry.address or entry.line) if entry else cause.where or None,
        upstream=_upstream(entry),
        example=f"{example.id}: {explain(example) if example.diagnosis else failure(example)}",
        finding=example.id,
    )


def _entry(cause: Cause, run: Run) -> KnownMistake | KnownFailure | None:
    """The entry that describes a cause, which is not traced: its line is not asked for."""
    audited = known(run.report.adapter, run.report.engine)
    # A law's break is told by the numbers that change, and entries are of others of its name too.
    if audited is None or all(one.startswith(f"{Check.LAWS}.") for one in cause.findings):
        return None
    alike = (one for one in audited.mistakes if cause.name in one.names and one.allows(cause))
    return audited.of(cause) or (next(alike, None) if cause.name != UNEXPLAINED else None)


def _upstream(entry: KnownMistake | KnownFailure | None) -> str | None:
    return None if entry is None else ": ".join(filter(None, (entry.upstream, entry.link)))


def _absent(run: Run) -> Iterator[NotReached]:
    """Yield the known mistakes of the engine that no cause is."""
    audited = known(run.report.adapter, run.report.engine)
    if audited is None:
        return
    met = [_entry(cause, run) for cause in run.report.causes]
    for entry in audited.mistakes:
        if entry in met:
            continue
        shown = [
            finding
            for finding, mistake in run.excluded
            if mistake in entry.names and entry.covers(finding)
        ]
        shown.sort(key=_plainest)
        yield NotReached(
            mistake=" or ".join(entry.names),
            says=entry.reason,
            reach=entry.reach,
            finding=shown[0] if shown else None,
        )


def _plainest(finding: str) -> tuple[int, str]:
    """A sort key: the weights of the policy loss first."""
    return ORDER.index(Check(finding.partition("/")[0].partition(".")[0])), finding


def _logged(run: Run) -> Iterator[Key]:
    """Yield each number of the log that the adapter knows, and whether it is right."""
    states: dict[str, str] = {}
    for finding in _judged(run):
        metric = METRICS.get(finding.identity.slug)
        if metric is not None:
            states.setdefault(metric, "right")
    for cause in reversed(run.report.causes):
        state = "depends on how a batch is cut" if cause.severity is Severity.ADVICE else "WRONG"
        for name in cause.findings:
            metric = METRICS.get(name.partition("/")[0])
            if metric is not None:
                states[metric] = state
    for logged, name in run.report.logged_as.items():
        means = words.meaning(Metric(logged), run.report.conventions)
        yield Key(name=name, means=means, state=states.get(logged, NOT_LOOKED_AT))


def _is_right(run: Run, reached: Sequence[Reached]) -> bool:
    wrong = [one for one in reached if one.severity is not Severity.ADVICE and not one.on_purpose]
    return bool(_judged(run)) and not wrong


def _sentence(run: Run, reached: Sequence[Reached]) -> str:
    """The first sentence: whether log and gradient are right."""
    if not _judged(run):
        reason = next((failure(one) for one in run.report.findings), "no check fits it")
        return f"Nothing of this recipe could be run: {reason}."
    wrong = _names(reached, Severity.LOGGED, Severity.GRADIENT)
    cut = [name for name in _names(reached, Severity.ADVICE) if name not in wrong]
    said = [f"{_numbers(run, wrong)}; {_gradient(run, reached)}."]
    if cut:
        verb = "depends" if len(cut) == 1 else "depend"
        said.append(f"{counted(len(cut), 'number')} {verb} on how a batch is cut.")
    if run.match.instead:
        said.append(f"That is with other values of {', '.join(run.match.instead)}.")
    if len(run.report.findings) < run.planned:
        made = len(run.report.findings)
        said.append(f"The budget ended after {made} of {run.planned} findings.")
    return " ".join(said)


def _numbers(run: Run, wrong: Sequence[str]) -> str:
    """What the first sentence says of the log."""
    looked_at = sum(one.state != NOT_LOOKED_AT for one in _logged(run))
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        return f"{counted(len(wrong), 'number')} in your log {verb} wrong"
    if not looked_at:
        return "No number in your log was looked at"
    if looked_at == 1:
        return "The one number in your log that was looked at is right"
    return f"None of the {looked_at} numbers in your log that were looked at is wrong"


def _gradient(run: Run, reached: Sequence[Reached]) -> str:
    """What the first sentence says of the gradient."""
    wrong = [one for one in reached if one.severity is Severity.GRADIENT]
    failed = [one for one in reached if one.severity is Severity.NOT_TRAINED]
    chosen = [one for one in reached if one.severity is Severity.ADVICE and _turns(one)]
    if wrong:
        return f"your gradient is wrong in {counted(len(wrong), 'way')}"
    if failed:
        return f"an ordinary step cannot be run, for {counted(len(failed), 'reason')}"
    if chosen:
        title = run.record.title
        return f"your gradient is the one that {title} means, and not the plain mean of its name"
    return "your gradient is right"


def _turns(one: Reached) -> bool:
    """Whether what a framework does on purpose is about the mean that a loss is."""
    return _is_gradient(one.finding) and not one.finding.startswith(Check.ADVANTAGES)


def _names(reached: Sequence[Reached], *severities: Severity) -> list[str]:
    """The logged numbers of mistakes of some severities."""
    of_severity = (one.keys for one in reached if one.severity in severities)
    return [*dict.fromkeys(chain.from_iterable(of_severity))]
