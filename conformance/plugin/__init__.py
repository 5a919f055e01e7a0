"""The pytest plugin: options, one test per finding, the report and its summary.

The plugin does nothing in a pytest run that neither names an adapter nor collects the suite.
`controller` shows progress and writes the report, `options` reads the command line, `launching`
starts ranks on this machine or by torchrun, and `loss_conformance` is the fixture for a user's own
trainer.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from conformance.findings.errors import ConformanceError, HarnessFaultError, StartError
from conformance.plugin import launching, options
from conformance.plugin.controller import ATTRIBUTE, NOT_DRIVEN, Controller
from conformance.plugin.loss_conformance import loss_conformance as loss_conformance
from conformance.plugin.loss_conformance import pytest_pyfunc_call as pytest_pyfunc_call
from conformance.plugin.options import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from conformance.comparing.gate import Gate
    from conformance.findings.report import Header
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingMessage

SUITE = Path(__file__).parents[1] / "suite"

CONTROLLER = "conformance-controller"
"""The name of the plugin in the process that writes the report."""

FINDING_MESSAGE: pytest.StashKey[FindingMessage] = pytest.StashKey()

NEXT: pytest.StashKey[pytest.Item | None] = pytest.StashKey()
"""The test that follows in this process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the command line options."""
    options.declare(parser.getgroup("conformance", "conformance of RL losses"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """In torchrun's processes other than rank 0: serve rank 0 instead of running tests."""
    return launching.serve_elsewhere(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """If an adapter is named, check all settings, and run the suite unless tests are named."""
    controller = None if _is_worker(config) else Controller(config)
    if controller is not None:
        config.pluginmanager.register(controller, CONTROLLER)
    if config.getoption("adapter") is None:
        return
    config.pluginmanager.register(launching.EndingSignals())
    launching.connect_workers(config)
    settings_of(config)
    options.announce_changes(config)
    if controller is not None:
        controller.recorder()
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(SUITE if config.getoption("review") is None else SUITE / "review.py")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every cell."""
    if {"cell", "find"} <= set(metafunc.fixturenames):
        cells = settings_of(metafunc.config).plan.cells()
        metafunc.parametrize("cell", cells, ids=[cell.id for cell in cells])


@pytest.fixture(scope="session")
def shared_jobs(request: pytest.FixtureRequest) -> Iterator[SharedJobs]:
    """The jobs of the selected cells, on ranks that start once."""
    from conformance.plan.matrix import LogCell
    from conformance.ranks.pool import RankPool
    from conformance.runs.jobs import SharedJobs

    settings = settings_of(request.config)
    items = request.session.items
    cells = [cell for item in items if (cell := _cell(item)) is not None]
    if not _is_worker(request.config):
        for item, following in pairwise(items):
            item.stash[NEXT] = following
    with (
        RankPool(
            settings.adapter,
            settings.source.path,
            settings.plan.ranks,
            settings.time_limit,
            settings.hardware,
            launching.launcher(request.config),
        ) as pool,
        closing(SharedJobs(pool, cells)) as jobs,
    ):
        try:
            pool.description  # noqa: B018 - starts the ranks
        except StartError as error:
            pytest.exit(f"not driven: {error}", returncode=NOT_DRIVEN)
        except ConformanceError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        if any(isinstance(cell, LogCell) for cell in cells) and not _is_worker(request.config):
            jobs.logs.begin()
        yield jobs
        controller = request.config.pluginmanager.get_plugin(CONTROLLER)
        if controller is not None and request.config.getoption("review") is None:
            controller.experiment(jobs)
            controller.trace(jobs)


@pytest.fixture(scope="session")
def report_header(shared_jobs: SharedJobs, request: pytest.FixtureRequest) -> Header:
    """The header of the report: facts that all findings of this run share."""
    from conformance.runs.recorder import header

    return header(settings_of(request.config), shared_jobs.pool.description)


@pytest.fixture(scope="session")
def headers(report_header: Header) -> Iterator[str]:
    """Yields the report's header for this process's first message, then empty texts."""
    return chain([report_header.model_dump_json()], repeat(""))


@pytest.fixture(scope="session")
def gate(request: pytest.FixtureRequest) -> Gate:
    """The gate, which decides which findings fail."""
    return settings_of(request.config).gate


@pytest.fixture
def find(
    shared_jobs: SharedJobs, headers: Iterator[str], request: pytest.FixtureRequest
) -> Callable[[AnyMatrixCell], Judgement]:
    """Returns a function that judges a cell and keeps its finding for the report."""
    from conformance.runs.check import job_cells, make
    from conformance.runs.recorder import fault_message, message

    def find(cell: AnyMatrixCell) -> Judgement:
        upcoming = map(_cell, _following(request.node))
        shared_jobs.expect(job_cells(upcoming, shared_jobs.description))
        try:
            judgement = make(cell, shared_jobs)
        except HarnessFaultError as fault:
            request.node.stash[FINDING_MESSAGE] = fault_message(fault, next(headers))
            raise
        request.node.stash[FINDING_MESSAGE] = message(
            cell, judgement, next(headers), shared_jobs.pool.drain_framework_seconds()
        )
        return judgement

    return find


@pytest.fixture
def review(
    shared_jobs: SharedJobs, headers: Iterator[str], request: pytest.FixtureRequest
) -> Callable[[], None]:
    """Returns a function that makes the findings of one version in a review."""
    from conformance.plugin.reviewing import Side

    controller = request.config.pluginmanager.get_plugin(CONTROLLER)
    assert isinstance(controller, Controller)
    recorder, path = controller.recorder(), request.config.getoption("review")
    return partial(controller.review, Side(path, recorder, shared_jobs, headers))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Record the next test, also with pytest-xdist, so that the ranks can begin its job early."""
    item.stash[NEXT] = nextitem


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the finding to pytest's report, which pytest-xdist sends to the controller."""
    report = yield
    if report.when == "call" and FINDING_MESSAGE in item.stash:
        setattr(report, ATTRIBUTE, item.stash[FINDING_MESSAGE])
    return report


def _following(item: pytest.Item) -> Iterator[pytest.Item]:
    """Yield the following tests of this process; with pytest-xdist only the next one is known."""
    following = item.stash.get(NEXT, None)
    while following is not None:
        yield following
        following = following.stash.get(NEXT, None)


def _cell(item: pytest.Item) -> AnyMatrixCell | None:
    """The cell of a test that makes a finding; None for tests that use ``cell`` otherwise."""
    if not isinstance(item, pytest.Function) or find.__name__ not in item.fixturenames:
        return None
    return cast("AnyMatrixCell", item.callspec.params["cell"])


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
