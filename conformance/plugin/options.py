"""The options that a user may type after ``pytest``, and the settings that are read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.findings.errors import ConformanceError
from conformance.findings.report import PlanSize
from conformance.plugin import launching
from conformance.runs.options import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.runs.settings import Settings

DEFAULT_ADAPTER = "native"

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()

NODE_ID = "test_conformance.py::test_finding["
"""The text before a finding's id in the node id of its test."""


def declare(group: pytest.OptionGroup) -> None:
    """Declare the options."""
    for name, told in OPTIONS.items():
        group.addoption(f"--{name}", **told)


def finding_id(nodeid: str) -> str | None:
    """The id of the finding that a test makes; None for other tests."""
    _, found, rest = nodeid.partition(NODE_ID)
    return rest.rpartition("]")[0] if found else None


def settings_of(config: pytest.Config) -> Settings:
    """The settings of this run, checked the first time.

    Raises:
        pytest.UsageError: a setting is wrong; the message has a hint.
    """
    if SETTINGS not in config.stash:
        try:
            config.stash[SETTINGS] = _read_options(config)
        except ConformanceError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[SETTINGS]


def announce_changes(config: pytest.Config) -> None:
    """Have ranks record which changed statements they run, in a review."""
    if (path := config.getoption("review")) is not None:
        from conformance.ranks import changed
        from conformance.runs.review_task import ReviewTask

        changed.announce(ReviewTask.read(path).lines or {})


def _read_options(config: pytest.Config) -> Settings:
    from conformance.comparing.report_file import LATEST
    from conformance.runs.registry import short_name
    from conformance.runs.settings import Settings

    option, budget = config.getoption, launching.rank_budget(config)
    adapter = option("adapter") or DEFAULT_ADAPTER
    latest = config.invocation_params.dir / LATEST / f"{short_name(adapter)}.json"
    return Settings.of(
        adapter=adapter,
        source=option("source"),
        base=option("base"),
        engine=option("engine"),
        modes=option("modes"),
        checks=option("checks"),
        depth=option("depth"),
        cases=option("case"),
        layouts=option("layout"),
        plan_size=_plan_size(config),
        rank_budget=budget,
        device=option("device"),
        backend=option("backend"),
        dtype=option("dtype"),
        time_limit=option("time_limit"),
        report=_given_path(config, "report") or latest,
        examples=option("examples"),
        seed=str(option("hypothesis_seed", default=None) or 0),
        expect=_given_path(config, "expect"),
        baseline=_given_path(config, "baseline"),
        case_file=_given_path(config, "case_file"),
    )


def _plan_size(config: pytest.Config) -> str:
    """The plan that ``--plan`` names; by default the full plan if a layout, case or id is named."""
    option = config.getoption
    named = any("::" in argument for argument in config.invocation_params.args)
    named = named or any(map(option, ("layout", "case", "case_file")))
    if option("adapter") and option("keyword"):
        named = True
    return str(option("plan") or (PlanSize.FULL if named else PlanSize.QUICK))


def _given_path(config: pytest.Config, name: str) -> Path | None:
    """The path that an option names, relative to the folder in which the user started pytest."""
    path: Path | None = config.getoption(name)
    return None if path is None else config.invocation_params.dir / path
