"""The causes of all wrong findings of a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from conformance.corpus.configurations import CONFIG_CASES, LOG_CASES
from conformance.explain.catalogue.mistake import MISTAKES, OPTION_IGNORED, Kind
from conformance.explain.conditions.facts import LOGGED
from conformance.explain.conditions.wording import OBJECTIVES, is_choice, said
from conformance.explain.cover import Table, cover, explanation
from conformance.explain.evidence import Evidence
from conformance.explain.impact import impact
from conformance.explain.reach import Reaching, supposed_of
from conformance.findings.badness import badness, failure
from conformance.findings.cause import NO_FACTOR, UNEXPLAINED, Cause, Impact, Reach, Severity
from conformance.findings.finding import GENERATED
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import WRONG, Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from conformance.explain.conditions.wording import ChosenBy
    from conformance.explain.cover import Pair
    from conformance.findings.cause import CauseTrace, Clues
    from conformance.findings.finding import Finding, FindingId


_Shared = TypeVar("_Shared")

NAMED_INPUTS = 3
"""The most bad inputs that a statement names; further ones are only counted."""

INPUTS = {
    **{f"{case.check}.{case.name}": case.says for case in CONFIG_CASES},
    **{case.name: case.says for case in LOG_CASES},
}
"""Configurations and logs in words: configurations by check slug, logs by case name."""


def causes(findings: Sequence[Finding], clues: Sequence[Clues], chosen_by: ChosenBy) -> list[Cause]:
    """The causes of a report's findings, the worst first."""
    known = [(finding, clues[finding.clues]) for finding in findings if finding.clues is not None]
    table = Table(known)
    by_name = {finding.id: finding for finding in findings}
    found = [*_explained(table, by_name, chosen_by)]
    claimed = {name for cause in found for name in cause.findings}
    left = [finding for finding in findings if finding.id not in claimed]
    reaching = Reaching(table, findings, chosen_by)
    everything = []
    several = [*found, *_alike(left, table, chosen_by)]
    shared = Counter(name for cause in several for name in cause.findings)
    for cause in several:
        worst = [by_name[name] for name in cause.findings if is_worst(by_name[name], cause)]
        alone = [one for one in worst if shared[one.id] == 1]
        facts = supposed_of(cause)
        found_out: dict[str, Reach | Impact] = {"reach": reaching.of(cause, worst)}
        if not cause.also:  # an ambiguous factor has no known size
            found_out["impact"] = impact(
                cause.name, cause.severity, facts, worst, alone, OBJECTIVES
            )
        everything.append(cause.model_copy(update=found_out))

    def harm(cause: Cause) -> tuple[int, tuple[bool, bool, float, float], int]:
        worst = max(badness(by_name[name]) for name in cause.findings)
        return -cause.harm.rank, worst, len(cause.findings)

    return sorted(everything, key=harm, reverse=True)


def with_traces(
    causes: Iterable[Cause], traces: Mapping[str, CauseTrace], findings: Mapping[str, Finding]
) -> list[Cause]:
    """The causes with the traces of their findings, given by the ids of findings.

    A cause that no known mistake predicts is split by the first suspected line of its findings,
    since a line is better evidence than a count that merely fits. A part is merged into the worst
    cause of a known mistake that suspects the part's line first, if there is one. A finding that
    was not traced stays with a traced finding, namely the one that belongs to the fewest causes: a
    finding of several causes may have been traced for another cause.
    """
    several = [*causes]
    claims = Counter(name for cause in several for name in cause.findings)
    traced = [*chain.from_iterable(_with_traces(one, traces, findings, claims) for one in several)]
    explained: dict[str, int] = {}
    for number, (place, cause) in enumerate(traced):
        if place is None and cause.suspects and not is_inferred(cause):
            explained.setdefault(cause.suspects[0].place, number)
    told: dict[str | int, list[Cause]] = defaultdict(list)
    for number, (place, cause) in enumerate(traced):
        told[number if place is None else explained.get(place, place)].append(cause)
    return [_one(sorted(group, key=is_inferred), findings) for group in told.values()]


def is_inferred(cause: Cause) -> bool:
    """Whether no mistake of the catalogue predicts the wrong numbers of a cause."""
    is_count = cause.name in MISTAKES and MISTAKES[cause.name].kind is Kind.COUNT
    is_measured = cause.severity in (Severity.GRADIENT, Severity.LOGGED)
    return is_measured and (cause.name == UNEXPLAINED or is_count)


