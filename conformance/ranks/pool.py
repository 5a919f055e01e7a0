"""The controlling process's side of the pool of ranks.

Processes are started once per session and serve worlds of every size up to the pool's by joining
another `torch.distributed` world. After a failure all processes are killed and started anew.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from conformance.findings.errors import StartError
from conformance.findings.sanitize import sanitize
from conformance.findings.verdict import Verdict, driven_instead
from conformance.ranks.changed import Place
from conformance.ranks.hardware import ON_CPU, Device
from conformance.ranks.messages import (
    Answered,
    Declined,
    Observed,
    Raised,
    Ready,
    Reply,
    WorkerSpec,
    World,
)
from conformance.ranks.processes import LocalLauncher
from conformance.ranks.recording.stacks import UNKNOWN, Waiting, told, waiting
from conformance.ranks.time_limits import Patience, patience_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from adapters.contract import Adapter, Description, Job, Observation
    from adapters.contract.objective import Objective
    from conformance.findings.trace import RankTrace
    from conformance.ranks.hardware import Hardware
    from conformance.ranks.processes import Running

START_LIMIT = 300.0
"""Seconds for importing a framework; on a cold disk SkyRL was seen to take 40."""

GRACE = 3.0
"""Seconds for the remaining ranks to answer once a rank has failed; usually they are blocked."""

GRACE_TO_DECLINE = 10.0
"""Seconds for the remaining ranks once a rank has declined; most decline too when they get a core.
"""

WORDS_OF_A_WAITING_RANK = ("Timed out waiting", "Connection closed by peer", "Connection reset")
"""Words in gloo's errors on a rank whose partner in a collective failed or never joined."""

WORDS_OF_A_MISMATCH = "collective mismatch"
"""Words in gloo's errors if ranks call different collectives."""


@dataclass(frozen=True)
class Ran:
    """Every rank of the layout ran the job."""

    observations: tuple[Observation, ...]
    traces: tuple[RankTrace, ...] = ()
    """The operations of each rank, if the job is recorded."""

    held: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """The original entries on each rank at each call of a replaced operation."""


@dataclass(frozen=True)
class Crashed:
    """A rank raised, died or hung.

    The first line of the ``message`` says how, and ``verdict`` who is to blame: crashed, refused or
    not driven. ``place`` is the innermost line of the framework, if it is known.
    """

    message: str
    verdict: Verdict = Verdict.CRASHED
    place: str | None = None


class _Blame(IntEnum):
    """Likelihoods, in rising order, that a rank without a usable answer made other ranks fail."""

    WAITED = 1
    """The rank hangs, or its wait for another rank timed out."""

    AT_WORK = 2
    """The rank needs more time than the user allows, so the ranks that wait for it are excused."""

    MISMATCHED = 3
    """The rank called another collective, or one of another size, than other ranks."""

    FAILED = 4

    NOT_DRIVEN = 5
    """The adapter lacks something, which excuses all failures of other ranks."""


WHAT_HAPPENED = {
    _Blame.WAITED: "hang",
    _Blame.AT_WORK: "not done within --time-limit",
    _Blame.MISMATCHED: "mismatched collectives",
}


@dataclass(frozen=True)
class _Failure:
    """A rank without a usable answer."""

    blame: _Blame
    outcome: Crashed
    waiting: Waiting = UNKNOWN


@dataclass(frozen=True)
class _Answer:
    """The outcome of one rank."""

    rank: int
    reply: Reply | Ready | _Failure
    framework_seconds: float = 0.0
    ran: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class _Begun:
    """A job that was sent to the ranks; ``dead`` are ranks that it could not be sent to."""

    job: Job
    connections: list[Connection]
    patience: Patience
    dead: list[_Answer]


