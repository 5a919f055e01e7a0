"""The answer to a user about a recipe: which mistakes reach it, and which numbers are wrong."""

from __future__ import annotations

import pickle
import re
from fnmatch import fnmatch
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
from conformance.findings.verdict import Check, Verdict
from conformance.laws.law import LAWS
from conformance.plan.checks import CHECK_SPECS, check_spec
from conformance.recipes import words
from conformance.recipes.matching import chosen_options, looked_at
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

SEEN = (Verdict.CONFORMS, Verdict.MISMATCH, Verdict.ADVICE)
"""Verdicts of findings whose step gave numbers to compare."""

METRICS = {spec.slug: spec.metric for spec in CHECK_SPECS if spec.metric is not None}

NOT_LOOKED_AT = "not looked at"

NAMED_KEY = re.compile(r"`([^`]+)` changes from")
"""The words in which a law's finding names a number that the framework logs."""

OF_LAWS = {law.mistake for law in LAWS.values()}
"""Mistakes named after the change that moves a logged number, and not after the number."""

OF_REWARDS = "depends_on_reward_level"
"""The mistake whose laws change rewards to values that few recipes have."""


class Reached(FrozenModel):
    """A mistake that reaches a recipe."""

    mistake: str
    says: str
    """The sentence of `reports/known`, or the catalogue's if the mistake was not known before."""

    severity: Severity
    is_known: bool
    on_purpose: str | None
    """The pull request or document that introduced the behaviour on purpose; None if none did."""

    rare: list[str]
    """Properties of every batch that shows the mistake, which ordinary batches lack."""

    keys: list[str]
    """The logged numbers that the mistake makes wrong."""

    at_size: str
    """The effect of the mistake on a step of the recipe's own size."""

    line: str | None
    upstream: str | None
    example: str
    """A finding that shows the mistake, in words."""

    finding: str


class NotReached(FrozenModel):
    """A known mistake that this recipe does not have."""

    mistake: str
    says: str
    reach: str | None
    finding: str | None
    """A finding that would show the mistake; None if no such finding was made."""


class Key(FrozenModel):
    """A number that the framework logs."""

    name: str
    means: str
    state: str


class Answer(FrozenModel):
    """Everything that a user is told about a recipe."""

    sentence: str
    is_right: bool
    framework: str
    version: str
    engine: str
    weight: list[str]
    losses: list[str]
    elsewhere: list[str]
    """Reductions of other frameworks that give each token the weight that it has here."""

    chosen: dict[str, str]
    defaults: dict[str, str]
    ran: str
    reached: list[Reached]
    not_reached: list[NotReached]
    not_tested: list[NotReached]
    unsteady: list[str]
    """Findings that were wrong at first, and right when the check was repeated."""

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


