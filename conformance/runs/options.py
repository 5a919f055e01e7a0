"""The options of a run, in one spelling for pytest and for the commands that start runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "adapter": {
        "metavar": "NAME|MODULE:CLASS",
        "help": "framework to check; runs only its suite",
    },
    "source": {
        "metavar": "PATH[@REF]|pypi:VERSION",
        "help": "its code: a checkout, any commit, or a release (as installed)",
    },
    "engine": {"metavar": "NAME", "help": "training engine, where it has several"},
    "modes": {"metavar": "MODE,…", "help": "modes to run, such as token_mean,constant:64"},
    "checks": {"metavar": "CHECK,…", "help": "what to look at, such as weights,metric (all)"},
    "depth": {"default": "step", "metavar": "DEPTH", "help": "reducer, loss or step (default)"},
    "layout": {
        "action": "append",
        "default": [],
        "metavar": "LAYOUT",
        "help": "run this layout only, such as dp2-cp2-mb2-thd (repeatable)",
    },
    "plan": {
        "metavar": "quick|full",
        "help": "a subset that detects the same mistakes, or all findings (quick; full if a layout,"
        " a case or a finding is named)",
    },
    "max-ranks": {
        "type": int,
        "metavar": "N",
        "help": "leave out larger layouts (8; under torchrun, as many as it started)",
    },
    "device": {"default": "cpu", "metavar": "DEVICE", "help": "cpu (default) or cuda"},
    "backend": {
        "metavar": "BACKEND",
        "help": "gloo or nccl (nccl on cuda with a GPU for every rank, else gloo)",
    },
    "dtype": {
        "default": "float32",
        "metavar": "DTYPE",
        "help": "of parameters and their gradients: float32 (default) or bfloat16",
    },
    "time-limit": {
        "type": float,
        "default": 120.0,
        "metavar": "S",
        "help": "seconds per finding (120)",
    },
    "examples": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "also generate N steps for each mode and layout, and shrink what fails (0)",
    },
    "case-file": {
        "type": Path,
        "metavar": "FILE",
        "help": "run a step of your own, given as JSON, and nothing else",
    },
    "baseline": {
        "type": Path,
        "metavar": "REPORT",
        "help": "an earlier report: fail only on what is worse than there, or wrong and not in it",
    },
    "expect": {
        "type": Path,
        "metavar": "FILE",
        "help": "known faults: fail on all that is wrong in another way, or no longer",
    },
    "report": {
        "type": Path,
        "metavar": "FILE",
        "help": "where the report goes (reports/latest/ADAPTER.json)",
    },
}
"""By name, what `argparse` is told of each; commands that have an option take it from here."""
