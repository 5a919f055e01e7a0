"""A trace as text, Markdown and JSON: the tree of factors of a token's weight."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from adapters.contract.batch.altered import SHADE
from adapters.contract.job import Column
from conformance.tracing.graph import NEGLIGIBLE
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.source import source_line
from conformance.tracing.unfolded import counts, number, unfolded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract.job import Paint
    from conformance.findings.trace import Line
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.counts import Count
    from conformance.tracing.graph import Node
    from conformance.tracing.trace import Trace

MOST_LINES = 25
"""The most lines of a tree, unless the whole tree is requested."""

LONGEST_SOURCE = 76

PENDING = "by the reduction that the train step has yet to do"


def as_text(trace: Trace, other: Trace | None = None, *, whole: bool = False) -> list[str]:
    """The tree of a trace: a line for each factor, followed by the counts of its divisor.

    If another trace is given, its tree follows, and the factors that only one of them has.
    """
    if other is not None:
        trees = [*as_text(trace, whole=whole), "", *as_text(other, whole=whole)]
        return [*trees, "", *_differing(trace, other), *_differing(other, trace)]
    lines = [_headline(trace), *_suspect_lines(trace)]
    if trace.chain is not None:
        lines += [line for factor in _shown(trace.chain) for line in _tree(trace, factor, whole)]
        lines += _ending(trace)
    if whole or len(lines) <= MOST_LINES:
        return lines
    left = len(lines) - MOST_LINES + 1
    return [*lines[: MOST_LINES - 1], f"… {left} more lines: --all"]


def _differing(one: Trace, other: Trace) -> Iterator[str]:
    """Yield the factors of one trace that the other lacks."""
    left = Counter(_factor_lines(other))
    for line in _factor_lines(one):
        if not left[line]:
            yield f"only in {one.finding}: {line}"
        left[line] -= 1


def _factor_lines(trace: Trace) -> list[str]:
    if trace.chain is None:
        return []
    return [next(_tree(trace, factor, whole=False)) for factor in _shown(trace.chain)]


def as_markdown(trace: Trace, other: Trace | None = None, *, whole: bool = False) -> list[str]:
    """The text of `as_text` as a block in Markdown."""
    text = as_text(trace, other, whole=whole)
    return [f"### Trace of `{trace.finding}`", "", "```text", *text, "```"]


def as_json(trace: Trace, other: Trace | None = None, *, whole: bool = False) -> list[str]:
    """One JSON document with whole traces, without source code."""
    against = {} if other is None else {"against": document(other)}
    return [json.dumps({**document(trace), **against}, indent=1, ensure_ascii=False)]


def document(trace: Trace) -> dict[str, Any]:
    """The JSON document of a trace."""
    job, chain = trace.job, trace.chain
    return {
        "finding": trace.finding,
        "token": str(job.token),
        "expected": job.expected,
        "observed": job.observed,
        "product": 0.0 if chain is None else chain.product * trace.rest / job.derivative,
        "objection": trace.objection,
        "suspects": [{**_place(trace, one.line), "why": one.why} for one in trace.suspects],
        "factors": []
        if chain is None
        else [
            {
                "value": factor.value,
                "operation": chain.operation(factor).name,
                "rank": factor.node.rank,
                **_place(trace, chain.operation(factor).line),
                "made_of": [_count(trace, one) for one in counts(chain, factor)],
            }
            for factor in chain.factors
        ],
    }


def _place(trace: Trace, line: Line | None) -> dict[str, Any]:
    if line is None:
        return {}
    file = trace.place(line).rpartition(":")[0]
    return {"file": file, "line": line.number, "function": line.function}


def _count(trace: Trace, count: Count) -> dict[str, Any]:
    operation = None if count.node is None else _operation(trace, count.node)
    return {
        "value": count.value,
        "how": count.how,
        **(
            {}
            if operation is None or count.node is None
            else {
                "operation": operation.name,
                "rank": count.node.rank,
                **_place(trace, operation.line),
            }
        ),
        "parts": [_count(trace, part) for part in count.parts],
    }


def _headline(trace: Trace) -> str:
    job = trace.job
    if isinstance(job, TracedAdvantage):
        return f"{trace.finding}: {_advantage_words(job)}"
    if job.is_of_all:
        right = f" and should be {number(job.expected)}" if job.is_wrong else ", as it should be"
        return f"{trace.finding}: the logged number is {number(job.observed)}{right}"
    in_log = "" if job.metric is None else f" in the logged {job.metric.replace('_', ' ')}"
    weights = f"weighs {number(job.observed)}{in_log}"
    right = f" and should weigh {number(job.expected)}" if job.is_wrong else ", as it should"
    return f"{trace.finding}: token {job.token} {weights}{right}"


def _advantage_words(job: TracedAdvantage) -> str:
    """A sentence on a token's advantage, and on the rewards or values in its step."""
    right = f" and should have {job.expected + 0.0:.6g}" if job.is_wrong else ", as it should"
    made_of = _made_of(job.job.painted)
    return f"token {job.token} has an advantage of {job.observed + 0.0:.6g}{right}, {made_of}"


def _made_of(paint: Paint | None) -> str:
    """Words on the rewards, values or divergences that the traced step has."""
    if paint is None:
        return "where all samples have their rewards, and is right where only one has"
    if paint.column is Column.REWARDS:
        return f"where only sample {paint.sample} has a reward, of {SHADE}"
    what = "value" if paint.column is Column.VALUES else "divergence"
    return f"where only token {paint.sample}:{paint.token} has a {what}, of {SHADE}"


def _suspect_lines(trace: Trace) -> Iterator[str]:
    for place, suspect in enumerate(trace.suspects, 1):
        yield f"suspect {place}: {trace.place(suspect.line)}: {suspect.why}"
        yield f"    {source_line(suspect.line)[:LONGEST_SOURCE]}"


def _ending(trace: Trace) -> Iterator[str]:
    assert trace.chain is not None
    if trace.is_pending:
        by_python = "by Python, behind the last tensor"
        rest = PENDING if trace.job.logged is None else by_python
        yield f"× {number(trace.rest):<12} {rest}"
    if abs(trace.job.derivative - 1) > NEGLIGIBLE:
        divisor = number(1 / trace.job.derivative)
        yield f"× {divisor:<12} for the token's own loss"
    yield f"= {number(trace.job.traced)}"
    if trace.objection is not None:
        yield f"this does not explain the finding: {trace.objection}"


def _shown(chain: Chain) -> list[Factor]:
    return [factor for factor in chain.factors if not factor.is_idle]


def _tree(trace: Trace, factor: Factor, whole: bool) -> Iterator[str]:
    """Yield the line of a factor, and below it the lines of the counts in it."""
    assert trace.chain is not None
    operation = trace.chain.operation(factor)
    yield f"× {number(factor.value):<12} {_location(trace, operation.line)}"
    for row in unfolded(trace.chain, factor, whole=whole):
        yield f"{'  ' * row.depth}= {row.words}  {_location(trace, row.line)}".rstrip()


def _location(trace: Trace, line: Line | None) -> str:
    if line is None:
        return ""
    return f"{trace.place(line)}  | {source_line(line)[:LONGEST_SOURCE]}"


def _operation(trace: Trace, node: Node) -> Any:
    assert trace.chain is not None
    return trace.chain.graph.operation(node)