def answer_for_config(config: object, ranks: int = 1, **options: Any) -> Answer:
    """Reads and runs a framework's configuration object as a recipe for a number of ranks.

    ``options`` are ``engine``, ``source``, ``most_ranks`` and ``budget``.

    Raises:
        ConformanceError: no adapter reads objects of this type.
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
    """The fields of an object that can be pickled for another process."""
    return {name: value for name, value in vars(config).items() if _is_portable(value)}


def _is_portable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


def answer(run: Run) -> Answer:
    """The answer that a run gives."""
    record = run.record
    report = run.report
    reached = [_reached(cause, run) for cause in report.causes]
    absent = [*_absent(run)]
    known_options = looked_at(record)
    telling = chosen_options(record, run.match)
    values, chosen = run.recipe.values, run.recipe.chosen
    return Answer(
        sentence=_sentence(run, reached),
        is_right=_is_right(run, reached),
        framework=record.title,
        version=report.source.version or (report.source.revision or "")[:12],
        engine=report.engine,
        weight=[*words.weight(run.recipe, run.match, record)],
        losses=[*words.losses(run.match, report.conventions)],
        elsewhere=[*words.elsewhere(report, run.match, record)],
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
    """Whether a default chooses a loss, rather than tuning one by a number."""
    return isinstance(value, str | bool)


def _seen(run: Run) -> list[Finding]:
    return [one for one in run.report.findings if one.verdict in SEEN]


def _ran(run: Run) -> str:
    """The number of findings and the layout that they were made on, in words."""
    layout = run.layout
    made = len(run.report.findings)
    cut = "" if made == run.planned else f" of {run.planned}; a larger --budget makes the others,"
    left = f"; without {', '.join(run.left_out)}" if run.left_out else ""
    return f"{counted(len(_seen(run)), 'finding')}{cut} on {layout}{left}"


def _is_gradient(finding_id: str) -> bool:
    return _keys_check(finding_id) is None


def _keys_check(finding_id: str) -> str | None:
    """The slug of a finding about a logged number; None for a finding about a gradient."""
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
    """A cause in the words of the answer."""
    entry = _entry(cause, run)
    [example] = [one for one in run.report.findings if one.id == cause.findings[0]]
    keys = _keys(cause, run)
    sized = (
        effect(cause.name, run.recipe, run.match, run.report.conventions)
        if any(map(_is_gradient, cause.findings))
        else None
    )
    return Reached(
        mistake=cause.name,
        says=entry.reason if entry else f"{cause.statement}.",
        severity=cause.severity,
        is_known=entry is not None,
        on_purpose=entry.deliberate if entry else None,
        rare=cause.reach.rare or [*_rare_rewards(cause)],
        keys=keys,
        at_size=str(sized or ""),
        line=(entry.address or entry.line) if entry else cause.where or None,
        upstream=_upstream(entry),
        example=f"{example.id}: {explain(example) if example.diagnosis else failure(example)}",
        finding=example.id,
    )


def _rare_rewards(cause: Cause) -> Iterator[str]:
    """Yield the rewards that a cause needs, if it does not show with ordinary rewards."""
    laws = [check_spec(one.partition("/")[0]).law for one in cause.findings]
    if all(law is not None and law.mistake == OF_REWARDS for law in laws):
        yield from dict.fromkeys(f"where {law.says}" for law in laws if law is not None)


def _entry(cause: Cause, run: Run) -> KnownMistake | KnownFailure | None:
    """The entry of `reports/known` for a cause; its line is not compared, as none was traced."""
    audited = known(run.report.adapter, run.report.engine)
    if audited is None:
        return None
    names = {cause.name, *_untold(cause, run)} - {UNEXPLAINED}
    alike = [one for one in audited.mistakes if names & {*one.names} and one.allows(cause)]
    found = [one for one in (audited.of(cause), *alike) if one is not None]
    keys = _keys(cause, run) if cause.name in OF_LAWS else []
    return next((one for one in found if not keys or _names_one(one.reason, keys)), None)


def _untold(cause: Cause, run: Run) -> set[str]:
    """The other mistakes that would explain every finding of a cause as well."""
    of_cause = [one for one in run.report.findings if one.id in cause.findings]
    return set.intersection(
        *({*one.diagnosis.also} if one.diagnosis else set() for one in of_cause)
    )


def _names_one(reason: str, keys: Sequence[str]) -> bool:
    """Whether a reason names one of these logged numbers."""
    named = re.findall(r"`([^`]+)`", reason)
    return any(fnmatch(key, one) for key in keys for one in named)


def _upstream(entry: KnownMistake | KnownFailure | None) -> str | None:
    return None if entry is None else ": ".join(filter(None, (entry.upstream, entry.link)))


def _absent(run: Run) -> Iterator[NotReached]:
    """Yield the known mistakes of the engine that are not among the causes."""
    audited = known(run.report.adapter, run.report.engine)
    if audited is None:
        return
    met = [_entry(cause, run) for cause in run.report.causes]
    for entry in audited.mistakes:
        if entry in met:
            continue
        shown = [
            one.finding
            for one in run.excluded
            if one.mistake in entry.names
            and entry.covers(one.finding)
            and one.facts.issuperset(entry.needs)
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
    for finding in _seen(run):
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
    return _is_gradient_seen(run) and not wrong


def _is_gradient_seen(run: Run) -> bool:
    return any(_is_gradient(one.id) for one in _seen(run))


def _sentence(run: Run, reached: Sequence[Reached]) -> str:
    """The first sentence: whether log and gradient are right."""
    if not _seen(run):
        reason = next((failure(one) for one in run.report.findings), "no check fits it")
        return f"Your gradient was not seen: nothing of this recipe could be run: {reason}."
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
    """The part of the first sentence about the log."""
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
    """The part of the first sentence about the gradient."""
    wrong = [one for one in reached if one.severity is Severity.GRADIENT]
    failed = [one for one in reached if one.severity is Severity.NOT_TRAINED]
    chosen = [one for one in reached if one.severity is Severity.ADVICE and _turns(one)]
    title = run.record.title
    if wrong:
        return f"your gradient is wrong in {counted(len(wrong), 'way')}{_only(wrong)}"
    if not _is_gradient_seen(run):
        return "your gradient was not seen"
    if failed:
        ways = counted(len(failed), "way")
        return f"your gradient is right where a step is trained: ordinary steps fail in {ways}"
    if any(one.on_purpose for one in chosen):
        return f"your gradient is right as {title} means it, and not the plain mean of its name"
    if chosen:
        return f"your gradient is right by a convention that no document of {title} states"
    return "your gradient is right"


def _only(wrong: Sequence[Reached]) -> str:
    """Words on the rare batches that mistakes need; empty if none needs any."""
    needed = [" and ".join(one.rare) for one in wrong if one.rare]
    if not needed:
        return ""
    some = "" if len(needed) == len(wrong) else f"{len(needed)} of them "
    return f", {some}only {' or '.join(dict.fromkeys(needed))}"


def _turns(one: Reached) -> bool:
    """Whether a mistake changes which mean the loss is, and not how advantages are computed."""
    return _is_gradient(one.finding) and not one.finding.startswith(Check.ADVANTAGES)


def _names(reached: Sequence[Reached], *severities: Severity) -> list[str]:
    """The logged numbers that mistakes of some severities make wrong."""
    of_severity = (one.keys for one in reached if one.severity in severities)
    return [*dict.fromkeys(chain.from_iterable(of_severity))]
