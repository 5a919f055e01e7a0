"""The options of a run, in one spelling for pytest and for the commands that start runs.

`command` returns the options that reproduce a finding.
"""

from __future__ import annotations

import shlex
from argparse import SUPPRESS
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract import Depth
from conformance.findings.finding import GENERATED
from conformance.findings.verdict import Check
from conformance.ranks.hardware import MAX_RANKS, ON_CPU
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from conformance.findings.finding import Finding
    from conformance.findings.report import Header, Provenance


def _option(metavar: str, words: str, **others: Any) -> Mapping[str, Any]:
    """The arguments of ``add_argument``."""
    return {"metavar": metavar, "help": words, **others}


_ALONE = {"action": "append", "default": []}
"""The arguments of an option that may be repeated."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "adapter": _option("NAME|MODULE:CLASS", "framework to check; runs only its suite"),
    "source": _option(
        "PATH[@REF]|pypi:VERSION", "its code: a checkout, any commit, or a release (as installed)"
    ),
    "base": _option(
        "REF", "the version that --source changes; lines are proven by undoing its changes"
    ),
    "engine": _option("NAME", "training engine, where it has several"),
    "modes": _option("MODE,…", "modes to run, such as token_mean,constant:64"),
    "checks": _option("CHECK,…", "checks to make, such as weights,metric (all)"),
    "depth": _option("DEPTH", "reducer, loss or step (default)", default="step"),
    "layout": _option(
        "LAYOUT", "run this layout only, such as dp2-cp2-mb2-thd (repeatable)", **_ALONE
    ),
    "case": _option("NAME", "run this case only, such as split_groups (repeatable)", **_ALONE),
    "plan": _option(
        "quick|full",
        "a subset that detects the same mistakes, or all findings (quick; full if a layout, a case"
        " or a finding is named)",
    ),
    "max-ranks": _option(
        "N", "leave out larger layouts (8; under torchrun, as many as it started)", type=int
    ),
    "device": _option("DEVICE", "cpu (default) or cuda", default="cpu"),
    "backend": _option(
        "BACKEND", "gloo or nccl (nccl on cuda with a GPU for every rank, else gloo)"
    ),
    "dtype": _option(
        "DTYPE",
        "dtype of parameters and gradients: float32 (default) or bfloat16",
        default="float32",
    ),
    "time-limit": _option(
        "S",
        "seconds per job (120); a job whose ranks only wait for each other ends earlier",
        type=float,
        default=120.0,
    ),
    "examples": _option(
        "N",
        "also generate N steps for each mode and layout, and shrink what fails (0)",
        type=int,
        default=0,
    ),
    "case-file": _option(
        "FILE", "run a step of your own, given as JSON, and nothing else", type=Path
    ),
    "no-trace": {
        "action": "store_true",
        "help": "do not search for the lines behind wrong gradients (saves a job for each cause)",
    },
    "proof-time": _option(
        "S",
        "seconds at the end of a run to prove lines, by running findings again"
        " (a fifth of the run's own, at least 20; three times that with --base)",
        type=float,
    ),
    "traces": _option(
        "FOLDER", "folder for the recordings of traced causes, which `trace FILE` reads", type=Path
    ),
    "baseline": _option(
        "REPORT",
        "an earlier report: fail only on findings that are worse, or wrong and not in it",
        type=Path,
    ),
    "expect": _option(
        "FILE|known",
        "a file of known faults, or those of the newest versions: fail on all others",
        type=Path,
    ),
    "review": {"type": Path, "help": SUPPRESS},
    "report": _option("FILE", "where the report goes (reports/latest/ADAPTER.json)", type=Path),
}
"""For each option, the arguments of ``add_argument``; every command with the option uses them."""

GITHUB_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable with the file that GitHub Actions shows as a job's summary."""

PLACEHOLDERS = {
    "CLONE": "a clone of the framework's repository",
    "CHECKOUT": "a checkout of the framework",
    "FILE": "the step that the user gave",
}
"""Placeholders in commands for paths, since reports do not contain paths."""


def command(header: Header, finding: Finding) -> str:
    """The shell command that reproduces a finding; it may contain `PLACEHOLDERS`."""
    return shlex.join(["pytest", *_options(header, finding)])


def _options(header: Header, finding: Finding) -> Iterator[str]:
    yield f"--adapter={header.adapter_class or header.adapter}"
    yield f"--engine={header.engine}"
    yield from _source(header.source)
    if finding.mode is Mode.CONSTANT and header.request.divisor is not None:
        yield f"--modes={Mode.CONSTANT}:{header.request.divisor!r}"
    if header.environment.device != ON_CPU.device:
        yield f"--device={header.environment.device}"
        yield f"--backend={header.environment.backend}"
    if header.environment.dtype != ON_CPU.dtype:
        yield f"--dtype={header.environment.dtype}"
    if finding.depth is not Depth.STEP:
        yield f"--depth={finding.depth}"
    yield f"--layout={finding.layout}"
    if finding.layout.world_size > MAX_RANKS:
        yield f"--max-ranks={finding.layout.world_size}"
    if finding.case == GENERATED and finding.check is Check.WEIGHTS:
        yield f"--examples={header.request.examples}"
        yield f"--hypothesis-seed={header.request.seed}"
    if header.request.case is not None:
        yield "--case-file=FILE"
    yield "-k"
    yield f"[{finding.id}]"


def _source(source: Provenance) -> Iterator[str]:
    if source.kind == "git":
        yield f"--source=CLONE@{source.revision}"
    elif source.kind == "pypi":
        yield f"--source=pypi:{source.version}"
    elif source.kind == "checkout":
        yield "--source=CHECKOUT"
