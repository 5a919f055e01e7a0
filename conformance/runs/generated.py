"""Makes one finding from many generated cases: hypothesis looks for a case that does not conform.

A case with wrong weights is shrunk, and the finding has it in the form of a ``--case-file``. A case
that crashes ends the search and is not shrunk, since every crash costs a restart of the ranks.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from zlib import crc32

import hypothesis
from hypothesis.errors import Flaky

from conformance.corpus import case_file
from conformance.corpus.strategies import DIVISORS, cases
from conformance.findings.verdict import WRONG, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import SearchStrategy

    from conformance.corpus.cases import Case
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import GeneratedCell, MatrixCell

    Make = Callable[[MatrixCell], Judgement]
    """Judges an example."""


class _Mismatched(Exception):  # noqa: N818 - hypothesis looks for it
    """An example is a mismatch: hypothesis goes on to smaller examples."""


class _Crashed(BaseException):
    """An example crashed: hypothesis does not catch this exception, so the search ends."""


class _Fault(BaseException):
    """The harness itself failed, which is not an example's fault; this ends the search too."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def check_generated(cell: GeneratedCell, make: Make) -> Judgement:
    """Runs the cell's examples and judges them as a whole."""
    examples = _Examples(cell, make)
    try:
        _search(cell, examples.run)
    except (_Mismatched, _Crashed):
        pass
    except Flaky:
        examples.always_wrong = False
    except _Fault as fault:
        raise fault.error from None
    return examples.judgement()


def _search(cell: GeneratedCell, run: Callable[[Case], None]) -> None:
    """Run a cell's examples; equal seeds give equal examples."""

    @hypothesis.seed(crc32(f"{cell.seed}/{cell.id}".encode()))
    @hypothesis.settings(
        max_examples=cell.examples,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(_cases(cell))
    def search(case: Case) -> None:
        run(case)

    search()


def _cases(cell: GeneratedCell) -> SearchStrategy[Case]:
    if cell.divisor is not None:
        return cases(cell.layout, divisors=(cell.divisor,))
    return cases(cell.layout, divisors=DIVISORS if cell.mode is Mode.CONSTANT else DIVISORS[:1])


@dataclass
class _Examples:
    """The outcomes of a cell's examples."""

    cell: GeneratedCell
    make: Make
    right: list[Judgement] = field(default_factory=list)
    """The judgements before the first wrong one."""

    wrong: tuple[Judgement, Case] | None = None
    """The latest wrong judgement with its case; after the search, the case is the smallest."""

    always_wrong: bool = True

    def run(self, case: Case) -> None:
        """Judge one example.

        Once a mistake is found, only mistakes of the same kind count, so that shrinking does not
        end at another mistake.

        Raises:
            _Mismatched: the example is a mismatch.
            _Crashed: the example crashed.
            _Fault: the harness failed.
        """
        with _faults_end_the_search():
            judgement = self.make(self.cell.of(case))
        if judgement.verdict is Verdict.CRASHED:
            self.wrong = judgement, case
            raise _Crashed
        is_alike = self.wrong is None or _kind(judgement) == _kind(self.wrong[0])
        if judgement.verdict in WRONG and is_alike:
            self.wrong = judgement, case
            raise _Mismatched
        if self.wrong is None:
            self.right.append(judgement)

    def judgement(self) -> Judgement:
        """One judgement for all examples.

        It has the numbers of the wrong example, or the largest error if all examples are right. The
        verdict is that the framework declined only if it declined every example.
        """
        if self.wrong is not None:
            judgement, case = self.wrong
            message = "\n".join([*self._words(judgement), case_file.text(case, "example")])
            return replace(judgement, expected=(), message=message)
        counts = Counter(one.verdict for one in self.right)
        verdict = next(verdict for verdict in Verdict if counts[verdict])
        alike = [one for one in self.right if one.verdict is verdict]
        largest = max(alike, key=lambda one: one.error or 0.0)
        worst = replace(largest, expected=(), clues=None)
        if verdict is not Verdict.CONFORMS:
            return worst
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        return replace(worst, message=f"{len(self.right)} examples: {words}")

    def _words(self, judgement: Judgement) -> Iterator[str]:
        if judgement.message is not None:
            yield judgement.message
        if not self.always_wrong:
            yield "run again, the same example was not wrong"
        shrunk = "" if judgement.verdict is Verdict.CRASHED else ", shrunk"
        yield f"example {len(self.right) + 1} of {self.cell.examples}{shrunk}, as a --case-file:"


def _kind(judgement: Judgement) -> tuple[bool, bool]:
    """A key that differs between wrong weights, weights that are not finite, and declined steps."""
    return judgement.error is None, judgement.message is None


@contextmanager
def _faults_end_the_search() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _Fault(error) from error
