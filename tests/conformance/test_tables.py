"""Tables and Markdown show cells and texts as they are, whatever the terminal and the text."""

from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from markdown_it import MarkdownIt

from conformance.findings.sanitize import printable
from conformance.views.formatting import (
    ZERO_WIDTH_SPACE,
    code,
    escape_html,
    escape_markdown,
    markdown_table,
    preformatted,
    text_table,
)
from tests.conformance.reports import UNRULY

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

SPECIAL = "ab_1 *`[]()<>&;#|~$\\-+=.!:@/\"'"


def test_columns_are_as_wide_as_their_longest_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = "a cell of several words" * 20

    assert text_table([["a", "[bold]b", ":x: 1"], [long, "", "c"]]) == [
        f"{'a':{len(long)}}  [bold]b  :x: 1",
        f"{long}           c",
    ]


def lines() -> SearchStrategy[str]:
    """Lines of unruly text, with single blanks, as Markdown turns all white space into these."""
    texts = st.text(alphabet=SPECIAL, min_size=1) | st.sampled_from(UNRULY)
    return texts.map(lambda text: " ".join(map(printable, text.split()))).filter(bool)


def read(markdown: str, before: str, after: str) -> str:
    """The text between two tags of rendered Markdown, as a reader sees it."""
    rendered = RENDERER.render(markdown)
    start = rendered.index(before) + len(before)
    inside = rendered[start : rendered.index(after, start)]
    assert "<" not in inside
    return unescape(inside).replace(ZERO_WIDTH_SPACE, "")


@given(lines())
def test_escaped_text_reads_as_it_is_wherever_it_stands(line: str) -> None:
    escaped = escape_markdown(line)

    assert read(escaped, "<p>", "</p>") == line
    assert read(f"- {escaped}", "<li>", "</li>") == line
    assert read("\n".join(markdown_table(["a"], [[escaped]])), "<td>", "</td>") == line
    folded = f"<details><summary>{escape_html(line)}</summary>\n\n</details>"
    assert read(folded, "<summary>", "</summary>") == line


@given(lines())
def test_text_as_code_reads_as_it_is(line: str) -> None:
    assert read(f"- {code(line)}", "<code>", "</code>") == line
    block = read("\n".join(preformatted([f"  {line}", line])), '<code class="language-text">', "</")
    assert block == f"  {line}\n{line}\n"


@pytest.mark.parametrize(
    "text",
    [
        "reduced as token_mean, in off_policy.geo_mean",
        "x.py in _forward: RuntimeError: size [4, 2] <= 3 (at position #) & more",
        "gradient 6 % too small, direction off by up to 17° (512 samples, dp 8)",
    ],
)
def test_plain_words_and_names_are_not_escaped(text: str) -> None:
    assert escape_markdown(text).replace("\\_", "_") == text


def test_users_and_issues_are_not_linked() -> None:
    for escaped in (escape_markdown("@team #1 a#2"), escape_html("@team #1 a#2")):
        assert escaped == "@\u200bteam #\u200b1 a#\u200b2"
