"""Faults of the harness itself, which are no verdict on a framework and stop the run.

Numbers of the reference that may not depend on how a step was run are compared over all findings of
a run: where two differ, at least one of them is wrong, and so may be any verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HarnessFaultError(RuntimeError):
    """The harness contradicts itself, so that no verdict of the run can be relied on."""


class InconsistentExpectationError(HarnessFaultError):
    """The reference expects two different numbers where it can expect only one."""


@dataclass
class Consistency:
    """The expected numbers of a run, by case and name, each with the finding that had it first."""

    _known: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    def require(self, case: str, finding: str, numbers: Iterable[tuple[str, float]]) -> None:
        """Hold a finding's expected numbers against those of the findings before it.

        Raises:
            InconsistentExpectationError: one of them was another number before.
        """
        for name, value in numbers:
            before, first = self._known.setdefault((case, name), (value, finding))
            if before != value:
                raise InconsistentExpectationError(
                    f"{name} of case {case} is expected to be {before!r} by {first} and {value!r}"
                    f" by {finding}, which cannot differ: the adapter misreports how steps were"
                    " cut, or the reference is wrong; no verdict of this run can be relied on"
                )
