"""Runs pytest as a user does, in its own process and folder, with broken adapters installed.

A cold start takes five seconds of a core, so `run` forks pytest and its ranks from a process that
has already loaded torch, Megatron and other imports of frameworks. `start` starts a new pytest
process, for tests about processes.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from adapters.contract import Adapter
from conformance.comparing.report_file import load
from conformance.findings.report import Report
from tests import broken, broken_rarely, broken_skyrl, faulty
from tests.drifting import adapter as drifting

ROOT = Path(__file__).parents[1]

SOURCES = "RL_LOSS_CONFORMANCE_SOURCES"
"""Environment variable that names a folder with clones of frameworks that are not on PyPI, such
as ``SkyRL``."""

TIME_LIMIT = 600

WITHOUT = ("-p", "no:cacheprovider", "-p", "no:logging")
"""Options that disable plugins in runs; the logging plugin visits all of torch's loggers in each
test."""

PLUGINS_OF_FRAMEWORKS = ("anyio", "hydra_pytest", "jaxtyping")
"""Plugins of packages that frameworks depend on; importing them takes a third of a cold start."""

LOADED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"
"""A filter of warnings about plugins that a forked process already has in memory."""


def _adapters(*modules: object) -> dict[str, str]:
    """The adapters of test modules, by the names under which they are installed."""
    return {
        name.lower(): f"{module.__name__}:{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Adapter)
        and value.__module__ == module.__name__
    }


BROKEN = _adapters(broken, broken_rarely, broken_skyrl, drifting, faulty)


@dataclass(frozen=True)
class Result:
    """The output and the report of a finished run."""

    status: int
    output: str
    report_path: Path

    @property
    def report(self) -> Report:
        """The report; if there is none, the assertion shows the output of the run."""
        assert self.report_path.exists(), self.output
        return load(self.report_path)

    @property
    def findings(self) -> bytes:
        """The findings as bytes, to compare runs."""
        return self.report_path.read_bytes().partition(b'"findings":')[2]


def run(folder: Path, adapter: str, *arguments: str) -> Result:
    """Run ``pytest --adapter=ADAPTER …`` to its end, in a forked process, with forked ranks.

    With pytest-xdist a new process is started, as execnet's workers do not survive a fork.
    """
    chosen = (f"--adapter={adapter}", *arguments)
    if "-n" in arguments:
        return finish(start(folder, *chosen), folder, adapter)
    install_broken_adapters(folder / "site")
    with tempfile.NamedTemporaryFile() as output:
        status = fork(_pytest, folder, chosen, _environment(folder), output.name)
        return _result(status, output.read().decode(errors="replace"), folder, adapter)


def fork(function: Callable[..., None], *arguments: object) -> int:
    """Call a function in a process forked from a warm one; its ranks are forked there, too.

    Returns the exit status of the process.

    Raises:
        TimeoutError: it does not end.
    """
    context = warm_context()
    server = forkserver._forkserver._forkserver_address
    process = context.Process(target=_with_shared_ranks, args=(server, function, *arguments))
    process.start()
    process.join(TIME_LIMIT)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{function.__name__}{arguments} does not end")
    return process.exitcode


class Forked:
    """A forked process with the methods of `Popen` that callers use."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.terminate = process.terminate
        self.kill = process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("pytest", timeout or 0.0)
        return self._process.exitcode


def forked(folder: Path, output: str, *arguments: str) -> Forked:
    """Start pytest in a process forked from a warm one."""
    install_broken_adapters(folder / "site")
    context = warm_context()
    server = forkserver._forkserver._forkserver_address
    given = (server, _pytest, folder, arguments, _environment(folder), output)
    process = context.Process(target=_with_shared_ranks, args=given)
    process.start()
    return Forked(process)


def warm_context() -> ForkServerContext:
    """A context whose new processes already have torch and frameworks' imports in memory."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm"])
    forkserver.ensure_running()
    return context


def _with_shared_ranks(server: str, function: Callable[..., None], *arguments: object) -> None:
    """Call a function in which ranks use the running tests' fork server instead of a new one."""
    forkserver._forkserver._forkserver_address = server
    forkserver._forkserver.ensure_running = forkserver.ensure_running = lambda: None
    function(*arguments)


def _pytest(
    folder: Path, arguments: Sequence[str], environment: dict[str, str], output: str
) -> None:
    """Run pytest as if this process had just been started for it."""
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the environment names another folder
    sys.path.insert(0, str(folder / "site"))
    sys.exit(pytest.main([*WITHOUT, "-W", LOADED_BEFORE, *arguments]))


def start(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), torchrun: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start ``pytest`` in a folder where every adapter of `BROKEN` is installed.

    ``prefix`` is a program that starts pytest, such as ``prlimit``; if ``torchrun`` has options,
    torchrun starts pytest with these.
    """
    launcher = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
    program = [*prefix, sys.executable, *launcher, "-m", "pytest", "-p", "no:cacheprovider"]
    install_broken_adapters(folder / "site")
    return subprocess.Popen(
        [*program, *arguments],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore SIGINT, and so do all processes that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str], folder: Path, adapter: str) -> Result:
    """Wait for a run to end."""
    output, _ = process.communicate(timeout=TIME_LIMIT)
    return _result(process.returncode, output, folder, adapter)


def torchrun(folder: Path, adapter: str, *arguments: str, options: Sequence[str]) -> Result:
    """Run ``torchrun OPTIONS -m pytest --adapter=ADAPTER …`` to its end."""
    process = start(folder, f"--adapter={adapter}", *arguments, torchrun=options)
    return finish(process, folder, adapter)


def interrupt(process: subprocess.Popen[str], sign: signal.Signals) -> None:
    """Signal all of a run's processes, as a terminal does on Ctrl-C."""
    os.killpg(process.pid, sign)


def install_broken_adapters(site: Path) -> None:
    """Declare the adapters of `BROKEN` by entry points, as an installed distribution would."""
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name} = {place}\n" for name, place in BROKEN.items())
    (info / "entry_points.txt").write_text(f"[rl_loss_conformance.adapters]\n{lines}")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment, without variables that pytest and its plugins set."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "_RL_LOSS"))}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT), *given]),
        "PYTEST_ADDOPTS": " ".join(f"-p no:{plugin}" for plugin in PLUGINS_OF_FRAMEWORKS),
    }


def _result(status: int, output: str, folder: Path, adapter: str) -> Result:
    return Result(status, output, folder / "reports" / "latest" / f"{adapter}.json")


def findings_in(journal: Path) -> int:
    """The number of complete findings in a journal; 0 if there is no journal."""
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    return sum(line.startswith(b'{"id":') for line in lines)
