"""Classes that lack a method or an attribute that adapters need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.contract import Adapter, Layout
from tests.minimal.right import MinimalAdapter


class WithoutObserve(Adapter):
    """Has two of an adapter's four methods."""

    name = "unfinished"

    def layouts(self) -> Sequence[Layout]:
        return [Layout()]

    def load(self, source: Path | None) -> None:
        """Import nothing."""


class WithoutAName(Adapter):
    """Has all methods, but no name."""

    layouts = MinimalAdapter.layouts
    load = MinimalAdapter.load
    describe = MinimalAdapter.describe
    observe = MinimalAdapter.observe
