"""hypothesis strategies for findings and reports that a run could write, with unruly text.

`reports` makes one report; `pairs` makes two with mostly the same checks and cases.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adapters.contract import Layout
from conformance.findings.finding import (
    GENERATED,
    Diagnosis,
    Finding,
    FindingId,
    Logged,
    Picture,
    PicturedSample,
    Run,
)
from conformance.findings.report import Header, Report, Request, Selection
from conformance.findings.verdict import Check, Verdict
from reference.aggregation import AuxiliaryAggregation, Conventions, Mode, SampleUnit
from tests.findings import HEADER

TOLERANCE = 1e-6

CHECK_SPECS = (
    (Check.WEIGHTS, None),
    (Check.METRIC, None),
    (Check.METRIC, "entropy"),
    (Check.ARGUMENTS, "divisor_nan"),
    (Check.SHARDING, "boundary_gap"),
)

CASES = ("one_token", "two_steps", "odd_groups", GENERATED)

LAYOUTS = (Layout(), Layout(dp=2, cp=2, micro_batches=2, format="thd"))

CONFORMING_ERRORS = (None, 0.0, TOLERANCE / 4, TOLERANCE)

WRONG_ERRORS = (None, 2 * TOLERANCE, 0.5, 0.5 + TOLERANCE / 4, 3.0)

DIAGNOSES = ("divided_by_cp", "empty_samples_counted", "unexplained")

UNRULY = (
    "ValueError: no",
    "see @octocat and #1, owner/name#2, 0123456789abcdef0123456789abcdef01234567",
    "a | b || `c` ``d`` \\| <script>alert(1)</script></details><!-- &lt;",
    "*bold* _it_ [link](https://example.org) ![image](x) ~~gone~~ $x$",
    "\x1b[31mred\x1b[0m\r\nsecond line\u2028third\x00",
    "long " * 2_000,
)
"""Text of frameworks that would do harm if views did not escape it."""


def words() -> SearchStrategy[str]:
    """Any words of a framework."""
    return st.sampled_from(UNRULY) | st.text(max_size=20)


Looked = tuple[tuple[Check, str | None], Mode, str, Layout]
"""The check with its name, the mode, the case and the layout of a finding."""


def looked() -> SearchStrategy[Looked]:
    """A strategy for what a finding is about: a check, a mode, a case and a layout."""
    modes = st.sampled_from((Mode.TOKEN_MEAN, Mode.CONSTANT))
    subjects, cases, layouts = map(st.sampled_from, (CHECK_SPECS, CASES, LAYOUTS))
    return st.tuples(subjects, modes, cases, layouts)


def findings() -> SearchStrategy[Finding]:
    """One finding of any verdict."""
    return looked().flatmap(findings_of)


@st.composite
def findings_of(draw: DrawFn, what: Looked) -> Finding:
    """A finding on a given check, mode, case and layout, with any verdict."""
    (check, subject), mode, case, layout = what
    verdict = draw(st.sampled_from((*Verdict, Verdict.MISMATCH)))
    return Finding(
        id=str(FindingId(check, subject, mode, case, layout)),
        verdict=verdict,
        **draw(_figures(check, verdict)),
    )


def _figures(check: Check, verdict: Verdict) -> SearchStrategy[dict[str, Any]]:
    """The fields of a finding besides its verdict."""
    fields: dict[str, SearchStrategy[Any]] = {"tolerance": st.just(TOLERANCE)}
    if verdict is Verdict.CONFORMS:
        fields["error"] = st.sampled_from(CONFORMING_ERRORS)
    elif verdict is Verdict.MISMATCH:
        fields["error"] = st.sampled_from(WRONG_ERRORS)
        fields["diagnosis"] = st.builds(
            Diagnosis, name=st.sampled_from(DIAGNOSES), explanation=words()
        )
        seen = {Check.METRIC: ("logged", logged()), Check.WEIGHTS: ("picture", pictures())}
        fields |= [seen[check]] if check in seen else []
    else:
        fields["message"] = words()
    return st.fixed_dictionaries(fields)


def logged() -> SearchStrategy[Logged]:
    """A wrong number."""
    return st.builds(Logged, expected=st.just(0.5), reported=st.sampled_from((None, 0.25)))


def pictures() -> SearchStrategy[Picture]:
    """Pictures of at most two samples, whose ranks are known or unknown."""
    places = st.sampled_from((None, 0, 1))
    runs = st.builds(
        Run, st.integers(1, 3), st.just(0.5), st.sampled_from((None, 1.0)), places, places, places
    )
    samples = st.builds(
        PicturedSample,
        sample=st.integers(0, 9),
        group=st.integers(0, 3),
        tokens=st.integers(9, 12),
        runs=st.lists(runs, min_size=1, max_size=3),
    )
    return st.builds(
        Picture,
        step=st.integers(0, 1),
        samples_of_step=st.just(10),
        samples=st.lists(samples, max_size=2, unique_by=lambda one: one.sample),
    )


@st.composite
def headers(draw: DrawFn) -> Header:
    """The header of a report."""
    source = {"kind": "git", "revision": "f" * 40, "version": None}
    source |= {"ref": draw(words()), "dirty": draw(st.booleans())}
    environment = {
        "torch": draw(st.sampled_from(("2.8", "2.9"))),
        "dependencies": draw(st.dictionaries(st.sampled_from(("ray", "@a|b")), words())),
        "stubs": draw(st.lists(st.sampled_from(("wandb", "`zmq`")), unique=True)),
    }
    return HEADER.model_copy(
        update={
            "adapter": draw(st.sampled_from(("toy", "other"))),
            "engine": draw(st.sampled_from(("torch", "@octocat | `x` <b>"))),
            "source": HEADER.source.model_copy(update=source),
            "environment": HEADER.environment.model_copy(update=environment),
            "conventions": Conventions(
                sample_unit=draw(st.sampled_from(SampleUnit)),
                entropy=draw(st.sampled_from(AuxiliaryAggregation)),
            ),
            "request": Request(
                divisor=draw(st.sampled_from((None, None, 64.0))),
                examples=draw(st.sampled_from((0, 10))),
            ),
        }
    )


@st.composite
def reports_of(draw: DrawFn, header: Header, what: Sequence[Looked]) -> Report:
    """A report on given checks, modes, cases and layouts, complete or not."""
    found = [draw(findings_of(one)) for one in what]
    missing = draw(st.sampled_from((0, 0, 3)))
    selection = Selection(selected=len(found) + missing, deselected=0)
    return Report.assemble(header, found, selection)


@st.composite
def reports(draw: DrawFn) -> Report:
    """A report on any checks, modes, cases and layouts."""
    what = st.lists(looked(), max_size=12, unique=True)
    return draw(reports_of(draw(headers()), draw(what)))


@st.composite
def pairs(draw: DrawFn) -> tuple[Report, Report]:
    """Two reports with mostly the same checks and cases; their headers may be the same."""
    what = draw(st.lists(looked(), min_size=1, max_size=8, unique=True))
    header = draw(headers())
    old, new = (
        draw(
            reports_of(
                draw(st.just(header) | headers()),
                [one for one in what if draw(st.sampled_from((True, True, True, False)))],
            )
        )
        for _ in range(2)
    )
    return old, new
