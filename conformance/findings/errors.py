"""The errors that end a run or a command, by the step that raises them.

`ConformanceError` is the base of all errors that a user can solve: pytest and the command line show
its message, which ends with a hint, and exit as for a wrong command line.

1. Options are read: `AdapterError`, `InvalidEngineError`, `InvalidSettingsError`,
   `InvalidHardwareError`, `adapters.contract.InvalidLayoutError`,
   `reference.aggregation.InvalidAggregationError`.
2. The framework's code is found: `conformance.sources.source.SourceError`,
   `conformance.sources.source.WheelError`.
3. Files that options name are read: `InvalidCaseFileError`, with `reference.step.InvalidStepError`
   as its cause; `InvalidExpectationsError`; `ReportFileError` or
   `UnreliableReportError` for a baseline.
4. The report's file is opened: `ReportPathError`.
5. Ranks are started: `LaunchError`, `TemporaryFolderError`; `StartError`, perhaps for an
   `adapters.toolkit.imports.WrongSourceError` in a rank.
6. Findings are made: `InconsistentExpectationError` and `UnknownCutError`, each a
   `HarnessFaultError`, which stops the run and is not the user's mistake.
7. Lines are proven: `conformance.tracing.trials.ProofTimeOverError`, which ends the proof of a
cause.
8. The report is written: `ReportPathError`.

Commands that read reports raise `ReportFileError`, `UnreliableReportError`,
`NothingToCompareError`, `PagePathError`, `UnknownCauseError` and `AmbiguousCauseError`; the other
commands add `InvalidHistoryError`, `NotTracedError`, `InvalidSourceError`, `UnknownCaseError`,
`InvalidRecipeError` and `UnknownReductionError`. The check of a user's own trainer raises
`WrongUseError`, `RankFailedError` and `conformance.own_trainer.outcome.WrongLossError`.
"""

from __future__ import annotations

from reference import ConformanceError as ConformanceError


class AdapterError(ConformanceError):
    """An adapter is unknown, or another distribution takes its name."""


class InvalidEngineError(ConformanceError):
    """An adapter does not support the requested engine."""


class InvalidSettingsError(ConformanceError):
    """A setting is out of range, unknown or contradicts another one."""


class InvalidHardwareError(ConformanceError):
    """The device, backend or precision is missing, here or for this number of ranks."""


class InvalidCaseFileError(ConformanceError):
    """A file contains no case that can be run."""


class InvalidExpectationsError(ConformanceError):
    """A file of known faults cannot be compared with a run."""


class NotTracedError(ConformanceError):
    """A finding does not exist, or it cannot be traced."""


class ReportFileError(ConformanceError):
    """A file contains no report that can be relied on."""


class UnreliableReportError(ConformanceError):
    """A fault of the harness stopped a report's run, so no verdict in the report is reliable."""


class ReportPathError(ConformanceError):
    """No report can be written to the requested path."""


class LaunchError(ConformanceError):
    """Ranks cannot run with the options that torchrun was given."""


class TemporaryFolderError(ConformanceError):
    """The folder for temporary files cannot hold the sockets of processes."""


class StartError(ConformanceError):
    """The framework cannot be imported in a rank; ``details`` are for the adapter's author."""

    def __init__(self, problem: str, hint: str = "", details: str = "") -> None:
        super().__init__(problem, hint)
        self.details = details


class WrongUseError(ConformanceError):
    """A step was not used as documented, so nothing can be said about the trainer."""


class NothingToCompareError(ConformanceError):
    """Two reports have no finding in common."""


class PagePathError(ConformanceError):
    """No page can be written to the requested path."""


class InvalidHistoryError(ConformanceError):
    """A history cannot be run; none of its commits has been run."""


class InvalidSourceError(ConformanceError):
    """A source is given for an adapter that is not installed."""


class UnknownCaseError(ConformanceError):
    """The corpus has no case of that name."""


class UnknownCauseError(ConformanceError):
    """A report has no cause of that name."""


class AmbiguousCauseError(ConformanceError):
    """A report has several causes of that name."""


class UnknownReductionError(ConformanceError):
    """No framework has a reduction of that name."""


class RankFailedError(RuntimeError):
    """A user's train step raised on another rank; the message has its traceback."""


class HarnessFaultError(RuntimeError):
    """The harness contradicts itself, so that no verdict of the run is reliable."""


class InconsistentExpectationError(HarnessFaultError):
    """The reference expects two different numbers where it can expect only one."""


class UnknownCutError(HarnessFaultError):
    """The expected weights depend on how a step was cut, which the adapter does not report."""


class InvalidRecipeError(ConformanceError):
    """A recipe cannot be read, or no check applies to it."""
