"""A page says what its reports say, and nothing that a framework says can act on it."""

import base64
import hashlib
import json
import re
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from conformance.comparing.report_file import load
from conformance.findings.badness import LEGEND, off_by
from conformance.findings.cause import CauseTrace, SuspectedLine, TracedFactor
from conformance.findings.errors import PagePathError
from conformance.findings.finding import Finding, Logged, slug
from conformance.findings.report import Provenance, Report
from conformance.findings.verdict import Check, Verdict
from conformance.runs.options import command
from conformance.views.formatting import TEMPLATES
from conformance.views.web.page import PageCause, page_causes, render, write
from conformance.views.web.page_data import document, name_versions
from reference.aggregation import Mode
from tests import room
from tests.conformance.pages import (
    HOSTILE,
    Page,
    finding_of,
    hostile,
    many,
    mistaken,
    report_of,
    traced,
    unpacked,
)
from tests.findings import CP, recaused, right, wrong
from tests.findings import report as assembled_of

REPORTS = Path(__file__).parents[2] / "reports"

WRONG = finding_of("a", error=1.0)
RIGHT = finding_of("a", verdict=Verdict.CONFORMS, error=0.0)
UNSUPPORTED = finding_of("b", verdict=Verdict.UNSUPPORTED, message="no such mode")

QUOTED = {"name": "n", "explanation": 'it\'s "<b>"'}

NETWORK = {"link", "img", "iframe", "object", "embed", "base", "audio", "video", "source"}


