"""Layouts read and write as one text; engines are checked."""

from __future__ import annotations

import pytest

from adapters.contract import InvalidEngineError, InvalidLayoutError, Layout
from adapters.native import NativeAdapter


@pytest.mark.parametrize(
    "text", ["dp1-cp1-mb1-bshd", "dp4-cp2-mbuneven-thd", "dp2-cp1-mbtokens-thd"]
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


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidEngineError, match="engine 'jax' is none of native's; choose torch"):
        NativeAdapter("jax")
