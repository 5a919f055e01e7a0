"""Conventions as an adapter declares them."""

from dataclasses import fields

from adapters.contract import Assumed
from reference.aggregation import DEFAULT_CONVENTIONS, Conventions


def assumed(conventions: Conventions) -> dict[str, Assumed[object]]:
    """Conventions that differ from the defaults, known only from code."""
    return {
        field.name: Assumed(value)
        for field in fields(Conventions)
        if (value := getattr(conventions, field.name)) != getattr(DEFAULT_CONVENTIONS, field.name)
    }