class RankPool(AbstractContextManager["RankPool"]):
    """Processes that run jobs through one adapter and source.

    ``size`` is the size of the largest world, ``time_limit`` the most seconds that a job may take;
    without a ``launcher`` all ranks are on this machine.
    """

    def __init__(
        self,
        adapter: Adapter,
        source: Path | None,
        size: int,
        time_limit: float = 120.0,
        hardware: Hardware = ON_CPU,
        launcher: LocalLauncher | None = None,
    ) -> None:
        self.adapter = adapter
        self.source = source
        self._size = size
        self._time_limit = time_limit
        self._hung: set[Objective] = set()
        self.hardware = hardware
        self._launcher = launcher or LocalLauncher()
        self._world: object = None
        self._begun: _Begun | None = None
        self._ranks: list[Running] = []
        self._pids: list[int] = []
        self._framework_seconds = 0.0
        self.ran: dict[Job, frozenset[Place]] = {}
        """The changed statements that each job has run, in a review."""

        self._description: Description | None = None

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._launcher.close()

    @property
    def description(self) -> Description:
        """The detected capabilities of the framework.

        Raises:
            StartError: the framework cannot be imported.
        """
        self._start()
        assert self._description is not None
        return self._description

    def pids(self) -> list[int]:
        """Process ids of the ranks, which are started if necessary."""
        self._start()
        return list(self._pids)

    def run(self, job: Job) -> Ran | Declined | Crashed:
        """Run a job on the ranks of its layout.

        Raises:
            StartError: the framework cannot be imported.
        """
        self.begin(job)
        return self.outcome()

    def another(self, size: int) -> RankPool:
        """A further pool of the same framework, with its own ranks on this machine."""
        return RankPool(self.adapter, self.source, size, self._time_limit, self.hardware)

    @property
    def is_running(self) -> bool:
        """Whether the processes of the ranks run; after a crash they do not until the next job."""
        return bool(self._ranks)

    def begin(self, job: Job) -> None:
        """Send a job to the ranks; take its `outcome` before beginning another.

        Raises:
            StartError: the framework cannot be imported.
        """
        self._start()
        assert self._begun is None
        size = job.layout.world_size
        connections = self._connections[:size]
        dead = self._send((self._enter(size), job), connections)
        hung = job.objective in self._hung
        patience = patience_with(job, self._time_limit, expects_a_hang=hung)
        self._begun = _Begun(job, connections, patience, dead)

    def outcome(self) -> Ran | Declined | Crashed:
        """Wait for the outcome of the job that was begun."""
        assert self._begun is not None
        begun, self._begun = self._begun, None
        answers = begun.dead or self._gather(begun.connections, begun.patience)
        self._framework_seconds += max(answer.framework_seconds for answer in answers)
        if ran := frozenset[Place]().union(*(answer.ran for answer in answers)):
            self.ran[begun.job] = ran
        outcome = _outcome(answers)
        if isinstance(outcome, Crashed):
            replies = [answer.reply for answer in answers]
            if {one.blame for one in replies if isinstance(one, _Failure)} == {_Blame.WAITED}:
                self._hung.add(begun.job.objective)
            self._stop()
        elif not isinstance(outcome, Ran):
            self._world = None  # a new world discards state that the framework left half done
        return outcome

    def drain_framework_seconds(self) -> float:
        """Seconds in the framework's own code since the last call, of each job's slowest rank.

        The time until a refusal or a failure counts too.
        """
        seconds, self._framework_seconds = self._framework_seconds, 0.0
        return seconds

    def _enter(self, size: int) -> object:
        if not isinstance(self._world, World) or self._world.size != size:
            self._world = World(
                size=size, rendezvous=self._launcher.rendezvous(), time_limit=self._time_limit
            )
        return self._world

    def _send(self, message: object, connections: list[Connection]) -> list[_Answer]:
        """Send a message to every rank, up to the first dead rank."""
        for rank, connection in enumerate(connections):
            try:
                connection.send(message)
            except OSError:
                return [_Answer(rank, self._death(rank))]
        return []

    def _gather(self, connections: list[Connection], patience: Patience) -> list[_Answer]:
        """The answers of all ranks, in any order."""
        pending = {connection: rank for rank, connection in enumerate(connections)}
        answers: list[_Answer] = []
        while pending:
            ready = wait(list(pending), timeout=patience.seconds())
            if not ready and self._gives_up(patience, pending.values()):
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                answer = self._receive(connection, rank)
                answers.append(answer)
                if isinstance(answer.reply, _Failure):
                    patience.end_within(GRACE)
                elif isinstance(answer.reply, Declined):
                    patience.look_within(GRACE_TO_DECLINE)
        silences = {rank: self._silence(rank, patience) for rank in pending.values()}
        return answers + [
            self._receive(connection, rank) if connection.poll() else _Answer(rank, silences[rank])
            for connection, rank in pending.items()
        ]

    def _gives_up(self, patience: Patience, ranks: Collection[int]) -> bool:
        """Whether to stop waiting for ranks that have not answered."""
        processes = {rank: self._ranks[rank].process for rank in ranks}
        if not patience.ends({rank: one.cpu_seconds() for rank, one in processes.items()}):
            return False
        stacks = (one.stacks() for one in processes.values())
        return (
            patience.is_over
            or patience.expects_a_hang
            or all(self._waiting(stack).collective is not None for stack in stacks)
        )

    def _receive(self, connection: Connection, rank: int) -> _Answer:
        try:
            answered: Answered = connection.recv()
        except (EOFError, OSError):
            return _Answer(rank, self._death(rank))
        reply, seconds = answered.reply, answered.framework_seconds
        failed = self._failure(rank, reply) if isinstance(reply, Raised) else reply
        return _Answer(rank, failed, seconds, answered.ran)

    def _failure(self, rank: int, raised: Raised) -> _Failure:
        """A rank's exception as a failure of the job; a rank that only waited is not to blame."""
        message = f"{raised.words}\nrank {rank} raised\n{raised.traceback}"
        if any(words in raised.traceback for words in WORDS_OF_A_WAITING_RANK):
            return _Failure(_Blame.WAITED, Crashed(message), self._waiting(raised.traceback))
        ours = raised.verdict is Verdict.NOT_DRIVEN
        blame = _Blame.NOT_DRIVEN if ours else _Blame.FAILED
        return _Failure(blame, Crashed(message, raised.verdict, raised.place))

    def _silence(self, rank: int, patience: Patience) -> _Failure:
        stacks = self._ranks[rank].process.stacks()
        waiting_for = self._waiting(stacks)
        is_spinning = self.hardware.device is Device.CUDA and waiting_for.collective is not None
        is_at_work = rank in patience.at_work and not is_spinning
        blame = _Blame.AT_WORK if is_at_work else _Blame.WAITED
        return _Failure(blame, Crashed(sanitize(stacks, self.source)), waiting_for)

    def _waiting(self, stack: str) -> Waiting:
        return waiting(stack, self.adapter, self.source)

    def _death(self, rank: int) -> _Failure:
        death = self._ranks[rank].process.death()
        if WORDS_OF_A_MISMATCH in death.words:
            return _Failure(_Blame.MISMATCHED, Crashed(death.words), self._waiting(death.stack))
        if death.is_of_job:
            return _Failure(_Blame.FAILED, Crashed(death.words))
        return _Failure(_Blame.NOT_DRIVEN, Crashed(death.words, Verdict.NOT_DRIVEN))

    @property
    def _connections(self) -> list[Connection]:
        return [rank.connection for rank in self._ranks]

    def _start(self) -> None:
        if self._ranks:
            return
        specs = [
            WorkerSpec(
                index=index, adapter=self.adapter, source=self.source, hardware=self.hardware
            )
            for index in range(self._size)
        ]
        self._ranks = self._launcher.start(specs)
        self._world = None
        self._pids.clear()
        answers = self._gather(self._connections, Patience(START_LIMIT, START_LIMIT))
        if any(isinstance(answer.reply, _Failure) for answer in answers):
            outcome = _outcome(answers)
            assert isinstance(outcome, Crashed)
            self._stop()
            raise _not_loaded(self.adapter, outcome)
        for answer in answers:
            assert isinstance(answer.reply, Ready)
            self._description = answer.reply.description
            self._pids.append(answer.reply.pid)

    def _stop(self) -> None:
        for rank in self._ranks:
            rank.connection.close()
            rank.process.kill()
        for rank in self._ranks:
            rank.process.reap()
        self._ranks.clear()
        self._begun = None