def _with_traces(
    cause: Cause,
    traces: Mapping[str, CauseTrace],
    findings: Mapping[str, Finding],
    claims: Mapping[str, int],
) -> Iterator[tuple[str | None, Cause]]:
    """Yield the causes into which traces split a cause, each with its line.

    The line is None for a cause that a known mistake explains.
    """
    traced = [name for name in cause.findings if name in traces]
    smallest = traces[min(traced, key=claims.__getitem__)] if traced else None
    if not is_inferred(cause) or smallest is None:
        yield None, cause if smallest is None else cause.model_copy(update=dict(smallest))
        return
    groups: dict[str | None, list[str]] = defaultdict(list)
    told: dict[str | None, str] = {None: cause.words}
    for name in cause.findings:
        trace = traces.get(name, smallest)
        telling = [one for one in trace.suspects[:1] if trace.chain and one.why != NO_FACTOR]
        place = telling[0].place if telling else None
        groups[place].append(name)
        for one in telling:
            told.setdefault(place, f"{one.instead or 'a different factor'} at {place}")
    for place, names in groups.items():
        condition = dict(zip(cause.condition, cause.condition_words, strict=True))
        of_place = [findings[name] for name in names]
        split = _cause(cause.name, told[place], condition, cause.untested, of_place)
        found = next((traces[name] for name in split.findings if name in traces), smallest)
        yield place, split.model_copy(update={**dict(found), "reach": cause.reach})


def _one(causes: Sequence[Cause], findings: Mapping[str, Finding]) -> Cause:
    """The merged cause of causes at one line, with the conditions and reach that all share.

    It has the first cause's name, unless this cause is inferred and another has another name.
    """
    worst, *others = causes
    if not others:
        return worst

    def shared(of: Callable[[Cause], Sequence[_Shared]]) -> list[_Shared]:
        return [each for each in of(worst) if all(each in of(other) for other in others)]

    condition = shared(lambda one: [*zip(one.condition, one.condition_words, strict=True)])
    untested = shared(lambda one: one.untested)
    reach = Reach(
        options=shared(lambda one: one.reach.options),
        rare=shared(lambda one: one.reach.rare),
        untested=shared(lambda one: one.reach.untested),
    )
    is_one = {one.name for one in causes} == {worst.name} or not is_inferred(worst)
    name = worst.name if is_one else UNEXPLAINED
    of_all = [findings[each] for one in causes for each in one.findings]
    found = {"suspects": worst.suspects, "chain": worst.chain, "token": worst.token}
    merged = _cause(name, worst.words, dict(condition), untested, of_all)
    return merged.model_copy(update={**found, "reach": reach})


