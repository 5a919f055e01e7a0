"""Exceptions are attributed to the framework, to the adapter or to this project."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.contract.recorded import TRAINING
from conformance.findings.verdict import Verdict, driven_instead
from conformance.ranks.blame import blame
from tests.drifting import adapter, framework
from tests.drifting.adapter import DriftingAdapter
from tests.tables import table

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("failure", "verdict", "words"),
    [
        pytest.param(getattr(adapter, name), Verdict(verdict), words, id=name)
        for verdict, failures in table("drifting/failures.toml").items()
        for name, words in failures.items()
    ],
)
def test_an_exception_has_the_verdict_of_the_one_at_fault_in_a_line(
    failure: Callable[[], object], verdict: Verdict, words: str
) -> None:
    TRAINING.begin()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each raises another
        failure()
    raised = blame(caught.value, DriftingAdapter(), None)

    assert raised.verdict is verdict
    assert f"{raised.words}, at {raised.place}" == words.replace("PYTHON", PYTHON)


@pytest.mark.parametrize(
    "code", ["class Rollout[T]: ...; 1 +", "from typing import Later", "1 + ''"]
)
def test_a_module_that_another_python_imports_names_the_python_that_the_source_requires(
    code: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.99"\n')

    with pytest.raises((ImportError, SyntaxError, TypeError)) as caught:
        exec(compile(code, "new.py", "exec"), {"__name__": framework.__name__})
    words = blame(caught.value, DriftingAdapter(), tmp_path).words

    assert "; its pyproject.toml requires Python >=3.99, and this is Python 3." in words


def test_a_missing_package_is_no_matter_of_versions() -> None:
    missing = "ModuleNotFoundError: No module named 'torchdata'"

    assert not driven_instead("commits since March", missing)
    assert driven_instead("commits since March", "KeyError: 'a'") == (
        "the adapter drives commits since March"
    )