def data_of(report: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(unpacked(render([report])))
    return data


def column(data: dict[str, Any], name: str) -> list[Any]:
    values = data["columns"][name]["values"]
    return [values[number] for number in data["columns"][name]["numbers"]]


def shown(report: Report, data: dict[str, Any]) -> list[Finding]:
    """The findings of a report in the order of the page's data."""
    findings = {finding.id: finding for finding in report.findings}
    names = ("check", "subject", "mode", "case", "layout")
    return [
        findings["/".join([slug(Check(check), subject), *rest])]
        for check, subject, *rest in zip(*(column(data, name) for name in names), strict=True)
    ]


REFUSED = finding_of("c", verdict=Verdict.REFUSED)
BAD_INPUT = finding_of("a", check=Check.ARGUMENTS, verdict=Verdict.REFUSED)
CONFORM = "✓ 1 conform or are rightly refused"


@pytest.mark.parametrize(
    ("findings", "cell"),
    [
        ([WRONG, UNSUPPORTED, finding_of("c", verdict=Verdict.CRASHED)], "wrong: ✕ 2 of 2 wrong"),
        ([RIGHT, UNSUPPORTED], f"right: {CONFORM}"),
        ([UNSUPPORTED], "none: –"),
        ([UNSUPPORTED, finding_of("c", verdict=Verdict.NOT_DRIVEN)], "none: not driven"),
        ([REFUSED], "none: ⊘ 1 refused"),
        ([RIGHT, REFUSED], f"right: {CONFORM} ⊘ 1 refused"),
        ([BAD_INPUT], f"right: {CONFORM}"),
        ([WRONG, REFUSED], "wrong: ✕ 1 of 2 wrong"),
    ],
)
def test_a_cell_counts_what_is_wrong_of_what_was_run_and_links_to_it(
    findings: list[Finding], cell: str
) -> None:
    page = Page(render([report_of(findings)]))
    shown = [f"{kind}: {' '.join(words)}" for kind, words in page.cells if words]
    [check] = {str(one.check) for one in findings}
    link = f"#framework=toy+torch&version=1&check={check}&mode=token_mean"

    assert shown == [cell]
    assert (link if "✕" in cell else f"{link}&verdict=any") in page.links()


def of(mistake: str, case: str = "a", **fields: Any) -> Finding:
    return finding_of(case, error=1.0, diagnosis={"name": mistake, "explanation": "e"}, **fields)


def page_causes_of(*reports: Report) -> list[PageCause]:
    return page_causes(name_versions(reports))


def test_causes_stand_before_all_else_and_say_what_is_known_of_them() -> None:
    report = report_of([of("not_divided", place="loss.py:7 (reduce)", scale=2.0, cosine=1.0)])
    page = render([report])
    told = page[: page.index("Frameworks, modes and checks")]

    for words in (
        "wrong gradient",
        "token losses are summed but never normalised",
        "too large by the divisor that is missing",
        "loss.py:7 (reduce)",
        "weights/token_mean/a/dp2-cp1-mb2-thd</a>: relative error 1: e [not_divided]",
        "pytest --adapter=toy",
        "1 finding</dd>",
        "who meets it</dt><dd>by default",
    ):
        assert words in told
    [cause] = page_causes_of(report)
    assert cause.command == command(report, report.findings[0])
    assert f'href="#{urlencode(cause.query | {"version": "1"})}'.replace("&", "&amp;") in told


def test_a_cause_of_several_versions_is_shown_once_with_what_became_of_it() -> None:
    old = report_of([of("not_divided"), of("tokens_lost", "b"), of("not_finite", "d")])
    crashed = finding_of("d", verdict=Verdict.CRASHED, message="KeyError: 1")
    new = report_of(
        [of("not_divided"), of("not_divided", "c"), of("samples_lost", "b"), crashed], version="2"
    )

    assert [
        (one.change.statement, one.change.fate, one.counts) for one in page_causes_of(old, new)
    ] == [
        ("token losses are summed but never normalised", "the same", {"2": 2, "1": 1}),
        ("samples are lost", "new", {"2": 1}),
        ("KeyError: 1", "new", {"2": 1}),
        ("tokens are lost", "gone", {"1": 1}),
        ("numbers are NaN or infinite", "not known to be gone", {"1": 1}),
    ]
    assert "now 1 crashed" in render([old, new])
    assert [one.change.fate for one in page_causes_of(new)] == ["the same"] * 3
    assert ">new</span>" in render([old, new])
    assert "2 findings, 2 of 2 versions" in render([old, new])


def test_a_cause_under_another_condition_is_one_that_changed() -> None:
    here, there = "weights/token_mean/a/dp1-cp2-mb1-thd", "weights/sample_mean/a/dp1-cp2-mb1-thd"
    old = assembled_of(wrong(here, CP), wrong(there, CP))
    new = assembled_of(wrong(here, CP), right(there, CP))

    [cause] = page_causes_of(old, new)
    assert cause.change.fate == "changed"
    assert cause.change.statement.startswith("an extra factor of cp")
    assert "in token_mean (it was: an extra factor of cp" in cause.change.statement


def test_a_cause_that_was_gone_before_the_last_two_versions_is_gone() -> None:
    fixed = report_of([RIGHT])
    causes = page_causes_of(report_of([of("not_divided")]), fixed, fixed)

    assert [(one.change.fate, one.counts) for one in causes] == [("gone", {"1": 1})]


BAD_NUMBER: dict[str, Any] = {"check": Check.METRIC, "logged": Logged(expected=1.0)}


def test_the_first_sentence_counts_each_mistake_once_and_says_how_many_are_in_gradients() -> None:
    logged = of("not_divided", "c", **BAD_NUMBER)
    twice = report_of([of("not_divided"), of("tokens_lost", "b"), logged], adapter="skyrl")
    page = render([twice, twice.model_copy(update={"engine": "other"}), report_of([RIGHT])])

    assert "mistakes in 1 framework: 2 in the gradient, 2 of these with default options" in page
    assert "No mistake was found." in render([report_of([RIGHT])])


def test_the_engine_with_the_worst_mistake_comes_first() -> None:
    of_number = report_of([of("not_divided", **BAD_NUMBER)], adapter="a")
    of_gradient = report_of([of("not_divided")], adapter="b")
    page = render([of_number, report_of([RIGHT], adapter="c"), of_gradient])
    places = [page.index(f"<h3><b>{name} torch") for name in "bac"]

    assert places == sorted(places)


def test_a_cause_links_its_line_its_report_and_what_became_of_it() -> None:
    report = load(REPORTS / "skyrl" / "v0.3.0.json.gz")
    causes = page_causes(name_versions([report]))
    [known] = [one for one in causes if one.group.cause.name == "penalty_not_divided"]
    address = {("skyrl fsdp", known.group.cause.statement): "issues/it.md"}
    page = render([report], issues=address)
    links = Page(page).links()

    assert known.entry is not None
    marked = iter(known.entry.reach.split("`"))
    assert f"{next(marked)}<code>{next(marked)}</code>" in page
    assert {"issues/it.md", known.entry.link, known.entry.address} <= {*links}


def test_advice_is_folded_apart_from_what_is_wrong() -> None:
    page = render([report_of([of("depends_on_cut", verdict=Verdict.ADVICE)])])

    assert ": nothing wrong" in page
    assert "1 advice" in page[: page.index("a gradient or a logged number depends")]


def test_findings_come_by_what_their_causes_do() -> None:
    bad_input = finding_of(
        "a", check=Check.ARGUMENTS, diagnosis={"name": "accepted", "explanation": "e"}
    )
    lost = of("tokens_not_held", check=Check.SHARDING)
    data = data_of(report_of([bad_input, RIGHT, lost]))

    assert column(data, "check") == ["sharding", "arguments", "weights"]
    assert column(data, "causes")[0] == ["active tokens are on no rank"]
    assert column(data, "causes")[2] == []


def test_matrix_has_the_report_given_last_and_the_timeline_all_in_the_order_given() -> None:
    text = render([report_of([WRONG], version="9"), report_of([RIGHT], version="10")])
    matrix, *timeline = Page(text).counts

    assert matrix == CONFORM
    assert timeline == ["✕ 1 of 1 wrong", CONFORM] * 2
    assert "Over versions" in text
    assert "Over versions" not in render([report_of([WRONG]), report_of([WRONG], adapter="other")])


def test_engines_of_one_framework_are_apart() -> None:
    other = report_of([WRONG]).model_copy(update={"engine": "fsdp"})

    assert [one.framework for one in name_versions([report_of([WRONG]), other])] == [
        "toy torch",
        "toy fsdp",
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"version": "0.3.0"}, "0.3.0"),
        ({"revision": "1951fa005294", "ref": "refs/pull/2090/head"}, "pull/2090 1951fa005"),
        ({"revision": "bd97144147ec", "ref": "bd971441"}, "bd971441"),
        ({"revision": "bd97144147ec", "ref": "main", "dirty": True}, "main bd9714414 + changes"),
    ],
)
def test_versions_are_called_what_people_call_them(source: dict[str, Any], name: str) -> None:
    nothing = {"kind": "git", "revision": None, "version": None, "ref": None, "dirty": False}
    report = report_of([WRONG]).model_copy(update={"source": Provenance(**(nothing | source))})

    assert [one.name for one in name_versions([report, report])] == [name, f"{name} (2)"]


