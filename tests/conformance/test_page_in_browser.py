"""The page as people see and use it, in a real browser without a window."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.badness import LEGEND
from conformance.findings.finding import Finding, Logged, Picture, PicturedSample, Run
from conformance.findings.groups import finding_groups
from conformance.findings.report import Report
from conformance.findings.verdict import Check, Verdict
from conformance.runs.options import command
from conformance.views.overview.committed import REPORTS, newest, versions
from conformance.views.overview.pages import WEB_PAGE
from conformance.views.web.page import render
from tests.command import ROOT
from tests.conformance.pages import (
    HOSTILE,
    finding_of,
    hostile,
    many,
    mistaken,
    report_of,
    traced,
)

pytest.importorskip("selenium", reason="needs the Python package selenium")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the PATH"
)

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

SCREEN = 800
"""The height of a screen in pixels."""

LEAST_ROW = 18
"""The least height in pixels of a row that does not cut descenders off."""

SOON = 30
"""Seconds within which even a busy machine's browser has finished what it does."""

MISTAKEN = mistaken()


class Browser:
    """A page in a browser, and the actions of its user."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self._folder = folder

    def open(self, *reports: Report, fragment: str = "") -> None:
        path = self._folder / "page.html"
        path.write_text(render(reports), encoding="utf-8")
        self.visit(f"{path.as_uri()}{fragment}")

    def visit(self, address: str) -> None:
        """Load a page anew, even if only the fragment differs, and wait for its findings."""
        self.driver.get("about:blank")
        self.driver.get(address)
        self.until(lambda: self.texts("#count") != [""])

    def each(self, selector: str, expression: str) -> list[Any]:
        """The values of a JavaScript expression about `one`, for elements of the page."""
        code = f"return [...document.querySelectorAll(arguments[0])].map(one => {expression})"
        return list(self.script(code, selector))

    def texts(self, selector: str) -> list[str]:
        return self.each(selector, "one.innerText ?? one.textContent")

    def content(self, selector: str) -> str:
        """The exact text of an element, with all white space."""
        return str(self.each(selector, "one.textContent")[0])

    def bottoms(self, selector: str) -> list[float]:
        """The distances in pixels from the top of the window to the bottoms of elements."""
        return self.each(selector, "one.getBoundingClientRect().bottom")

    def click(self, selector: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def choose(self, field: str, value: str) -> None:
        Select(self.driver.find_element(By.NAME, field)).select_by_value(value)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, as browsers take time to follow links and open boxes."""
        WebDriverWait(self.driver, SOON).until(lambda _: condition())

    def script(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def emulate(self, width: int, **media: str) -> None:
        size = {"width": width, "height": SCREEN, "deviceScaleFactor": 1, "mobile": width < 500}
        features = [{"name": name.replace("_", "-"), "value": v} for name, v in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    @property
    def shown(self) -> list[str]:
        return self.texts("#list .id")

    @property
    def focused(self) -> str:
        text: str = self.driver.switch_to.active_element.text
        return text.split("\n")[0]

    @property
    def complaints(self) -> list[str]:
        log = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [entry["message"] for entry in log]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(driver, tmp_path)
    browser.emulate(1280)
    yield browser
    assert browser.complaints == []


def finding(case: str) -> Finding:
    [found] = [one for one in MISTAKEN.findings if one.case == case]
    return found


def diagnosed(mistake: str, **fields: Any) -> Finding:
    return finding_of(diagnosis={"name": mistake, "explanation": "e"}, error=1.0, **fields)


def link_to(case: str) -> str:
    return f"#verdict=any&finding=0/{finding(case).id}"


def test_what_is_wrong_is_listed_first(browser: Browser) -> None:
    browser.open(MISTAKEN)
    wrong = (Verdict.MISMATCH, Verdict.CRASHED)

    assert sorted(browser.shown) == [one.id for one in MISTAKEN.findings if one.verdict in wrong]
    assert browser.texts("#count") == ["8 wrong findings of 10 in all"]
    assert browser.shown[-1].startswith("metric/"), "a wrong number, behind the crash"
    assert "✕ crashed" in browser.texts(".verdict")[:-1]

    browser.open(report_of([finding_of("a", verdict=Verdict.DECLINED, message="no")]))
    assert browser.texts("#count") == ["1 wrong findings of 1 in all"]
    assert browser.texts(".verdict") == ["⊘ declined"]


def test_three_reports_with_six_causes_each_are_on_the_first_screen(browser: Browser) -> None:
    mistakes = [*MISTAKES][:4]
    found = [diagnosed(name, case=f"c{number}") for number, name in enumerate(mistakes)]
    found += [
        finding_of("c8", verdict=Verdict.CRASHED, message="Traceback\nOSError: gone"),
        diagnosed("not_divided", case="c9", check=Check.METRIC, logged=Logged(expected=1.0)),
        diagnosed("depends_on_cut", case="c10", verdict=Verdict.ADVICE),
    ]
    browser.open(*(report_of(found, adapter=name) for name in ("skyrl", "slime", "miles")))
    headings, causes = browser.bottoms(".causes h3"), browser.bottoms(".worst > li > .cause")

    assert (len(headings), len(causes)) == (3, 3 * 6)
    assert browser.texts(".more > summary") == ["1 advice"] * 3
    assert max(headings + causes + browser.bottoms(".more")) <= SCREEN


def test_every_newest_version_is_a_row_with_its_worst_cause_in_full(browser: Browser) -> None:
    """The committed page is shown without a network, on a screen 1440 pixels wide."""
    page = ROOT / WEB_PAGE
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http*"]})
    browser.emulate(1440)
    browser.visit(page.as_uri())
    headings = browser.texts(".causes h3")
    causes = browser.each(".causes article", "one.querySelectorAll('.worst .cause').length")

    assert page.stat().st_size < 2_000_000
    newest_by_name = {one.framework: one for one in newest(versions(ROOT / REPORTS))}
    assert len(headings) == len(newest_by_name)
    for heading, shown in zip(headings, causes, strict=True):
        version = newest_by_name[" ".join(heading.split()[:2])]
        wrong = finding_groups(version.report)
        assert ("nothing wrong" in heading) == (not wrong)
        assert shown == min(1, len(wrong))
    rows = browser.bottoms(".causes article")
    assert sum(bottom <= SCREEN for bottom in rows) >= 0.6 * len(rows), "below headline and picture"
    assert all(browser.each(".worst .cause", "one.scrollWidth <= one.clientWidth"))
    assert min(browser.each(".worst .cause", "one.clientHeight")) >= LEAST_ROW


def test_the_worst_mistake_is_drawn_beside_the_headline(browser: Browser) -> None:
    browser.open(MISTAKEN)
    assert len(browser.texts("#lead svg.picture .name")) == 2
    browser.click("#lead a")
    browser.until(lambda: len(browser.texts("#list svg.picture")) == 1)


def test_causes_that_do_not_fit_are_unfolded_by_a_click(browser: Browser) -> None:
    mistakes = [*MISTAKES][:25]
    browser.open(report_of([diagnosed(name, case=name) for name in mistakes]))

    assert browser.texts(".more > summary") == ["1 more"]
    assert browser.texts(".more .cause b") == [""]
    browser.click(".more > summary")
    browser.until(lambda: browser.texts(".more .cause b") != [""])


def test_a_cause_leads_to_its_findings_and_its_example(browser: Browser) -> None:
    lost = [diagnosed("tokens_lost", case="lost"), diagnosed("tokens_lost", case="other")]
    browser.open(report_of([*lost, diagnosed("not_divided", case="a")]))
    browser.click(".cause summary")
    assert browser.texts(".cause[open] b") == ["tokens are lost"]
    browser.click(".cause[open] .copy")
    browser.until(lambda: browser.texts(".cause[open] .copy")[0] != "Copy")
    browser.click(".cause[open] dl a")

    browser.until(lambda: len(browser.shown) == 2)
    assert browser.shown == [one.id for one in lost]
    assert browser.driver.find_element(By.NAME, "cause").get_property("value") == "tokens are lost"

    browser.click(".cause[open] p a")
    browser.until(lambda: len(browser.texts(".detail")) == 1)
    assert browser.texts("[aria-expanded=true] .id") == [lost[0].id]


def test_a_view_can_be_linked(browser: Browser) -> None:
    browser.open(MISTAKEN)
    browser.choose("verdict", "any")
    browser.choose("check", "weights")
    browser.choose("mode", "token_mean")
    browser.driver.find_element(By.NAME, "text").send_keys("OSError")
    browser.click(".row")
    [shown] = browser.shown
    address = browser.driver.current_url
    browser.visit(address)

    assert "check=weights" in address
    assert browser.shown == [shown] == [finding("fallen").id]
    assert browser.texts(".detail pre")[0] == "Traceback\n  deep\nOSError: gone"
    assert browser.driver.find_element(By.NAME, "text").get_property("value") == "OSError"


def test_every_field_filters_and_clearing_shows_all_that_is_wrong(browser: Browser) -> None:
    browser.open(MISTAKEN, report_of([finding_of("other")], adapter="tool", version="2"))
    counts = []
    for field, value in [
        ("framework", "tool torch"),
        ("version", "1"),
        ("check", "metric"),
        ("mode", "sample_mean"),
        ("verdict", "refused"),
        ("diagnosis", "unexplained"),
        ("cause", "an extra factor of cp (context-parallel ranks)"),
    ]:
        browser.choose(field, value)
        counts.append(len(browser.shown))
        browser.click("[type=reset]")

    assert counts == [1, 8, 2, 2, 1, 2, 5]
    assert len(browser.shown) == 9
    assert browser.driver.current_url.endswith("#")


def test_a_cell_of_the_matrix_lists_its_findings(browser: Browser) -> None:
    browser.open(MISTAKEN)
    browser.click(".matrix tr:nth-child(2) td.wrong a")

    browser.until(lambda: len(browser.shown) == 4)
    assert all(one.startswith("weights/token_mean/") for one in browser.shown)

    browser.driver.back()
    browser.until(lambda: len(browser.shown) == 8)


def test_the_keyboard_is_enough(browser: Browser) -> None:
    browser.open(MISTAKEN)
    browser.press("/", "weights", Keys.TAB, Keys.TAB)
    assert browser.focused == "≠ mismatch"

    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ENTER)
    assert browser.texts("[aria-expanded=true] .id") == [browser.shown[1]]
    assert len(browser.texts(".detail")) == 1

    browser.press(Keys.ESCAPE)
    assert browser.texts(".detail") == []
    browser.press(Keys.END, Keys.ENTER)
    assert browser.texts("[aria-expanded=true] .id") == [browser.shown[-1]]


def test_a_picture_says_what_it_shows(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("odd"))
    picture = browser.driver.find_element(By.CSS_SELECTOR, "#list svg.picture")

    assert picture.aria_role == "image"
    words = picture.accessible_name
    assert words.startswith("Of the tokens drawn, 5 as expected, 2 too heavy (×30), 1 of the opp")
    assert "1 inactive, but weighs something, 2 not finite, 3 inactive." in words
    assert browser.texts("#list svg.picture .ratio") == ["×-1", "0.05", "not finite", "×30"]
    assert browser.texts("#list svg.picture .place") == [
        f"dp rank {rank}, micro-batch {number}" for rank in (0, 1) for number in (0, 1)
    ]
    assert len(browser.texts("#list svg.picture .tear")) == 1
    assert len(browser.texts("#list svg.picture .outline")) == 6


def test_bars_are_as_high_as_weights(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("by_rank"))
    too_heavy, too_light = (
        browser.each(f"#list svg.picture .bar.{kind}", "+one.getAttribute('height')")
        for kind in ("heavy", "light")
    )

    assert {*too_heavy} == {4 * height for height in too_light} == {40.0}


def test_what_a_picture_cannot_show_is_said(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("twice"))
    assert browser.texts("#list svg.picture .where") == ["0", "1", "0", "cp 0", "cp 1", "0", "cp 1"]
    assert "group 0, cp 1" in browser.texts("#list svg.picture text")

    browser.open(MISTAKEN, fragment=link_to("many"))
    assert "the 48 most off of 60 samples" in browser.texts("#list figcaption")[0]
    assert "How the step was cut is not known." in browser.texts("#list figcaption")[0]
    assert browser.texts("#list svg.picture text").count("… the first 24 of 99 tokens") == 48

    runs = [Run(1, 0.1, 0.2, 0, 0, 0), Run(8000, 0.1, 0.1, 0, 0, 0)]
    sample = PicturedSample(sample=0, group=0, tokens=8001, runs=runs)
    picture = Picture(step=0, samples_of_step=1, samples=[sample])
    browser.open(report_of([finding_of("long", picture=picture)]))
    browser.click(".row")
    assert "Short stretches are drawn wider than they are." in browser.texts("#list figcaption")[0]
    assert browser.texts("#list svg.picture .ratio") == ["×2"]
    assert browser.each("#list svg.picture .bar.heavy", "one.getAttribute('width') > 5") == [True]


def test_a_picture_is_a_table_too(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("unknown_cut"))
    assert browser.texts("figure table") == []

    browser.click("figure summary")
    browser.until(lambda: bool(browser.texts("figure tbody tr")))
    rows = [row.replace("\t", " ") for row in browser.texts("figure tbody tr")]
    assert rows[0] == "0 0 1–2 0.1 0.100001 ×1.00001 – – – too heavy"
    assert rows[1] == "0 0 3–3 0 0 – – – – inactive"


def test_a_logged_number_is_shown_beside_the_expected_one(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("logged"))
    numbers = ["expected", "0.25", "reported", "0.5", "ratio", "×2"]

    assert browser.texts(".detail > p")[0] == f"Off by a factor of 2. ({LEGEND})"
    assert browser.texts(".detail dl")[0].split() == numbers

    browser.open(MISTAKEN, fragment=link_to("logged_nan"))
    assert browser.texts(".detail dl")[0].split("\n")[-1] == "not finite"


def test_a_finding_says_how_to_run_it_again(browser: Browser) -> None:
    browser.open(MISTAKEN, fragment=link_to("twice"))
    browser.click(".detail .copy")

    assert browser.texts(".detail .command code") == [command(MISTAKEN, finding("twice"))]
    browser.until(lambda: browser.texts(".detail .copy")[0].startswith(("Copied", "Selected")))
    assert "toy.loss:reduce" in browser.texts(".detail p code")


def test_nothing_that_a_framework_says_acts(browser: Browser) -> None:
    browser.open(hostile())
    browser.script("window.alert = window.confirm = text => { window.acted = text; }")
    drawn = (
        "return document.querySelectorAll('script, style, img, iframe, [onerror], [onload]').length"
    )
    before = browser.script(drawn)
    for number in range(len(HOSTILE)):
        browser.script(f"document.querySelectorAll('.row')[{number}].click()")
        name = browser.content(".row[aria-expanded=true] .id")
        [found] = [one for one in hostile().findings if one.id == name]
        assert browser.content(".detail pre") == found.message
        assert browser.content(".detail .command code") == command(hostile(), found)

    assert browser.script(drawn) == before == 3
    assert browser.script("return window.acted ?? null") is None


def test_the_policy_stops_what_would_be_put_in_anyway(browser: Browser) -> None:
    browser.open(MISTAKEN)
    browser.script(
        "const script = document.createElement('script');"
        "script.textContent = 'window.acted = 1'; document.body.append(script);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"acted = 1\">')"
    )

    assert browser.script("return window.acted ?? null") is None
    assert all("Content Security Policy" in complaint for complaint in browser.complaints)


@pytest.mark.parametrize("case", ["twice", "many", "fallen"])
def test_a_telephone_is_wide_enough(browser: Browser, case: str) -> None:
    browser.emulate(360)
    browser.open(MISTAKEN, MISTAKEN, fragment=link_to(case))
    browser.script("document.querySelectorAll('.timeline').forEach(box => { box.open = true; })")

    assert browser.script("return document.documentElement.scrollWidth") == 360


def test_colours_follow_the_reader_and_printing_opens_the_timelines(browser: Browser) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        browser.open(MISTAKEN, MISTAKEN)
        browser.emulate(1280, prefers_color_scheme=scheme)
        colours.add(browser.script("return getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2

    assert browser.texts(".timeline[open]") == []
    browser.driver.print_page()
    browser.until(lambda: len(browser.texts(".timeline[open]")) == 1)


@pytest.mark.thorough
def test_ten_thousand_findings_can_be_read(browser: Browser, tmp_path: Path) -> None:
    browser.open(many(10_000))
    browser.driver.find_element(By.NAME, "text").send_keys("case_99/")

    assert (tmp_path / "page.html").stat().st_size < 10_000_000
    assert len(browser.shown) == 50
    assert browser.texts("#count") == ["100 wrong findings of 10000 in all"]
    browser.press(Keys.TAB, Keys.TAB, Keys.END)
    assert browser.texts("#page") == ["page 2 of 2"]
    browser.press(Keys.ENTER)
    assert len(browser.texts("#list svg.picture")) == 1
    assert len(browser.texts("#list svg.picture .name")) == 8


def test_a_click_unfolds_a_divisor_of_the_chain(browser: Browser) -> None:
    browser.open(traced())
    browser.driver.find_element(By.CSS_SELECTOR, ".cause > summary").click()
    assert "= 1, clamped from 0" in browser.driver.find_element(By.CSS_SELECTOR, ".chain").text
    assert "= 2 engine.py:5" not in browser.driver.find_element(By.CSS_SELECTOR, ".chain").text

    browser.driver.find_elements(By.CSS_SELECTOR, ".chain summary")[1].click()
    browser.until(
        lambda: "= 2 engine.py:5" in browser.driver.find_element(By.CSS_SELECTOR, ".chain").text
    )
