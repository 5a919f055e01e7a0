"""A mistake in a framework's real code gives one cause, with its right name and condition."""

import os
from pathlib import Path

import pytest

from conformance.comparing.cause_changes import Fate
from tests import command
from tests.mistakes_in_real_code import INSTALLED, MISTAKES, RELEASED, Mistake, changes


@pytest.mark.soak
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_real_code_gives_one_cause(tmp_path: Path, mistake: Mistake) -> None:
    needs_none = mistake.framework in (*INSTALLED, *RELEASED)
    if not needs_none and command.SOURCES not in os.environ:
        pytest.skip(f"{command.SOURCES} names no folder of clones")
    found = [one for one in changes(mistake, tmp_path) if one.fate in (Fate.NEW, Fate.CHANGED)]

    assert [(one.fate, one.new.name, one.new.condition) for one in found if one.new] == [
        (Fate.NEW, mistake.cause, [*mistake.condition])
    ]
