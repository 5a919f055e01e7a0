"""Layouts read and write as one text."""

from __future__ import annotations

import pytest

from adapters.contract import InvalidLayoutError, Layout


@pytest.mark.parametrize(
    "text",
    [
        "dp1-cp1-mb1-bshd",
        "dp4-cp2-mbuneven-thd",
        "dp2-cp1-mbtokens-thd",
        "dp2-cp2-tp2-mb1-thd",
        "dp2-cp2-mb1-thd+allgather_cp+overlap_grad_reduce",
    ],
)
def test_layout_reads_what_it_writes(text: str) -> None:
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["dp2", "dp2-cp1-mbodd-thd", "dp2-cp1-mb2-sbhd", "dp-1-cp1-mb1-thd"]
)
def test_layout_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidLayoutError, match="is not of the form dp2-cp1-mb2-thd"):
        Layout.parse(text)


def test_layout_of_no_ranks_is_refused() -> None:
    with pytest.raises(InvalidLayoutError, match="dp of dp0-cp1-mb1-bshd is 0"):
        Layout.parse("dp0-cp1-mb1-bshd")


def test_options_have_one_order() -> None:
    text = "dp1-cp1-mb1-thd+overlap_grad_reduce+balance_data+balance_data"
    assert str(Layout.parse(text)) == "dp1-cp1-mb1-thd+balance_data+overlap_grad_reduce"


def test_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidLayoutError, match="option 'fast' of layout"):
        Layout.parse("dp1-cp1-mb1-thd+fast")
