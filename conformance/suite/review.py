"""The only test in a run of `rl-loss-conformance review`, which makes all findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def test_review(review: Callable[[], None]) -> None:
    review()
