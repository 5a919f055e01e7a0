"""The pytest plugin: options, one test per finding, the report and its summary.

It does nothing in a pytest run that neither names an adapter nor collects the suite.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.findings.errors import ConformanceError, HarnessFaultError
from conformance.plugin import launching, signals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from conformance.comparing.gate import Gate
    from conformance.findings.finding import Finding
    from conformance.findings.report import Header, Report
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.plugin.progress import ProgressLine
    from conformance.ranks.pool import RankPool
    from conformance.runs.recorder import FindingMessage, Recorder
    from conformance.runs.settings import Settings

SUITE = Path(__file__).parents[1] / "suite"

FINDING = "test_conformance.py::test_finding["
"""In the node id of every finding."""

DEFAULT_ADAPTER = "native"

GITHUB_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable: the file that GitHub Actions shows of a job's step."""

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
FINDING_MESSAGE: pytest.StashKey[FindingMessage] = pytest.StashKey()

ATTRIBUTE = "rl_loss_conformance"
"""Of pytest's own reports of tests, which pytest-xdist passes on as they are."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what a user may type."""
    group = parser.getgroup("conformance", "conformance of RL losses")
    group.addoption("--adapter", metavar="NAME", help="framework to check; runs only its suite")
    group.addoption(
        "--source",
        metavar="PATH[@REF]|pypi:VERSION",
        help="its code: a checkout, any commit, or a release (as installed)",
    )
    group.addoption("--engine", metavar="NAME", help="training engine, where it has several")
    group.addoption(
        "--modes", metavar="MODE,…", help="modes to run, such as token_mean,constant:64"
    )
    group.addoption(
        "--checks", metavar="CHECK,…", help="what to look at, such as weights,metric (all)"
    )
    group.addoption(
        "--depth", default="step", metavar="DEPTH", help="reducer, loss or step (default)"
    )
    group.addoption(
        "--layout",
        action="append",
        default=[],
        metavar="LAYOUT",
        help="run this layout only, such as dp2-cp2-mb2-thd (repeatable)",
    )
    group.addoption(
        "--max-ranks",
        type=int,
        metavar="N",
        help="leave out larger layouts (8; under torchrun, as many as it started)",
    )
    group.addoption("--device", default="cpu", metavar="DEVICE", help="cpu (default) or cuda")
    group.addoption(
        "--backend",
        metavar="BACKEND",
        help="gloo or nccl (nccl on cuda with a GPU for every rank, else gloo)",
    )
    group.addoption(
        "--dtype",
        default="float32",
        metavar="DTYPE",
        help="of parameters and their gradients: float32 (default) or bfloat16",
    )
    group.addoption(
        "--time-limit", type=float, default=120.0, metavar="S", help="seconds per finding (120)"
    )
    group.addoption(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="also generate N steps for each mode and layout, and shrink what fails (0)",
    )
    group.addoption(
        "--case-file",
        type=Path,
        metavar="FILE",
        help="run a step of your own, given as JSON, and nothing else",
    )
    group.addoption(
        "--baseline",
        type=Path,
        metavar="REPORT",
        help="an earlier report: fail only on what is worse than there, or wrong and not in it",
    )
    group.addoption(
        "--expect",
        type=Path,
        metavar="FILE",
        help="known faults: fail on all that is wrong in another way, or no longer",
    )
    group.addoption(
        "--report",
        type=Path,
        metavar="FILE",
        help="where the report goes (reports/latest/ADAPTER.json)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """In a process that torchrun started for another rank than 0: serve that one, and no more."""
    return launching.serve_elsewhere(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With an adapter named, check everything at once and run the suite unless told otherwise."""
    controller = None if _is_worker(config) else _Controller(config)
    if controller is not None:
        config.pluginmanager.register(controller, "conformance-controller")
    if config.getoption("adapter") is None:
        return
    signals.end_on_sigterm()
    launching.connect_workers(config)
    _settings(config)
    if controller is not None:
        controller.recorder()
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(SUITE)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn every cell into a test of its own."""
    if {"cell", "find"} <= set(metafunc.fixturenames):
        cells = _settings(metafunc.config).cells()
        metafunc.parametrize("cell", cells, ids=[cell.id for cell in cells])


@pytest.fixture(scope="session")
def rank_pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """The ranks, started once."""
    from conformance.ranks.pool import RankPool

    settings = _settings(request.config)
    with RankPool(
        settings.adapter,
        settings.source.path,
        settings.ranks,
        settings.time_limit,
        settings.hardware,
        launching.launcher(request.config),
    ) as pool:
        try:
            pool.description  # noqa: B018 - starts the ranks
        except ConformanceError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        yield pool


@pytest.fixture(scope="session")
def report_header(rank_pool: RankPool, request: pytest.FixtureRequest) -> Header:
    """What every finding of this run has in common."""
    from conformance.runs.recorder import header

    return header(_settings(request.config), rank_pool.description)


@pytest.fixture(scope="session")
def gate(request: pytest.FixtureRequest) -> Gate:
    """What makes a finding fail."""
    return _settings(request.config).gate


@pytest.fixture
def find(
    rank_pool: RankPool, report_header: Header, request: pytest.FixtureRequest
) -> Callable[[AnyMatrixCell], Finding]:
    """Makes the finding of a cell and keeps it for the report."""
    from conformance.runs.recorder import pack, pack_fault

    def find(cell: AnyMatrixCell) -> Finding:
        try:
            finding, request.node.stash[FINDING_MESSAGE] = pack(cell, rank_pool, report_header)
        except HarnessFaultError as fault:
            request.node.stash[FINDING_MESSAGE] = pack_fault(fault, report_header)
            raise
        return finding

    return find


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hang the finding on pytest's own report, which pytest-xdist carries to the controller."""
    report = yield
    if report.when == "call" and FINDING_MESSAGE in item.stash:
        setattr(report, ATTRIBUTE, item.stash[FINDING_MESSAGE])
    return report


class _Controller:
    """Hooks of the one process that writes the report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._recorder: Recorder | None = None
        self._report: Report | None = None
        self._progress: ProgressLine | None = None
        self._problem: str | None = None
        self._session: pytest.Session | None = None
        self._objection: str | None = None
        self._start = time.time()
        self._first_finding: float | None = None

    def recorder(self) -> Recorder:
        """The recorder of this run, made when first needed."""
        from conformance.runs.recorder import Recorder

        if self._recorder is None:
            _require_summary()
            try:
                self._recorder = Recorder(_settings(self._config))
            except ConformanceError as error:
                raise pytest.UsageError(str(error)) from error
            self._config.add_cleanup(self._recorder.close)
        return self._recorder

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep what a run is stopped by."""
        self._session = session

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without pytest-xdist: count what is about to run."""
        self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """With pytest-xdist, whose workers all collect the same: likewise."""
        self._select(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a finding as soon as it is made."""
        finding_message: FindingMessage | None = getattr(report, ATTRIBUTE, None)
        if finding_message is not None:
            self._first_finding = self._first_finding or report.start
            finding = self._record(finding_message)
            if finding is not None and self._progress is not None:
                self._progress.show(finding)
        elif self._first_finding is None and FINDING not in report.nodeid:
            self._start = report.stop  # another test, which ran before the suite began

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, also of a run that was stopped."""
        if self._recorder is not None:
            try:
                with signals.too_late():
                    self._report = self._recorder.finish()
            except ConformanceError as error:
                self._problem = str(error)
        if self._problem is not None:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if self._recorder is not None and self._report is not None:
            self._objection = self._recorder.settings.gate.objection(self._report)
            if self._objection is not None and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was found, where it was written and what it cost."""
        if self._problem is not None:
            terminalreporter.line(f"ERROR: {self._problem}", red=True)
        if self._report is None or self._recorder is None:
            return
        from conformance.views.diff_formats import gate_lines
        from conformance.views.summary import summary_lines

        terminalreporter.section("conformance")
        for line in summary_lines(self._report):
            terminalreporter.line(line)
        gate = self._recorder.settings.gate
        for line in gate_lines(gate, self._report):
            terminalreporter.line(line)
        if self._objection is not None:
            terminalreporter.line(f"FAILED: {self._objection}", red=True)
        first = self._first_finding or self._start
        terminalreporter.line(
            f"{first - self._start:.1f} s to start, {time.time() - first:.1f} s to run, of which"
            f" {self._recorder.framework_seconds:.1f} s in the framework's own code"
        )
        terminalreporter.line(f"report: {self._recorder.settings.report}")
        if os.environ.get(GITHUB_SUMMARY):
            self._tell_github(terminalreporter, self._report, gate)

    def _tell_github(
        self, terminalreporter: pytest.TerminalReporter, report: Report, gate: Gate
    ) -> None:
        from conformance.views import github
        from conformance.views.diff_formats import gate_lines

        objections = [] if self._objection is None else [self._objection]
        lines = [*gate_lines(gate, report), *objections]
        github.add_summary(report, lines, Path(os.environ[GITHUB_SUMMARY]))
        for line in github.error_commands([*gate.failing(report)], objections):
            terminalreporter.line(line)

    def _record(self, finding_message: FindingMessage) -> Finding | None:
        """Keep a finding; a fault of the harness ends the run, as it may spoil any verdict."""
        try:
            return self.recorder().record(finding_message)
        except HarnessFaultError as fault:
            self._problem = self._problem or f"fault of the harness: {fault}"
            # pytest-xdist runs a loop of its own, which looks at its plugin alone.
            for loop in (self._session, self._config.pluginmanager.get_plugin("dsession")):
                if loop is not None:
                    loop.shouldstop = self._problem
            return None

    def _select(self, ids: Sequence[str]) -> None:
        named = (nodeid.partition(FINDING) for nodeid in ids)
        findings = {rest.rpartition("]")[0] for _, found, rest in named if found}
        if findings and not self.recorder().selected:
            from conformance.plugin.progress import progress_line

            settings = _settings(self._config)
            chosen = [cell for cell in settings.cells() if cell.id in findings]
            if (refusal := settings.gate.refusal(chosen)) is not None:
                raise pytest.UsageError(refusal)
            self.recorder().selected = len(findings)
            self._progress = progress_line(self._config, len(findings), ATTRIBUTE)


def _require_summary() -> None:
    """See to it that GitHub's summary can be appended, which is done when all else is.

    Raises:
        pytest.UsageError: it cannot.
    """
    from conformance.comparing.writable import require_regular

    if not os.environ.get(GITHUB_SUMMARY):
        return
    path = Path(os.environ[GITHUB_SUMMARY])
    try:
        require_regular(path)
        path.open("ab").close()
    except OSError as error:
        raise pytest.UsageError(
            f"no summary can be appended to {path}: {error.strerror}; unset {GITHUB_SUMMARY}, or"
            " name another file in it"
        ) from error


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _settings(config: pytest.Config) -> Settings:
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
    from conformance.runs.settings import Settings

    option = config.getoption
    adapter = option("adapter") or DEFAULT_ADAPTER
    latest = config.invocation_params.dir / "reports" / "latest" / f"{adapter}.json"
    return Settings.of(
        adapter=adapter,
        source=option("source"),
        engine=option("engine"),
        modes=option("modes"),
        checks=option("checks"),
        depth=option("depth"),
        layouts=option("layout"),
        rank_budget=launching.rank_budget(config),
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


def _given_path(config: pytest.Config, name: str) -> Path | None:
    """What an option names, seen from where the user is, who may be in another folder."""
    path: Path | None = config.getoption(name)
    return None if path is None else config.invocation_params.dir / path
