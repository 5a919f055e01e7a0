"""Runs adapters over cases and layouts and judges what they do against the reference.

A trainer of one's own is checked by `check` in a script, by `watch` in a real run, and in tests by
the fixture `loss_conformance`. `recipe` says which known mistakes reach a framework's own options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.own_trainer.check import check as check
    from conformance.own_trainer.in_place import watch as watch
    from conformance.recipes.answer import answer_for_config as recipe

__all__ = ["check", "recipe", "watch"]


def __getattr__(name: str) -> Any:
    """The functions that a script uses, which import torch."""
    if name == "check":
        from conformance.own_trainer.check import check

        return check
    if name == "watch":
        from conformance.own_trainer.in_place import watch

        return watch
    if name == "recipe":
        from conformance.recipes.answer import answer_for_config

        return answer_for_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