def test_stopped_runs_and_pages_without_findings_are_said_to_be() -> None:
    stopped = assembled_of(WRONG, missing=2)

    assert "stopped at 1 of 3 findings" in render([stopped])
    assert "no findings" in render([report_of([])])
    assert "0 comparisons in 0 reports" in render([])


def test_data_are_what_findings_say() -> None:
    report = mistaken()
    data = data_of(report)
    findings = shown(report, data)
    said = [one.diagnosis for one in findings]

    assert data["count"] == len(report.findings)
    assert data["legend"] == LEGEND
    for name in ("case", "verdict", "place", "message"):
        assert column(data, name) == [getattr(finding, name) for finding in findings]
    assert column(data, "diagnosis") == [
        one and [one.name, one.explanation, [[*each] for each in one.numbers.items()], one.also]
        for one in said
    ]
    assert [p and tuple(p) for p in column(data, "logged")] == [
        f.logged and (f.logged.expected, f.logged.reported) for f in findings
    ]
    factors = [None if one.agreement is None else off_by(one) for one in findings]
    assert column(data, "off_by") == factors
    assert "off by a factor of 2" in factors


def test_other_mistakes_that_explain_a_finding_are_told_apart_from_the_first() -> None:
    diagnosis = {"name": "a", "explanation": "divided twice; or it is b, c", "also": ["b", "c"]}
    data = data_of(report_of([finding_of("a", error=1.0, diagnosis=diagnosis)]))

    assert column(data, "diagnosis") == [["a", "divided twice", [], ["b", "c"]]]


