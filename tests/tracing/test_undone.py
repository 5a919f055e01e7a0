"""Changes of a version are proven by runs in which they are undone."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.contract.job import FileVersions
from adapters.contract.objective import Objective
from conformance.ranks.pool import RankPool
from conformance.ranks.recording.swapping import Swapping
from conformance.runs.jobs import SharedJobs
from conformance.sources.changes import OF_HUNKS
from conformance.tracing.proof import Prover
from conformance.tracing.undone import Changes, changes, smallest, undone
from tests.tracing import mistaken
from tests.tracing.mistaken import MistakenAdapter
from tests.tracing.test_proof import traced, wrong

HEAD = Path(inspect.getfile(mistaken))

OF_SHARES = "((means * shares).sum() / count).backward()"

MEANT = "(self.losses(rows).sum() / count).backward()"

SHARES = "shares = count / len(own) / dist.get_world_size()"

UNRELATED = ("share = self.tokens(rows) / dist.get_world_size()", "share = None")
"""A text of another function of the toy, and the base's."""


@pytest.fixture(scope="module")
def jobs() -> Iterator[SharedJobs]:
    with RankPool(MistakenAdapter(), None, 2) as pool:
        yield SharedJobs(pool)


def since(*replaced: tuple[str, str]) -> Changes:
    """The changes of the toy since a base in which other texts were in place of some."""
    head = HEAD.read_text()
    base = head
    for new, old in replaced:
        assert head.count(new) == 1
        base = base.replace(new, old)
    return Changes({str(HEAD): hunks(base, head)})


def hunks(base: str, head: str) -> str:
    """The hunks between two texts, as git shows them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("base", base), ("head", head)):
            Path(folder, name).write_text(text)
        command = ["git", "diff", "--no-index", *OF_HUNKS, "base", "head"]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout[found.stdout.index("@@") :]


def told(way: str, jobs: SharedJobs, found: Changes) -> list[tuple[str, str]]:
    of_cause = wrong(way, jobs, Objective.POLICY)
    lines = Prover(jobs, changes=found).changed(traced(of_cause[0], jobs), of_cause)
    return [(linecache.getline(one.line.file, one.line.number), one.why) for one in lines]


def test_the_change_is_proven_without_which_all_findings_conform(jobs: SharedJobs) -> None:
    """No value and no edit of a statement proves this line; see `rows_alike`."""
    [(line, why), *others] = told("rows_alike", jobs, since((OF_SHARES, MEANT), UNRELATED))

    assert OF_SHARES in line
    assert why == f"proven: with `{MEANT}` as in the base, 3 of its findings conform"
    assert not any(each.startswith("proven") for _, each in others)


def test_changes_that_are_wrong_together_are_proven_together(jobs: SharedJobs) -> None:
    changed = since(
        (OF_SHARES, "((means * shares).sum() / count / 2).backward()"),
        (SHARES, "shares = 2 * own"),
        UNRELATED,
    )
    lines = [(line, why) for line, why in told("rows_alike", jobs, changed) if "proven" in why]

    assert [text in line for text, (line, _) in zip((SHARES, OF_SHARES), lines, strict=True)]
    assert all(" as in the base, together with 1 other change, 3 of" in why for _, why in lines)


@pytest.mark.parametrize(
    "changed",
    [
        [UNRELATED],
        [(OF_SHARES, "((means * shares).mean() / count).backward()"), UNRELATED],
        [(OF_SHARES, MEANT), (SHARES, "shares = own")],
    ],
    ids=["of another function", "as wrong in the base", "both undo the mistake"],
)
def test_changes_that_are_not_alone_the_cause_are_not_proven(
    jobs: SharedJobs, changed: Sequence[tuple[str, str]]
) -> None:
    assert told("rows_alike", jobs, since(*changed)) == []


def test_a_change_is_found_though_the_base_does_not_run(jobs: SharedJobs) -> None:
    """The other change is of a line that the step runs, and its undoing raises."""
    broken = (SHARES, "shares = no_shares")
    [(line, why), *_] = told("rows_alike", jobs, since((OF_SHARES, MEANT), broken, UNRELATED))

    assert OF_SHARES in line
    assert why.startswith("proven: ")


@pytest.mark.parametrize(
    ("base", "head", "numbers"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", [(2, 1, 1)]),
        ("a\nb\nc\n", "A\nB\nc\n", [(1, 1, 1), (2, 1, 1)]),
        ("a\nb\nc\n", "a\nc\n", [(2, 1, 0)]),
        ("a\nc\n", "a\nb\nb\nc\n", [(2, 0, 2)]),
        ("a\nb\nc\n", "a\nB\nB\nc\n", [(2, 1, 2)]),
        ("a\nb", "a\nb\n", [(2, 1, 1)]),
    ],
)
def test_hunks_are_split_into_changes_of_one_line_where_possible(
    base: str, head: str, numbers: list[tuple[int, int, int]]
) -> None:
    found = [*changes("loss.py", hunks(base, head))]

    assert [(one.first, len(one.before), len(one.after)) for one in found] == numbers


LINES = st.lists(st.sampled_from(["a\n", "b\n", "\x0c c\n", "@@ d\n", "+\n"]), max_size=12)


@settings(max_examples=20)
@given(base=LINES, head=LINES)
def test_undoing_all_changes_gives_the_base(
    base: list[str], head: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if base == head:
        return
    path = tmp_path_factory.mktemp("head") / "loss.py"
    path.write_text("".join(head))
    found = [*changes(str(path), hunks("".join(base), "".join(head)))]

    assert undone(found) == FileVersions(((str(path), "".join(base)),))


@given(several=st.lists(st.integers(0, 40), unique=True, min_size=1), data=st.data())
def test_the_smallest_part_that_suffices_is_what_is_needed(
    several: list[int], data: st.DataObject
) -> None:
    needed = data.draw(st.sets(st.sampled_from(several), min_size=1))

    assert {*smallest(several, lambda part: needed <= {*part})} == needed


MODULE = """
LOW = 0.1