def _conditions(
    table: Table,
    supposed: Sequence[str],
    claims: int,
    absent: int,
    chosen_by: ChosenBy,
    needed: Sequence[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """The shown facts of a cause's supposed condition, each in words, and its untested facts.

    A fact is shown if findings prove that it matters, if it says which number or gradient is wrong,
    or if the mistake needs it.
    """
    shown = [*Evidence(table, claims, absent, chosen_by).shown(), *needed]
    condition = [fact for fact in supposed if fact in shown or not is_choice(fact)]
    untested = [fact for fact in supposed if fact not in condition]
    return {fact: said(fact, chosen_by) for fact in condition}, untested


def _explained(
    table: Table, findings: Mapping[str, Finding], chosen_by: ChosenBy
) -> Iterator[Cause]:
    """Yield the causes of the findings that known mistakes explain."""
    pairs = cover(table)
    claimed: dict[Pair, dict[str, Finding]] = {pair: {} for pair in pairs}
    claims: dict[Pair, int] = defaultdict(int)
    for name, explanations in table.explanations.items():
        for part in explanation(explanations, pairs) or ():
            pair = next(p for p in pairs if part.is_given_by([p]))
            claimed[pair][name] = findings[name]
            claims[pair] |= part.bit
    for pair, found in claimed.items():
        absent, needed = table.absent(pair.mistake), MISTAKES[pair.mistake].only
        of_pair = _conditions(table, pair.condition, claims[pair], absent, chosen_by, needed)
        also = table.equivalents(pair, claims[pair])
        cause = _cause(pair.mistake, _says(pair.mistake, also), *of_pair, [*found.values()])
        yield cause.model_copy(update={"also": also})


def _says(mistake: str, equivalents: Sequence[str]) -> str:
    """The sentence of a mistake and of its equivalents, which no finding can distinguish from it.

    The words that all sentences begin with appear once.
    """
    first = MISTAKES[mistake].says.split(" ")
    others = [MISTAKES[name].says.split(" ") for name in equivalents]
    return " or ".join([" ".join(first), *(" ".join(_rest(words, first)) for words in others)])


def _rest(words: Sequence[str], first: Sequence[str]) -> Sequence[str]:
    """The words of a sentence, from the last one of the beginning that it shares with ``first``."""
    pairs = enumerate(zip(words, first, strict=False))
    alike = next((place for place, (one, other) in pairs if one != other), 0)
    return words[max(alike - 1, 0) :]


def _alike(findings: Iterable[Finding], table: Table, chosen_by: ChosenBy) -> Iterator[Cause]:
    """Yield one cause for each group of findings that failed in the same way."""
    groups: dict[tuple[str, str, str | None], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict in (*WRONG, Verdict.ADVICE):
            groups[*_kind(finding), _apart(finding)].append(finding)
    for (name, form, _), group in groups.items():
        statements = {failure(finding) for finding in group if finding.diagnosis is None}
        statement = statements.pop() if len(statements) == 1 else form
        if len(group) == 1 and (numbers := _reported(group[0])):
            statement = f"{MISTAKES[UNEXPLAINED].says}: {numbers}"
        if group[0].is_of_bad_input and name in MISTAKES:
            statement = f"{form}: {_inputs(group)}"
        claims = sum(table.bits.get(finding.id, 0) for finding in group)
        supposed = table.described(claims) if claims else ()
        if name == OPTION_IGNORED:  # the statement must name the option
            supposed = tuple(fact for fact in supposed if not fact.startswith("in "))
        absent = (table.right if name in MISTAKES else table.trained) & ~claims
        of_group = _conditions(table, supposed, claims, absent, chosen_by)
        yield _cause(name, statement, *of_group, group)


def _kind(finding: Finding) -> tuple[str, str]:
    """The name of a finding's failure, and a description without its numbers."""
    diagnosis = finding.diagnosis
    if diagnosis is None:
        return finding.verdict, numberless(failure(finding))
    if diagnosis.name == OPTION_IGNORED and finding.verdict is Verdict.MISMATCH:
        return diagnosis.name, diagnosis.explanation.partition(": ")[0]
    if diagnosis.name == UNEXPLAINED:
        pattern = diagnosis.explanation.partition("; ")[0].rpartition(", ")[2]
        if _reported(finding):  # the number differs in each step
            pattern = "another number is reported than expected"
        return UNEXPLAINED, f"{MISTAKES[UNEXPLAINED].says}: {pattern}"
    is_about_rules = finding.is_of_bad_input or finding.check is Check.POISON
    has_rule = not is_about_rules or finding.verdict is not Verdict.ADVICE
    name = diagnosis.name  # of a known mistake, or of several that are combined
    stated = MISTAKES[name].says if name in MISTAKES else name.replace("_", " ")
    return name, stated if has_rule else f"{stated}, against no rule that it states"


def _apart(finding: Finding) -> str | None:
    """A key that keeps apart causes with equal failures, for bad inputs and logged numbers."""
    if finding.is_of_bad_input:
        return finding.check
    return str(finding.identity.slug) if _reported(finding) else None


def _reported(finding: Finding) -> str | None:
    """The explanation of a logged number that no mistake explains; None for other findings."""
    found = finding.diagnosis
    is_one = found is not None and found.name == UNEXPLAINED and "reported" in found.numbers
    return found.explanation if found is not None and is_one else None


def _inputs(findings: Iterable[Finding]) -> str:
    """The configurations and logs of findings: the first `NAMED_INPUTS`, then a count."""
    said = {_input(finding.identity) for finding in findings}
    first, others = sorted(said)[:NAMED_INPUTS], len(said) - NAMED_INPUTS
    return "; ".join([*first, *([f"and {others} more"] if others > 0 else [])])


def _input(identity: FindingId) -> str:
    """A configuration or log in words; its name if this version has no such case."""
    named = (INPUTS.get(name) for name in (identity.slug, identity.case))
    return next(filter(None, named), f"{identity.slug} of {identity.case}")


def _cause(
    name: str,
    words: str,
    condition: Mapping[str, str],
    untested: Sequence[str],
    findings: Sequence[Finding],
) -> Cause:
    smallest_first = sorted(findings, key=_size)
    places = {finding.place for finding in findings}
    return Cause(
        name=name,
        condition=[*condition],
        untested=[*untested],
        severity=min(map(_severity, findings), key=[*Severity].index),
        statement=", ".join([words, *condition.values()]),
        place=places.pop() if len(places) == 1 else None,
        findings=[finding.id for finding in smallest_first],
    )


def _size(finding: Finding) -> tuple[int, int, int, bool, str]:
    """A sort key: fewest ranks first, then the plainest check, the shortest layout, and the id.

    Cases of the corpus come before generated cases, which need a seed to be reproduced.
    """
    layout, check = finding.layout, [*Check].index(finding.check)
    is_generated = finding.case == GENERATED
    return layout.world_size, check, len(str(layout)), is_generated, finding.id


def is_worst(finding: Finding, cause: Cause) -> bool:
    """Whether a finding of a cause has the cause's severity."""
    return _severity(finding) is cause.severity


def _severity(finding: Finding) -> Severity:
    if finding.verdict is Verdict.ADVICE:
        return Severity.ADVICE
    if finding.is_of_bad_input and finding.scale is None:
        return Severity.ACCEPTED
    if finding.verdict is not Verdict.MISMATCH:
        return Severity.NOT_TRAINED
    is_logged = finding.identity.slug in LOGGED
    return Severity.LOGGED if is_logged else Severity.GRADIENT
