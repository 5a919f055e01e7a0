"""Text tables are the same whatever the terminal, and show cells as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.views.tables import text_table

if TYPE_CHECKING:
    import pytest


def test_columns_are_as_wide_as_their_longest_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = "a cell of several words" * 20

    assert text_table([["a", "[bold]b", ":x: 1"], [long, "", "c"]]) == [
        f"{'a':{len(long)}}  [bold]b  :x: 1",
        f"{long}           c",
    ]
