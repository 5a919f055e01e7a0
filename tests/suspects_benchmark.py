"""The rate at which the right line is among the suspects of recorded traces.

``python -m tests.suspects_benchmark FOLDER`` reads the traces that ``records.json`` of a folder
lists, each with the lines of its mistake. One half of the traces, chosen by a hash of their names,
may be examined while a rule is made. The other half judges the rule; its misses are not examined.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from adapters.contract.job import Replacement
from conformance.findings.finding import FrozenModel
from conformance.findings.trace import Line
from conformance.tracing import file
from conformance.tracing.proof import MOST_TRIED, candidates
from conformance.tracing.trace import Trace

HALVES = ("looking", "judging")


class Record(FrozenModel):
    """A trace of a mistake that was made on purpose, and the mistake's lines."""

    trace: str
    source: str | None
    right: list[tuple[str, int, int]]
    """Files, each with the first and the last line of the mistake in it."""

    proven: tuple[Replacement, ...] = ()
    """The replacements of values in the mistake's lines that earlier runs proved right."""

    def has(self, line: Line) -> bool:
        """Whether a line is one of the mistake's."""
        return any(
            line.file == name and first <= line.number <= last for name, first, last in self.right
        )


RECORDS = TypeAdapter(dict[str, Record])


def half(name: str) -> str:
    """The half of the records to which a record belongs."""
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


def still_tried(trace: Trace, record: Record) -> bool:
    """Whether a run would still try one of the values that proved a line of the mistake."""
    tried = islice(candidates(trace), MOST_TRIED)
    return any(one.replacement in record.proven for one in tried)


def counted(found: Counter[str]) -> str:
    """The counts of the places of the mistakes' lines, in words."""
    of = found["of"]
    placed = f"first {found['1']}, among three {found['1'] + found['2'] + found['3']}, of {of}"
    return f"{placed}; proven {found['proven']} of {found['once proven']}"


def main(names: Sequence[str]) -> None:
    """Print the place of each record's line, and the number of records with each place."""
    [folder] = map(Path, names)
    counts = {name: Counter[str]() for name in HALVES}
    for name, record in RECORDS.validate_json((folder / "records.json").read_bytes()).items():
        source = None if record.source is None else Path(record.source)
        trace = file.read(folder / record.trace, source)
        places = (str(n) for n, one in enumerate(trace.suspects, 1) if record.has(one.line))
        place = next(places, "not suspected")
        is_tried = bool(record.proven) and still_tried(trace, record)
        counts[half(name)].update(["of", place])
        counts[half(name)].update({"once proven": bool(record.proven), "proven": is_tried})
        proof = {False: ", no longer proven", True: ", proven"}[is_tried] if record.proven else ""
        print(f"{half(name)} {name}: {place}{proof}", flush=True)
    for name, found in counts.items():
        print(f"{name}: {counted(found)}")


if __name__ == "__main__":
    main(sys.argv[1:])