def _not_loaded(adapter: Adapter, failed: Crashed) -> StartError:
    """The error of a version that the adapter cannot load."""
    words, _, details = failed.message.partition("\n")
    place = "" if failed.place is None else f", at {failed.place}"
    hint = driven_instead(adapter.versions, words)
    return StartError(f"{adapter.name} cannot be loaded: {words}{place}", hint, details)


def _waited(answers: Iterable[_Answer], blame: _Blame) -> Crashed:
    """The crash of ranks that hang, are slow or call different collectives, with their states."""
    states, details = {}, []
    for answer in answers:
        if isinstance(answer.reply, _Failure):
            states[answer.rank] = str(answer.reply.waiting)
            details.append(answer.reply.outcome.message)
        else:
            states[answer.rank] = "has ended its step"
    verdict = Verdict.NOT_DRIVEN if blame is _Blame.AT_WORK else Verdict.CRASHED
    message = "\n".join([f"{WHAT_HAPPENED[blame]}: {told(states)}", *details])
    return Crashed(message, verdict)


def _outcome(answers: list[_Answer]) -> Ran | Declined | Crashed:
    by_rank = [answer.reply for answer in sorted(answers, key=lambda answer: answer.rank)]
    failures = [reply for reply in by_rank if isinstance(reply, _Failure)]
    declined = [reply for reply in by_rank if isinstance(reply, Declined)]
    observed = [reply for reply in by_rank if isinstance(reply, Observed)]
    if failures:
        likeliest = max(failures, key=lambda failure: failure.blame)  # the lowest rank wins ties
        if declined and likeliest.blame in (_Blame.WAITED, _Blame.MISMATCHED):
            return Crashed(f"{declined[0].message}\n(one rank declined, others ran and waited)")
        if observed and likeliest.outcome.verdict is Verdict.REFUSED:
            # other ranks trained the step
            return replace(likeliest.outcome, verdict=Verdict.CRASHED)
        if likeliest.blame < _Blame.FAILED:
            return _waited(answers, likeliest.blame)
        return likeliest.outcome
    if declined and observed:
        return Crashed(f"{declined[0].message}\n(one rank declined, others ran)")
    if declined:
        return declined[0]
    traces = tuple(reply.trace for reply in observed if reply.trace is not None)
    held = tuple(reply.held for reply in observed)
    return Ran(tuple(reply.observation for reply in observed), traces, held)
