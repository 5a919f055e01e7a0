"""Reports for pages: with pictures of mistakes, with hostile words, and with many findings."""

import base64
import gzip
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from numpy.typing import NDArray

from adapters.contract import Layout
from conformance.comparing.report_file import assembled
from conformance.findings.cause import (
    CauseTrace,
    Clues,
    SuspectedLine,
    TracedCount,
    TracedFactor,
    TracedToken,
)
from conformance.findings.finding import Diagnosis, Finding, Logged, Picture, PicturedSample, Run
from conformance.findings.report import Report, Selection
from conformance.findings.verdict import Check, Verdict
from conformance.judging.picture import picture
from reference.aggregation import Mode
from reference.step import Sample, Step
from tests.conformance.given import BY_SAMPLE, SLICED, Given
from tests.findings import HEADER, recaused

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u2028alert(1)\u2029",
    "{{7*7}}{% raw %}",
    "'\"><svg onload=alert(1)>&amp;\x00",
)

SLICES = Given(
    mode=Mode.SAMPLE_MEAN, forward_pass_of_token=SLICED, layout=Layout(dp=2, cp=2, format="thd")
)

SAMPLES = Given(forward_pass_of_token=BY_SAMPLE, layout=Layout(dp=2, micro_batches=2, format="thd"))


def report_of(
    findings: Iterable[Finding],
    adapter: str = "toy",
    version: str = "1",
    clues: Sequence[Clues] = (),
    **header: object,
) -> Report:
    """A complete report of some findings, with their causes."""
    found = list(findings)
    source = HEADER.source.model_copy(update={"version": version})
    named = HEADER.model_copy(update={"adapter": adapter, "source": source} | header)
    return assembled(named, found, clues, Selection(selected=len(found), deselected=0))


def finding_of(
    case: str,
    *,
    check: Check = Check.WEIGHTS,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: Layout = SAMPLES.layout,
    verdict: Verdict = Verdict.MISMATCH,
    **fields: object,
) -> Finding:
    return Finding.model_validate(
        {"id": f"{check}/{mode}/{case}/{layout}", "verdict": verdict, "tolerance": 1e-6, **fields}
    )


def pictured(case: str, given: Given, observed: NDArray[np.float64]) -> Finding:
    """A finding on wrong weights, with the picture that a run would keep."""
    return finding_of(
        case,
        mode=given.mode,
        layout=given.layout,
        error=1.0,
        diagnosis=Diagnosis(
            name="multiplied_by_cp",
            explanation="weights are multiplied by cp = 2",
            numbers={"cp": 2.0},
            also=["multiplied_by_micro_batches"],
        ),
        place="toy.loss:reduce",
        picture=picture(given.context, observed, given.weights),
    )


def mistaken() -> Report:
    """A report with one finding for each thing that a picture or a finding may say."""
    weights = SAMPLES.weights
    second_rank = np.where(np.arange(len(weights)) >= 6, 2.0, 0.5)
    odd = np.array([1, 1, 0, -1, 0, 0, np.nan, np.nan, 1, 1, 0, 30, 30, 1]) * weights
    odd[4] = 0.05
    many = Given(
        mode=Mode.SAMPLE_MEAN,
        steps=(Step.of([Sample(prompt_length=1, loss_mask=[1] * 99, group=i) for i in range(60)]),),
    )
    return report_of(
        [
            pictured("twice", SLICES, 2 * SLICES.weights),
            pictured("by_rank", SAMPLES, second_rank * weights),
            pictured("odd", SAMPLES, odd),
            pictured("unknown_cut", Given(), 1.00001 * weights),
            pictured("many", many, many.weights * np.linspace(1, 3, 60 * 99)),
            finding_of(
                "logged",
                check=Check.METRIC,
                error=1.0,
                agreement=0.5,
                diagnosis=Diagnosis(name="unexplained", explanation="no mistake explains it"),
                logged=Logged(expected=0.25, reported=0.5),
            ),
            finding_of(
                "logged_nan",
                check=Check.METRIC,
                diagnosis=Diagnosis(name="unexplained", explanation="it is not finite"),
                logged=Logged(expected=0.25, reported=None),
            ),
            finding_of(
                "fallen", verdict=Verdict.CRASHED, message="Traceback\n  deep\nOSError: gone"
            ),
            finding_of("declined", verdict=Verdict.REFUSED, message="ValueError: no such mode"),
            finding_of("fine", verdict=Verdict.CONFORMS, error=1e-8),
        ]
    )


