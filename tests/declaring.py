"""Conventions as an adapter declares them."""

from dataclasses import fields

from adapters.contract import Assumed
from reference.aggregation import DEFAULT_CONVENTIONS, Conventions


def assumed(conventions: Conventions) -> dict[str, Assumed[object]]:
    """The conventions that differ from the defaults, each as an assumed one."""
    return {
        field.name: Assumed(value)
        for field in fields(Conventions)
        if (value := getattr(conventions, field.name)) != getattr(DEFAULT_CONVENTIONS, field.name)
    }