class Loss:
    def bounds(self, low, high=0.2, *, is_wide=False):
        return [low, high, is_wide, LOW]

def computed(low):
    def inner():
        return Loss().bounds(low)
    return inner
"""


@pytest.fixture
def framework(tmp_path: Path) -> ModuleType:
    path = tmp_path / "a_framework.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("a_framework", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "other", "result"),
    [
        ("[low, high,", "[high, low,", [0.2, 1, False, 0.1]),
        ("high=0.2", "high=0.3", [1, 0.3, False, 0.1]),
        ("is_wide=False", "is_wide=True", [1, 0.2, True, 0.1]),
        ("LOW = 0.1", "LOW = 0.5", [1, 0.2, False, 0.5]),
        ("bounds(low)", "bounds(low, 2)", [1, 2, False, 0.1]),
        (
            "def computed(low):",
            "def half(low):\n    return low / 2\n\ndef computed(low):\n    low = half(low)",
            [0.5, 0.2, False, 0.1],
        ),
    ],
)
def test_functions_run_in_another_version_and_then_in_their_own(
    framework: ModuleType, text: str, other: str, result: list[object]
) -> None:
    """The other version changes a body, a default, a constant, an inner or a further function."""
    assert MODULE.count(text) == 1
    file, computed = str(framework.__file__), framework.computed
    names = {*vars(framework)}

    with Swapping(FileVersions(((file, MODULE.replace(text, other)),))):
        assert computed(1)() == result

    assert computed(1)() == [1, 0.2, False, 0.1]
    assert {*vars(framework)} == names


def test_nothing_stays_swapped_if_a_version_cannot_be_loaded(framework: ModuleType) -> None:
    """A default or a constant may need a name that only the base's other modules have."""
    file = str(framework.__file__)
    for text, other in (("high=0.2", "high=unknown"), ("LOW = 0.1", "LOW = unknown")):
        code = framework.Loss.bounds.__code__
        swapping = Swapping(FileVersions(((file, MODULE.replace(text, other)),)))
        with pytest.raises(NameError), swapping:
            pass
        assert framework.Loss.bounds.__code__ is code
        assert framework.computed(1)() == [1, 0.2, False, 0.1]
