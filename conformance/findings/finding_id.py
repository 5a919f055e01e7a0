"""The id of a finding: its check, mode, case and layout."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from adapters.contract import Layout
from conformance.findings.verdict import Check
from reference.aggregation import Mode

GENERATED = "generated"
"""The name that all generated cases share in ids."""

PRODUCTION = "production_step"
"""The case of the corpus that is as large as a step in production."""


def slug(check: Check, subject: str | None) -> str:
    """The first part of an id: the check, with its subject if it has several."""
    return f"{check}.{subject}" if subject else str(check)


class FindingId(NamedTuple):
    """The parts of a finding's id, which is written as ``check[.subject]/mode/case/layout``."""

    check: Check
    subject: str | None
    mode: Mode
    case: str
    layout: Layout

    @property
    def slug(self) -> str:
        """The check, with its subject if it has several."""
        return slug(self.check, self.subject)

    def __str__(self) -> str:
        return f"{self.slug}/{self.mode}/{self.case}/{self.layout}"

    @classmethod
    def parse(cls, text: str) -> FindingId:
        """Read an id as written by `str`.

        Raises:
            ValueError: the text is of another form.
        """
        parts = text.split("/")
        if len(parts) != 4:
            raise ValueError(
                f"{text!r} is not of the form weights/token_mean/two_prompts/dp2-cp1-mb2-thd"
            )
        slug, mode, case, layout = parts
        check, subject = _parse_slug(slug)
        return cls(check, subject, Mode(mode), case, _parse_layout(layout))


@cache
def _parse_slug(text: str) -> tuple[Check, str | None]:
    check, _, subject = text.partition(".")
    return Check(check), subject or None


_parse_layout = cache(Layout.parse)
"""Ids of thousands of findings have the same few layouts."""
