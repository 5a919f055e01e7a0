"""The only test of a run that `rl-loss-conformance review` starts: it makes findings as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def test_review(review: Callable[[], None]) -> None:
    review()
