"""A mistake in a framework's real code gives one cause, with its right name and condition."""

import os
from pathlib import Path

import pytest

from conformance.comparing.cause_changes import Fate
from conformance.laws.law import LAWS
from tests import command
from tests.mistakes_in_real_code import (
    INSTALLED,
    MISTAKES,
    OF_LAWS,
    RELEASED,
    Mistake,
    broken_laws,
    changes,
)


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


@pytest.mark.soak
@pytest.mark.parametrize("mistake", OF_LAWS, ids=lambda mistake: mistake.name)
def test_a_mistake_in_real_code_breaks_its_law_alone(tmp_path: Path, mistake: Mistake) -> None:
    """A mistake with masked tokens breaks the law of each place where they may be."""
    broken = broken_laws(mistake, tmp_path)
    assert broken == {*mistake.name.split("+")}
    assert {LAWS[law].mistake for law in broken} == {mistake.cause}
