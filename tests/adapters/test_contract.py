"""Layouts read and write as one text."""

import pytest

from adapters.contract import InvalidLayoutError, Layout


@pytest.mark.parametrize(
    "text",
    [
        "dp1-cp1-mb1-bshd",
        "dp4-cp2-mbuneven-thd",
        "dp2-cp1-mbtokens-thd",
        "dp2-cp2-tp2-mb1-thd",
        "dp2-cp1-pp4-mb2-thd+interleaved",
        "dp1-cp2-tp2-pp2-mbtokens-thd",
        "dp2-cp2-mb1-thd+allgather_cp+overlap_grad_reduce",
    ],
)
def test_layout_reads_what_it_writes(text: str) -> None:
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["dp2", "dp2-cp1-mbodd-thd", "dp2-cp1-mb2-sbhd", "dp-1-cp1-mb1-thd", "dp2-cp1-pp2-tp2-mb1-thd"],
)
def test_layout_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidLayoutError, match="is not of the form dp2-cp1-mb2-thd"):
        Layout.parse(text)


def test_layout_of_no_ranks_is_refused() -> None:
    with pytest.raises(InvalidLayoutError, match="dp of dp0-cp1-mb1-bshd is 0"):
        Layout.parse("dp0-cp1-mb1-bshd")


def test_layout_of_one_stage_cannot_be_interleaved() -> None:
    with pytest.raises(InvalidLayoutError, match="interleaves the chunks of one stage"):
        Layout.parse("dp2-cp1-mb2-thd+interleaved")


def test_last_stage_has_the_last_ranks() -> None:
    layout = Layout(dp=2, cp=1, tp=2, pp=3)

    assert layout.world_size == 12
    assert [*range(12)][layout.last_stage] == [8, 9, 10, 11]
    assert [*range(12)][layout.token_holders] == [8, 10]
    assert [rank for rank in range(12) if layout.is_on_last_stage(rank)] == [8, 9, 10, 11]


def test_options_have_one_order() -> None:
    text = "dp1-cp1-mb1-thd+overlap_grad_reduce+balance_data+balance_data"
    assert str(Layout.parse(text)) == "dp1-cp1-mb1-thd+balance_data+overlap_grad_reduce"


def test_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidLayoutError, match="option 'fast' of layout"):
        Layout.parse("dp1-cp1-mb1-thd+fast")
