"""Adapters that lack what a class of an adapter needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.contract import Adapter, Layout
from tests.minimal.right import MinimalAdapter


class WithoutObserve(Adapter):
    """It has two of its four methods."""

    name = "unfinished"

    def layouts(self) -> Sequence[Layout]:
        return [Layout()]

    def load(self, source: Path | None) -> None:
        """Nothing is to be imported."""


class WithoutAName(Adapter):
    """It has all methods."""

    layouts = MinimalAdapter.layouts
    load = MinimalAdapter.load
    describe = MinimalAdapter.describe
    observe = MinimalAdapter.observe