def test_the_chain_of_a_traced_cause_is_in_the_data() -> None:
    report = report_of([of("not_divided")])
    traced = CauseTrace(
        suspects=[SuspectedLine(file="a.py", line=7, function="f", why="it counts")],
        chain=[TracedFactor(value=0.25, place="a.py:7 (f)"), TracedFactor(value=2.0)],
    )
    data = data_of(recaused(report, **dict(traced)))

    trace = [[["a.py:7 (f)", "it counts"]], [[0.25, "a.py:7 (f)"], [2.0, None]]]
    assert column(data, "trace") == [trace]
    assert column(data_of(report), "trace") == [None]


def test_the_chain_of_a_cause_is_drawn_down_to_its_weight() -> None:
    [chain] = re.findall(r'<ol class="chain">(.*?)</ol>', render([traced()]), re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", chain).split())

    assert words == (
        "the token's loss"
        " × 1/24 engine.py:9 (g) = 24 = 23 + 1 engine.py:7 (g)"
        " = 1, clamped from 0 loss.py:160 (f) ✕ suspect: makes 1 of 0"
        " × 2 engine.py:8 (g) = 2 engine.py:5 (g)"
        " × 1/2 for what comes after these lines and for the token's own loss"
        " = 1/24 , and should be 1/23"
    )
    assert [*re.findall(r"<details( open|)>", chain)] == [" open", ""]  # a suspect is in sight


def test_pictures_can_be_read_off_the_data() -> None:
    report = mistaken()
    data = data_of(report)

    for finding, kept in zip(shown(report, data), column(data, "picture"), strict=True):
        if finding.picture is None:
            assert kept is None
            continue
        step, size, steps = kept
        assert (step, size) == (finding.picture.step, finding.picture.samples_of_step)
        for number, of_report in zip(accumulate(steps), finding.picture.samples, strict=True):
            sample, group, tokens, steps_of_runs = (of[number] for of in data["samples"])
            assert (sample, group, tokens) == (of_report.sample, of_report.group, of_report.tokens)
            runs = accumulate(steps_of_runs)
            drawn = [tuple(of[run] for of in data["runs"]) for run in runs]
            assert drawn == [tuple(run) for run in of_report.runs]


def test_every_command_is_that_of_reproduce() -> None:
    for report in (mistaken(), hostile()):
        data = data_of(report)
        pairs = column(data, "command")
        for finding, (before, after) in zip(shown(report, data), pairs, strict=True):
            whole = before if after is None else before + finding.id + after
            assert whole == command(report, finding)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_json_does_not_have_are_words(value: float) -> None:
    diagnosis = {"name": "n", "explanation": "e", "numbers": {"x": value}}
    data = data_of(report_of([finding_of("a", tolerance=float("inf"), diagnosis=diagnosis)]))

    assert column(data, "tolerance") == ["inf"]
    assert column(data, "diagnosis")[0][2] == [["x", str(value)]]


def test_nothing_hostile_becomes_an_element() -> None:
    named = [{"name": f"n{n}", "explanation": ""} for n in range(len(HOSTILE))]
    findings = [finding_of(f"c{n}", place="p", diagnosis=one) for n, one in enumerate(named)]
    attack = hostile()
    drawn = [one.model_copy(update={"picture": attack.findings[0].picture}) for one in findings]
    harmless = Page(render([report_of(drawn)]))
    page = Page(render([attack]))

    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_every_attribute_is_in_double_quotes_as_apostrophes_are_not_escaped() -> None:
    for template in TEMPLATES.glob("*.html"):
        text = re.sub(r"{{.*?}}|{%.*?%}", "x", template.read_text(encoding="utf-8"))

        assert not re.findall(r"<[^>]*=\s*[^\s\"][^>]*>", re.sub(r'"[^"]*"', '""', text))
    [quoted] = re.findall(r"<p>For.*</p>", render([report_of([finding_of("a", diagnosis=QUOTED)])]))
    assert "it's &quot;&lt;b&gt;&quot;" in quoted


def test_hostile_words_arrive_as_they_are_and_begin_no_tag() -> None:
    [packed] = re.findall(r'id="data">(.*?)</script>', render([hostile()]), re.DOTALL)
    data = data_of(hostile())

    assert not set(packed) & set("<>&'")
    for text in HOSTILE:
        assert text.replace("/", "") in column(data, "case")  # ids have no other slashes
        assert text in column(data, "place")
        assert f"Traceback\n{text}" in column(data, "message")


def test_verdicts_that_are_left_out_are_counted_and_neither_listed_nor_linked() -> None:
    logged = finding_of("b", check=Check.METRIC, verdict=Verdict.CONFORMS)
    report = report_of([WRONG, finding_of("b", verdict=Verdict.CONFORMS), logged])
    text = render([report], left_out=[Verdict.CONFORMS])
    page, data = Page(text), json.loads(unpacked(text))

    assert (data["count"], data["total"]) == (1, 3)
    assert column(data, "verdict") == ["mismatch"]
    assert "3 comparisons in 1 report." in text
    assert "Findings that say “conforms” are counted here, and only the reports list them." in text
    assert page.counts == ["✕ 1 of 2 wrong", CONFORM]
    assert not [link for link in page.links() if link.endswith("&verdict=any")]


def test_only_our_own_style_and_script_are_in_force_and_nothing_is_fetched() -> None:
    text = render([mistaken()])
    page = Page(text)
    [policy] = [a["content"] for t, a in page.elements if a.get("http-equiv")]

    for tag, name in (("style", "style"), ("script", "module")):
        digest = base64.b64encode(hashlib.sha256(page.contents[name].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in (policy or "")
    assert "default-src 'none'" in (policy or "")
    assert not {tag for tag, _ in page.elements} & NETWORK
    assert not any({"src", "style"} & set(attributes) for _, attributes in page.elements)
    assert all(link.startswith("#") for link in page.links())


def test_what_is_said_of_every_finding_is_said_once_and_pictures_are_small() -> None:
    words = "a message that is long enough to be kept once"
    diagnosis = {"name": "n", "explanation": words}
    report = report_of([finding_of(f"c{n}", diagnosis=diagnosis) for n in range(9)])

    assert json.dumps(data_of(report)).count(words) == 1
    assert len(render([many(1000)]).encode()) < 1_000_000


def test_checks_and_modes_are_counted_apart() -> None:
    report = report_of(
        [WRONG, finding_of("a", check=Check.METRIC), finding_of("a", mode=Mode.CONSTANT)]
    )

    assert Page(render([report])).counts == ["✕ 1 of 1 wrong"] * 3


def test_cases_of_the_corpus_say_what_they_catch() -> None:
    data = document(
        name_versions([report_of([finding_of("fully_masked_sample"), finding_of("gone")])])
    )

    assert data["cases"].keys() == {"fully_masked_sample"}


def test_a_page_is_written_with_half_a_character_as_json_has_it(tmp_path: Path) -> None:
    path, report = tmp_path / "page.html", report_of([finding_of("a", message="file \udc80")])
    write([report], path)

    text = path.read_text(encoding="utf-8")
    assert text == render([report])
    assert column(json.loads(unpacked(text)), "message") == ["file \udc80"]


def test_the_folder_of_a_page_is_made(tmp_path: Path) -> None:
    write([mistaken()], tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagePathError, match=r"no page can be written to .*: .*; give another file"):
        write([mistaken()], tmp_path)


def test_a_page_that_finds_no_room_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    with room.of(1000), pytest.raises(PagePathError, match="no page can be written to"):
        write([assembled_of(right("weights/token_mean/a/dp1-cp1-mb1-thd"))], path)

    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]
