"""Spells the settings of a job as files and command lines do."""

from __future__ import annotations

YAML_NUMBERS = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}
"""Numbers that YAML spells otherwise than Python."""


def yaml(text: str) -> str:
    """A number, or any other text, as YAML spells it."""
    return YAML_NUMBERS.get(text, text)
