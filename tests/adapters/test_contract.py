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


OF_ANOTHER_FORM = (
    "dp2",
    "dp2-cp1-mbodd-thd",
    "dp2-cp1-mb2-sbhd",
    "dp-1-cp1-mb1-thd",
    "dp2-cp1-pp2-tp2-mb1-thd",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "is not of the form dp2-cp1-mb2-thd") for text in OF_ANOTHER_FORM),
        ("dp0-cp1-mb1-bshd", "dp of dp0-cp1-mb1-bshd is 0"),
        ("dp2-cp1-mb2-thd+interleaved", "interleaves the chunks of one stage"),
        ("dp1-cp1-mb1-thd+fast", "option 'fast' of layout"),
    ],
)
def test_layout_that_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidLayoutError, match=words):
        Layout.parse(text)


def test_last_stage_has_the_last_ranks() -> None:
    layout = Layout(dp=2, cp=1, tp=2, pp=3)

    assert layout.world_size == 12
    assert [*range(12)][layout.last_stage] == [8, 9, 10, 11]
    assert [*range(12)][layout.token_holders] == [8, 10]
    assert [rank for rank in range(12) if layout.is_on_last_stage(rank)] == [8, 9, 10, 11]


def test_options_have_one_order() -> None:
    text = "dp1-cp1-mb1-thd+overlap_grad_reduce+balance_data+balance_data"
    assert str(Layout.parse(text)) == "dp1-cp1-mb1-thd+balance_data+overlap_grad_reduce"
