"""A trace for a reader: the factors of a weight as a tree in the terminal, Markdown and JSON."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from conformance.tracing.counts import How, Unfolding
from conformance.tracing.graph import NEGLIGIBLE
from conformance.tracing.source.origins import source_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Line
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.counts import Count
    from conformance.tracing.graph import Node
    from conformance.tracing.trace import Trace

MOST_LINES = 25
"""Lines of a tree, unless all are asked for."""

LONGEST_SOURCE = 76

LARGEST_DENOMINATOR = 100_000

LARGEST_NUMERATOR = 1000
"""Of a fraction that tells more than its decimals do."""

PENDING = "by the reduction that the train step has yet to do"

DEEPEST = 6
"""How far a divisor is unfolded in a tree, unless all is asked for."""


def as_text(trace: Trace, other: Trace | None = None, *, whole: bool = False) -> list[str]:
    """The tree of a trace: a line for each factor, the value first; divisors unfolded below.

    That of another follows, and which factors the two do not share.
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
    """The same as a block of text in Markdown."""
    text = as_text(trace, other, whole=whole)
    return [f"### Trace of `{trace.finding}`", "", "```text", *text, "```"]


def as_json(trace: Trace, other: Trace | None = None, *, whole: bool = False) -> list[str]:
    """All of it as one JSON document, without lines of source."""
    against = {} if other is None else {"against": document(other)}
    return [json.dumps({**document(trace), **against}, indent=1, ensure_ascii=False)]


def document(trace: Trace) -> dict[str, Any]:
    """What the JSON document of a trace holds."""
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
                "made_of": [_count(trace, one) for one in _counts(chain, factor)],
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
    in_log = "" if job.metric is None else f" in the logged {job.metric.replace('_', ' ')}"
    weights = f"weighs {_number(job.observed)}{in_log}"
    right = f" and should weigh {_number(job.expected)}" if job.is_wrong else ", as it should"
    return f"{trace.finding}: token {job.token} {weights}{right}"


def _suspect_lines(trace: Trace) -> Iterator[str]:
    for place, suspect in enumerate(trace.suspects, 1):
        yield f"suspect {place}: {trace.place(suspect.line)}: {suspect.why}"
        yield f"    {source_line(suspect.line)[:LONGEST_SOURCE]}"


def _ending(trace: Trace) -> Iterator[str]:
    assert trace.chain is not None
    if trace.is_pending:
        by_python = "by Python, behind the last tensor"
        rest = PENDING if trace.job.logged is None else by_python
        yield f"× {_number(trace.rest):<12} {rest}"
    if abs(trace.job.derivative - 1) > NEGLIGIBLE:
        divisor = _number(1 / trace.job.derivative)
        yield f"× {divisor:<12} for the token's own loss"
    yield f"= {_number(trace.job.traced)}"
    if trace.objection is not None:
        yield f"this does not explain the finding: {trace.objection}"


def _shown(chain: Chain) -> list[Factor]:
    return [factor for factor in chain.factors if not factor.is_idle]


def _tree(trace: Trace, factor: Factor, whole: bool) -> Iterator[str]:
    """Yield the line of a factor, and below it those of what it was made of."""
    assert trace.chain is not None
    operation = trace.chain.operation(factor)
    yield f"× {_number(factor.value):<12} {_at(trace, operation.line)}"
    for count in _counts(trace.chain, factor):
        yield from _branch(trace, count, 1, None, whole)


def _branch(
    trace: Trace, count: Count, depth: int, above: Count | None, whole: bool
) -> Iterator[str]:
    """Yield the lines of a count; what only hands on the one above has none."""
    line = _line(trace, count)
    hands_on = above is not None and above.value == count.value
    hands_on &= count.how is How.SAME or (above is not None and line == _line(trace, above))
    if whole or not hands_on:
        yield f"{'  ' * depth}= {_composed(count)}  {_at(trace, line)}".rstrip()
    is_counted = count.how is not How.UNKNOWN and depth < DEEPEST
    if whole or is_counted:
        for part in count.parts:
            if whole or part.node is not None:
                yield from _branch(trace, part, depth + (whole or not hands_on), count, whole)


def _composed(count: Count) -> str:
    """A count with what it was made of, such as ``24 = 16 + 8`` or ``1, clamped from 0``."""
    parts = [_number(part.value) for part in count.parts]
    if count.how is How.CLAMP and parts != [_number(count.value)]:
        return f"{_number(count.value)}, clamped from {parts[0]}"
    if len(parts) < 2 or count.how not in (How.SUM, How.PRODUCT):
        return _number(count.value)
    signs = (" - ", " + ") if count.how is How.SUM else (" / ", " · ")
    rest = (
        signs[share > 0] + part for part, share in zip(parts[1:], count.shares[1:], strict=True)
    )
    return f"{_number(count.value)} = {parts[0]}{''.join(rest)}"


def _line(trace: Trace, count: Count) -> Line | None:
    return None if count.node is None else _operation(trace, count.node).line


def _at(trace: Trace, line: Line | None) -> str:
    if line is None:
        return ""
    return f"{trace.place(line)}  | {source_line(line)[:LONGEST_SOURCE]}"


def _counts(chain: Chain, factor: Factor) -> list[Count]:
    """What a factor was made of: tensors that have its value or its reciprocal."""
    unfolding = Unfolding(chain.graph)
    values = (factor.value, 1 / factor.value)
    found = [
        next(filter(None, (unfolding.of_value(one, value) for value in values)), None)
        for one in chain.operands(factor)
    ]
    return [one for one in found if one is not None]


def _operation(trace: Trace, node: Node) -> Any:
    assert trace.chain is not None
    return trace.chain.graph.operation(node)


def _number(value: float) -> str:
    """A number as a reader knows it: a fraction if it is one of small integers."""
    fraction = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    is_small = min(abs(fraction.numerator), fraction.denominator) <= LARGEST_NUMERATOR
    if value and is_small and abs(float(fraction) / value - 1) < 1e-6:
        return str(fraction)
    return f"{value:.6g}"
