"""Checks that the reference does not contradict itself; otherwise the run stops.

Expected numbers that cannot depend on how a step was run are compared over all findings of a run.
If two differ, at least one is wrong, and no verdict is reliable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conformance.findings.errors import InconsistentExpectationError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Consistency:
    """The expected numbers of a run, by case and name, each with the first finding that has it."""

    _known: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    def require(self, case: str, finding: str, numbers: Iterable[tuple[str, float]]) -> None:
        """Compare the expected numbers of a finding with those of the findings before it.

        Raises:
            InconsistentExpectationError: one of them differs.
        """
        for name, value in numbers:
            before, first = self._known.setdefault((case, name), (value, finding))
            if before != value:
                raise InconsistentExpectationError(
                    f"{name} of case {case} is expected to be {before!r} by {first} and {value!r}"
                    f" by {finding}, which cannot differ: the adapter misreports how steps were"
                    " cut, or the reference is wrong; no verdict of this run can be relied on"
                )