def hostile() -> Report:
    """A report in which all text that may come from a framework is an attack."""
    return report_of(
        [
            finding_of(
                text.replace("/", ""),
                error=1.0,
                diagnosis=Diagnosis(
                    name=text, explanation=text, numbers={text: float("inf")}, also=[text]
                ),
                place=text,
                message=f"Traceback\n{text}",
                picture=_boundless(),
            )
            for text in HOSTILE
        ],
        adapter=HOSTILE[0],
        version=HOSTILE[1],
    )


def _boundless() -> Picture:
    """A picture with numbers that no run writes, but that a file may contain."""
    runs = [Run(5, math.inf, math.nan, 0, None, None), Run(2, 1.0, -math.inf, 0, 1, 2)]
    samples = [
        PicturedSample(sample=number, group=0, tokens=9, runs=runs[:number]) for number in range(3)
    ]
    return Picture(step=0, samples_of_step=3, samples=samples)


def many(count: int) -> Report:
    """A report of ``count`` wrong findings of eight samples each, all with different pictures."""
    first = pictured("case", SLICES, 2 * SLICES.weights)
    layouts = [replace(SLICES.layout, micro_batches=1 + number) for number in range(100)]
    return report_of(
        finding_of(
            f"case_{number // len(layouts)}",
            layout=layouts[number % len(layouts)],
            error=1.0 + number,
            diagnosis=first.diagnosis,
            place=first.place,
            picture=_multiplied(2.0 + number / count),
        )
        for number in range(count)
    )


def _multiplied(ratio: float) -> Picture:
    samples = [
        PicturedSample(
            sample=number,
            group=number // 2,
            tokens=8,
            runs=[
                Run(5, 0.125, 0.125 * ratio, number % 2, 0, number // 4),
                Run(2, 0.0, 0.0, number % 2, 0, number // 4),
                Run(1, 0.125, 0.125 * ratio / (1 + number), number % 2, 1, number // 4),
            ],
        )
        for number in range(8)
    ]
    return Picture(step=0, samples_of_step=8, samples=samples)


def traced() -> Report:
    """A report of a cause whose token weighs 1/24 instead of 1/23, as one line clamps a count."""
    traced = CauseTrace(
        suspects=[SuspectedLine(file="loss.py", line=160, function="f", why="makes 1 of 0")],
        chain=[
            TracedFactor(
                value=1 / 24,
                place="engine.py:9 (g)",
                made_of=[
                    TracedCount(depth=1, words="24 = 23 + 1", place="engine.py:7 (g)"),
                    TracedCount(depth=2, words="1, clamped from 0", place="loss.py:160 (f)"),
                ],
            ),
            TracedFactor(
                value=2.0,
                place="engine.py:8 (g)",
                made_of=[TracedCount(depth=1, words="2", place="engine.py:5 (g)")],
            ),
        ],
        token=TracedToken(name="6:0", observed=1 / 24, expected=1 / 23),
    )
    return recaused(report_of([finding_of("not_divided", error=1.0)]), **dict(traced))


class Page(HTMLParser):
    """A page's elements with their attributes, the text of cells, and scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[tuple[str, list[str]]] = []
        self.contents: dict[str, str] = {}
        self._inside = ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self._inside = attributes.get("id") or attributes.get("type") or tag
        if tag == "td":
            self._in_cell = True
            self.cells.append((attributes["class"] or "", []))

    def handle_data(self, text: str) -> None:
        self.contents[self._inside] = self.contents.get(self._inside, "") + text
        if self._in_cell:
            self.cells[-1][1].extend(text.split())

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        self._in_cell = self._in_cell and tag != "td"

    @property
    def counts(self) -> list[str]:
        """The counts in cells of findings that were run."""
        return [" ".join(words) for kind, words in self.cells if kind in ("right", "wrong")]

    def links(self) -> list[str]:
        return [a["href"] or "" for tag, a in self.elements if tag == "a" and "href" in a]


def unpacked(page: str) -> str:
    """The data of a page, as JSON."""
    return gzip.decompress(base64.b64decode(Page(page).contents["data"])).decode()
