"""The process of a run that writes the report and shows progress."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.findings.errors import ConformanceError, HarnessFaultError
from conformance.findings.verdict import UNJUDGED, WRONG, Verdict
from conformance.plugin import launching
from conformance.plugin.options import finding_id, settings_of
from conformance.runs.options import GITHUB_SUMMARY

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from rich.console import Console
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

    from conformance.comparing.gate import Gate
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.plugin.reviewing import Side
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingMessage, FindingRecorder

NOT_DRIVEN = 6
"""Exit status of a run in which nothing is wrong and the adapter could not run some of the
requested findings, or any finding; pytest's own statuses are 0 to 5."""

ATTRIBUTE = "rl_loss_conformance"
"""The attribute of pytest's test reports for our findings; pytest-xdist keeps attributes."""


class Controller:
    """Hooks of the process that writes the report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._recorder: FindingRecorder | None = None
        self._report: Report | None = None
        self._progress: ProgressLine | None = None
        self._problem: str | None = None
        self._unwritten: str | None = None
        self._session: pytest.Session | None = None
        self._objection: str | None = None
        self._start = time.time()
        self._first_finding: float | None = None
        self._unproven = 0
        """The number of causes whose lines were not proven for lack of time."""

    def recorder(self) -> FindingRecorder:
        """The recorder of this run, made when first needed."""
        from conformance.runs.recorder import FindingRecorder

        if self._recorder is None:
            _require_summary()
            _require_traces(self._config.getoption("traces"))
            try:
                self._recorder = FindingRecorder(settings_of(self._config))
            except ConformanceError as error:
                raise pytest.UsageError(str(error)) from error
            self._config.add_cleanup(self._recorder.journal.close)
        return self._recorder

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, through which a run is stopped and which has the exit status."""
        self._session = session

    def trace(self, jobs: SharedJobs) -> None:
        """Trace the causes of a completed run, on the same kind of ranks as its findings."""
        is_asked = self._came_to_its_end and not self._config.getoption("no_trace")
        if self._recorder is not None and is_asked:
            hunks = self._recorder.settings.hunks
            self._trace(self._recorder.causes(), self._recorder, jobs, hunks)

    def _trace(
        self,
        causes: Iterable[Cause],
        recorder: FindingRecorder,
        jobs: SharedJobs,
        hunks: Mapping[str, str],
    ) -> None:
        from conformance.comparing.known import known
        from conformance.tracing.finding import traces_of_causes
        from conformance.tracing.proof import Prover, default_seconds
        from conformance.tracing.undone import Changes

        folder, settings = self._config.getoption("traces"), recorder.settings
        asked = self._config.getoption("proof_time")
        changes = Changes(hunks)
        usual = default_seconds(time.time() - self._start, changes)
        prover = Prover(jobs, seconds=usual if asked is None else asked, changes=changes)
        audited = known(settings.adapter.name, settings.adapter.engine)

        def is_audited(cause: Cause) -> bool:
            return audited is not None and audited.of(cause) is not None

        for name, trace in traces_of_causes(causes, settings, prover, folder, is_audited):
            recorder.traces[name] = trace
        self._unproven += len(prover.given_up)

    def review(self, side: Side) -> None:
        """Make the findings of one version in a review, and trace the causes of worse findings."""
        try:
            side.run()
        except HarnessFaultError as fault:
            self._problem = f"fault of the harness: {fault}"
            return
        except pytest.exit.Exception:  # the run is told to end; its findings count
            raise
        except Exception as error:  # the findings so far give no verdict
            self._problem = f"{type(error).__name__}: {error}"
            raise
        if side.task.follows is not None:
            return
        side.wait_for_base()
        side.name_what_is_carried()
        self._trace(side.new_causes(), side.recorder, side.jobs, side.task.hunks)

    @property
    def _came_to_its_end(self) -> bool:
        session = self._session
        was_stopped = session is None or session.shouldstop or session.shouldfail
        return not (was_stopped or self._problem)

    def _end_for_workers(self) -> None:
        """With pytest-xdist: trace on ranks of this process, as no worker has all findings."""
        if self._recorder is None or not self._came_to_its_end:
            return
        if self._config.pluginmanager.hasplugin("dsession") and self._recorder.causes():
            from conformance.ranks.pool import RankPool
            from conformance.runs.jobs import SharedJobs

            settings = self._recorder.settings
            with RankPool(
                settings.adapter,
                settings.source.path,
                settings.plan.ranks,
                settings.time_limit,
                settings.hardware,
            ) as pool:
                jobs = SharedJobs(pool)
                self.experiment(jobs)
                self.trace(jobs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> LoadFileScheduling | None:
        """With pytest-xdist: make all findings of one job in one worker."""
        spread = ("load", "loadfile") if config.getoption("adapter") else ("loadfile",)
        return job_scheduling(config, log) if config.getoption("dist") in spread else None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without pytest-xdist: count what is about to run."""
        self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """With pytest-xdist: count what is about to run; all workers collect the same tests."""
        self._select(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a finding as soon as it is made."""
        finding_message: FindingMessage | None = getattr(report, ATTRIBUTE, None)
        if finding_message is not None:
            self._first_finding = self._first_finding or report.start
            finding = self._record(finding_message)
            if finding is not None and self._progress is not None:
                self._progress.show(finding)
        elif self._first_finding is None and finding_id(report.nodeid) is None:
            self._start = report.stop  # the report is of a test before the suite

    def experiment(self, jobs: SharedJobs) -> None:
        """Make findings beyond the plan, while the ranks still run.

        First come substitutes for steps that the framework declined, then experiments on the
        conditions of causes.
        """
        from conformance.plugin import experiments
        from conformance.runs.beyond_plan import instead_of_declined

        for finding in instead_of_declined(self.recorder(), jobs):
            if self._progress is not None:
                self._progress.show(finding)
        experiments.run(self.recorder(), jobs)

    def pytest_unconfigure(self) -> None:
        """Dismiss torchrun's other processes, if torchrun started this run."""
        launching.dismiss_workers(self._config, self._session)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, even if the run was stopped."""
        if self._recorder is not None:
            try:
                self._end_for_workers()
                with launching.too_late():
                    self._recorder.finish()
            except ConformanceError as error:
                self._problem = self._unwritten = str(error)
            self._report = self._recorder.journal.made
        if self._problem is not None:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        report = self._report
        if self._recorder is not None and report is not None and report.fault is None:
            self._objection = self._recorder.settings.gate.objection(report)
            session.exitstatus = self._exit_status(report, session.exitstatus)

    def _exit_status(self, report: Report, of_tests: int | pytest.ExitCode) -> int:
        """The exit status: that of the tests, unless the whole report requires another."""
        verdicts = report.summary.verdicts.keys()
        is_judged = bool(verdicts - {*UNJUDGED})
        if Verdict.NOT_DRIVEN in verdicts and (
            of_tests == pytest.ExitCode.OK
            or (of_tests == pytest.ExitCode.TESTS_FAILED and not is_judged)
        ):
            return NOT_DRIVEN
        if of_tests == pytest.ExitCode.OK and (self._objection or self._fails_beyond_tests(report)):
            return pytest.ExitCode.TESTS_FAILED
        return of_tests

    def _fails_beyond_tests(self, report: Report) -> bool:
        """Whether a finding beyond the plan fails, for which there is no test."""
        return next(self.recorder().settings.gate.failing(report), None) is not None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, None, None]:
        """Show causes instead of a message for every wrong finding."""
        failed = terminalreporter.stats.get("failed", [])
        if self._report is not None and self._config.option.tbstyle == "auto":
            others = [report for report in failed if not _is_finding(report)]
            terminalreporter.stats["failed"] = others
        yield
        terminalreporter.stats["failed"] = failed
        self._show(terminalreporter)

    def _show(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the result, the path of the report and the time that the run took."""
        if self._problem is not None:
            terminalreporter.line(f"ERROR: {self._problem}", red=True)
        kept = None if self._recorder is None else self._recorder.journal.kept
        if kept is not None:
            terminalreporter.line(f"an earlier run was killed; what it had found is kept: {kept}")
        if self._report is None or self._recorder is None:
            return
        from conformance.views.report_formats import as_text
        from conformance.views.versions.diff_formats import gate_lines

        terminalreporter.section("conformance")
        for line in as_text(self._report):
            terminalreporter.line(line)
        gate = self._recorder.settings.gate
        for line in gate_lines(gate, self._report):
            terminalreporter.line(line)
        if self._objection is not None:
            terminalreporter.line(f"FAILED: {self._objection}", red=True)
        first = self._first_finding or self._start
        terminalreporter.line(
            f"{first - self._start:.1f} s to start, {time.time() - first:.1f} s to run,"
            f" {self._recorder.framework_seconds:.1f} s of it in the framework's own code"
        )
        if self._unproven:
            terminalreporter.line(
                f"no time was left to prove the lines of {self._unproven} causes:"
                " give more with --proof-time=S"
            )
        if self._unwritten is None:
            terminalreporter.line(f"report: {self._recorder.settings.report}")
        if os.environ.get(GITHUB_SUMMARY):
            self._tell_github(terminalreporter, self._report, gate)

    def _tell_github(
        self, terminalreporter: pytest.TerminalReporter, report: Report, gate: Gate
    ) -> None:
        from conformance.views import report_formats
        from conformance.views.versions.diff_formats import gate_lines

        objections = [] if self._objection is None else [self._objection]
        lines = [*gate_lines(gate, report), *objections]
        for line in report_formats.error_commands(report, [*gate.failing(report)], objections):
            terminalreporter.line(line)
        try:
            report_formats.add_summary(report, lines, Path(os.environ[GITHUB_SUMMARY]))
        except OSError as error:
            words = f"ERROR: no summary can be appended to {error.filename}: {error.strerror}"
            terminalreporter.line(words, red=True)

    def _record(self, finding_message: FindingMessage) -> Finding | None:
        """Keep a finding; a fault of the harness ends the run, as no verdict is reliable then."""
        try:
            return self.recorder().record(finding_message)
        except HarnessFaultError as fault:
            self._problem = self._problem or f"fault of the harness: {fault}"
            # pytest-xdist has its own loop, which only its plugin can stop.
            for loop in (self._session, self._config.pluginmanager.get_plugin("dsession")):
                if loop is not None:
                    loop.shouldstop = self._problem
            return None

    def _select(self, ids: Sequence[str]) -> None:
        findings = {finding for nodeid in ids if (finding := finding_id(nodeid)) is not None}
        if findings and not self.recorder().selected:
            settings = settings_of(self._config)
            chosen = [cell for cell in settings.plan.cells() if cell.id in findings]
            if (refusal := settings.gate.refusal(chosen)) is not None:
                raise pytest.UsageError(refusal)
            self.recorder().selected = len(findings)
            self._progress = progress_line(self._config, len(findings))


class ProgressLine:
    """The progress of a run, in one line of the terminal that rich writes over and over.

    It counts findings, and is a plugin so that it can replace pytest's dots.
    """

    def __init__(self, console: Console, total: int) -> None:
        from rich.progress import Progress, TextColumn, TimeRemainingColumn

        self._wrong: Counter[Verdict] = Counter()
        self._line = Progress(
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.completed} of {task.total}{task.description}"),
            TimeRemainingColumn(),
            TextColumn("left; {task.fields[layout]}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,  # pytest captures both streams itself
            redirect_stderr=False,
            speed_estimate_period=math.inf,  # the speed of slow findings counts too
        )
        self._task = self._line.add_task("", total=total, layout="")

    def show(self, finding: Finding) -> None:
        """Count a finding."""
        from conformance.views.formatting import SYMBOLS

        self._wrong[finding.verdict] += finding.verdict in WRONG
        wrong = "".join(f", {self._wrong[v]} {SYMBOLS[v]}" for v in WRONG if self._wrong[v])
        layout = str(finding.layout)
        [task] = self._line.tasks
        self._line.start()
        self._line.update(
            self._task,
            advance=1,
            total=max(task.total or 0, task.completed + 1),  # some findings are beyond the plan
            description=wrong,
            layout=layout,
            refresh=True,
        )

    def pytest_sessionfinish(self) -> None:
        """Stop updating the line before pytest prints more."""
        self._line.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Suppress pytest's letter for a finding."""
        if not hasattr(report, ATTRIBUTE):
            return None
        return "xfailed" if hasattr(report, "wasxfail") else report.outcome, "", ""


def progress_line(config: pytest.Config, total: int) -> ProgressLine | None:
    """The progress line, if there is a terminal and pytest's verbosity is the default."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(terminal, pytest.TerminalReporter) or not terminal.isatty:
        return None
    if config.get_verbosity():
        return None
    from rich.console import Console

    line = ProgressLine(Console(file=terminal._tw._file), total)
    config.pluginmanager.register(line, "conformance-progress")
    return line


def job_scheduling(config: pytest.Config, log: Producer | None) -> LoadFileScheduling:
    """A pytest-xdist scheduler that gives one worker all findings of a job, which thus runs once.

    Other files of tests stay whole. The base class is imported only in runs with pytest-xdist.
    """
    from xdist.scheduler import LoadFileScheduling

    class JobScheduling(LoadFileScheduling):  # type: ignore[misc]
        @cached_property
        def _jobs(self) -> dict[str, str]:
            """The job of each finding by node id, computed only in runs of the suite."""
            return {cell.id: cell.job_id for cell in settings_of(config).plan.cells()}

        def _split_scope(self, nodeid: str) -> str:
            """The name of the group of tests that one worker runs."""
            finding = finding_id(nodeid)
            if finding is None:
                return str(super()._split_scope(nodeid))
            return self._jobs.get(finding, finding)

    return JobScheduling(config, log)


def _is_finding(report: pytest.TestReport) -> bool:
    """Whether the report of a test contains a finding."""
    message: FindingMessage | None = getattr(report, ATTRIBUTE, None)
    return message is not None and bool(message["finding"])


def _require_traces(folder: Path | None) -> None:
    """Require the folder for traces to be writable, since the run writes it only at its end.

    Raises:
        pytest.UsageError: the folder cannot be written.
    """
    from conformance.findings.files import require_room

    try:
        if folder is not None:
            require_room(folder)
    except OSError as error:
        words = f"no traces can be written to {folder}: {error.strerror}"
        raise pytest.UsageError(f"{words}; give another folder with --traces=FOLDER") from error


def _require_summary() -> None:
    """Require GitHub's summary to be writable, since the run appends to it only at its end.

    Raises:
        pytest.UsageError: the summary cannot be written.
    """
    from conformance.comparing.report_file import require_regular

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
