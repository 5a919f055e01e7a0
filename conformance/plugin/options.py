"""What a user may type after ``pytest``, and the settings that are read from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.findings.errors import ConformanceError
from conformance.findings.report import PlanSize
from conformance.plugin import launching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conformance.runs.settings import Settings

DEFAULT_ADAPTER = "native"

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()

NODE_ID = "test_conformance.py::test_finding["
"""In the node id of every finding, before the finding's own id."""


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--adapter": {
        "metavar": "NAME|MODULE:CLASS",
        "help": "framework to check; runs only its suite",
    },
    "--source": {
        "metavar": "PATH[@REF]|pypi:VERSION",
        "help": "its code: a checkout, any commit, or a release (as installed)",
    },
    "--engine": {"metavar": "NAME", "help": "training engine, where it has several"},
    "--modes": {"metavar": "MODE,…", "help": "modes to run, such as token_mean,constant:64"},
    "--checks": {"metavar": "CHECK,…", "help": "what to look at, such as weights,metric (all)"},
    "--depth": {"default": "step", "metavar": "DEPTH", "help": "reducer, loss or step (default)"},
    "--layout": {
        "action": "append",
        "default": [],
        "metavar": "LAYOUT",
        "help": "run this layout only, such as dp2-cp2-mb2-thd (repeatable)",
    },
    "--plan": {
        "metavar": "quick|full",
        "help": "the fewest findings that tell as much as all, or all (quick; full where a layout,"
        " a case or a finding is named)",
    },
    "--max-ranks": {
        "type": int,
        "metavar": "N",
        "help": "leave out larger layouts (8; under torchrun, as many as it started)",
    },
    "--device": {"default": "cpu", "metavar": "DEVICE", "help": "cpu (default) or cuda"},
    "--backend": {
        "metavar": "BACKEND",
        "help": "gloo or nccl (nccl on cuda with a GPU for every rank, else gloo)",
    },
    "--dtype": {
        "default": "float32",
        "metavar": "DTYPE",
        "help": "of parameters and their gradients: float32 (default) or bfloat16",
    },
    "--time-limit": {
        "type": float,
        "default": 120.0,
        "metavar": "S",
        "help": "seconds per finding (120)",
    },
    "--examples": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "also generate N steps for each mode and layout, and shrink what fails (0)",
    },
    "--case-file": {
        "type": Path,
        "metavar": "FILE",
        "help": "run a step of your own, given as JSON, and nothing else",
    },
    "--baseline": {
        "type": Path,
        "metavar": "REPORT",
        "help": "an earlier report: fail only on what is worse than there, or wrong and not in it",
    },
    "--expect": {
        "type": Path,
        "metavar": "FILE",
        "help": "known faults: fail on all that is wrong in another way, or no longer",
    },
    "--report": {
        "type": Path,
        "metavar": "FILE",
        "help": "where the report goes (reports/latest/ADAPTER.json)",
    },
}
"""Names, and what `argparse` is told of each."""


def declare(group: pytest.OptionGroup) -> None:
    """Declare the options."""
    for name, told in OPTIONS.items():
        group.addoption(name, **told)


def finding_id(nodeid: str) -> str | None:
    """The id of the finding that a test makes; None for other tests."""
    _, found, rest = nodeid.partition(NODE_ID)
    return rest.rpartition("]")[0] if found else None


def settings_of(config: pytest.Config) -> Settings:
    """What this run was asked for, checked the first time.

    Raises:
        pytest.UsageError: what is wrong with it, and the way out.
    """
    if SETTINGS not in config.stash:
        try:
            config.stash[SETTINGS] = _read_options(config)
        except ConformanceError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[SETTINGS]


def _read_options(config: pytest.Config) -> Settings:
    from conformance.runs.registry import short_name
    from conformance.runs.settings import Settings

    option, budget = config.getoption, launching.rank_budget(config)
    adapter = option("adapter") or DEFAULT_ADAPTER
    latest = config.invocation_params.dir / "reports" / "latest" / f"{short_name(adapter)}.json"
    return Settings.of(
        adapter=adapter,
        source=option("source"),
        engine=option("engine"),
        modes=option("modes"),
        checks=option("checks"),
        depth=option("depth"),
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
    """What ``--plan`` says; without it, everything if a layout, a case or a finding is named."""
    option = config.getoption
    named = any("::" in argument for argument in config.invocation_params.args)
    if option("layout") or option("case_file") or (option("adapter") and option("keyword")):
        named = True
    return str(option("plan") or (PlanSize.FULL if named else PlanSize.QUICK))


def _given_path(config: pytest.Config, name: str) -> Path | None:
    """What an option names, seen from where the user is, who may be in another folder."""
    path: Path | None = config.getoption(name)
    return None if path is None else config.invocation_params.dir / path
