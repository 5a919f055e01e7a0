"""What a run was asked for, checked before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adapters.contract import Depth, InvalidLayoutError, Layout
from adapters.toolkit.source import Source, resolve
from conformance.comparing import expectations
from conformance.comparing.gate import Comparing, Expecting, Gate, Strict
from conformance.comparing.report_file import load
from conformance.corpus import case_file as case_files
from conformance.corpus.cases import ALL_CASES, Case
from conformance.corpus.configurations import CONFIG_CASES
from conformance.corpus.log_cases import LOG_CASES
from conformance.findings.errors import InvalidSettingsError
from conformance.findings.report import Request
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS, CUT_DEPENDENCE, CheckSpec
from conformance.plan.matrix import AnyMatrixCell, GeneratedCell, LogCell, MatrixCell, StartupCell
from conformance.ranks import processes
from conformance.ranks.hardware import ON_CPU, Hardware
from conformance.runs import registry
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adapters.contract import Adapter
    from conformance.ranks.budget import RankBudget


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run's adapter, source, selection and limits."""

    adapter: Adapter
    source: Source
    aggregations: dict[Mode, Aggregation | None]
    """Modes to run, with a divisor that replaces the cases' own."""

    checks: frozenset[Check]
    depth: Depth
    layouts: tuple[Layout, ...]
    time_limit: float
    report: Path
    examples: int = 0
    """How many cases to generate for each mode and layout."""

    seed: str = ""
    """What generated cases follow from."""

    case: Case | None = None
    """A step that a user gave, in the place of the corpus and all else."""

    gate: Gate = field(default=Strict())
    hardware: Hardware = ON_CPU

    @classmethod
    def of(
        cls,
        *,
        adapter: str,
        source: str | None,
        engine: str | None,
        modes: str | None,
        checks: str | None,
        depth: str,
        layouts: Sequence[str],
        rank_budget: RankBudget,
        time_limit: float,
        report: Path,
        examples: int,
        seed: str,
        device: str = ON_CPU.device,
        backend: str | None = None,
        dtype: str = ON_CPU.dtype,
        expect: Path | None = None,
        baseline: Path | None = None,
        case_file: Path | None = None,
    ) -> Settings:
        """Check what a user typed.

        Raises:
            ConformanceError: it names the value, the rule and the way out.
        """
        if rank_budget.ranks < 1:
            raise InvalidSettingsError(rank_budget.rule, "at least one rank is needed")
        if time_limit <= 0:
            raise InvalidSettingsError(f"--time-limit is {time_limit:g} s", "give more than 0")
        if examples < 0:
            raise InvalidSettingsError(
                f"--examples is {examples}",
                "give how many steps to generate for each mode and layout, or 0 for the corpus"
                " alone",
            )
        processes.require_room_for_sockets()
        chosen = registry.create(adapter, engine)
        settings = cls(
            adapter=chosen,
            source=resolve(chosen, source),
            aggregations=_modes(modes),
            checks=_checks(checks),
            depth=_depth(depth),
            layouts=_layouts(chosen, layouts, rank_budget),
            time_limit=time_limit,
            report=report,
            examples=examples,
            seed=seed,
            case=None if case_file is None else case_files.load(case_file),
        )
        settings.require_something_to_run()
        hardware = Hardware.of(device, backend, min(settings.ranks, rank_budget.here), dtype)
        _require_drivable("device", hardware.device, chosen, chosen.devices)
        _require_drivable("dtype", hardware.dtype, chosen, chosen.dtypes)
        settings = replace(settings, hardware=hardware)
        return replace(settings, gate=_gate(settings, expect, baseline))

    def all_ids(self) -> list[str]:
        """Those of what is chosen, and of what would be if nothing were left out."""
        layouts = dict.fromkeys([*self.adapter.layouts(), *self.layouts])
        everything = replace(
            self,
            aggregations=dict.fromkeys(Mode),
            checks=frozenset(Check),
            layouts=tuple(layouts),
            examples=max(self.examples, 1),
            case=None,
        )
        return [cell.id for cell in [*everything.cells(), *self.cells()]]

    @property
    def request(self) -> Request:
        """What the report says of these settings."""
        constant = self.aggregations.get(Mode.CONSTANT)
        return Request(
            divisor=constant.divisor if constant else None,
            examples=self.examples,
            seed=self.seed,
            case=self.case.name if self.case else None,
        )

    @property
    def ranks(self) -> int:
        """The most ranks that a layout takes."""
        return max(layout.world_size for layout in self.layouts)

    def cells(self) -> list[AnyMatrixCell]:
        """Every finding to be made, those on one layout together, generated cases last."""
        cells: list[AnyMatrixCell] = [*self._cells_of_cases()]
        if self.case is None:
            cells += [
                *self._cut_cells(),
                *self._startup_cells(),
                *self._log_cells(),
                *self._generated_cells(),
            ]
        return [cell for cell in cells if cell.spec.check in self.checks]

    def require_something_to_run(self) -> None:
        """See to it that a given case fits a chosen layout.

        Raises:
            InvalidSettingsError: it fits none.
        """
        if self.case is not None and not any(map(self.case.runs_on, self.layouts)):
            raise InvalidSettingsError(
                f"case {self.case.name} has a step of {self.case.fewest_samples} samples, and each"
                " chosen layout needs more, one for every micro-batch of every rank",
                "choose a smaller --layout",
            )

    def _cells_of_cases(self) -> list[MatrixCell]:
        """Those that share a run next to each other."""
        return [
            MatrixCell(
                aggregation=aggregation or case.aggregation(mode),
                case=case,
                layout=layout,
                depth=self.depth,
                spec=spec,
            )
            for layout in self.layouts
            for case in (ALL_CASES if self.case is None else (self.case,))
            if case.runs_on(layout)
            for mode, aggregation in self.aggregations.items()
            for spec in CHECK_SPECS
            if spec.takes(case) and mode in spec.modes
            if spec.is_seen_at(self.depth) and spec.is_seen_on(layout)
        ]

    def _cut_cells(self) -> list[MatrixCell]:
        """In the first mode, on the first layout of several micro-batches, if there is one."""
        cut = [layout for layout in self.layouts if layout.micro_batches != 1]
        if self.depth is not Depth.STEP or not cut:
            return []
        mode, aggregation = next(iter(self.aggregations.items()))
        return [
            MatrixCell(
                aggregation=aggregation or case.aggregation(mode),
                case=case,
                layout=cut[0],
                depth=self.depth,
                spec=spec,
            )
            for spec in CUT_DEPENDENCE
            for case in spec.cases
            if case.runs_on(cut[0])
        ]

    def _startup_cells(self) -> list[StartupCell]:
        """On the first layout that each configuration can be seen on, if there is one."""
        if self.depth is not Depth.STEP:
            return []
        pairs = [(row, [one for one in self.layouts if row.fits(one)]) for row in CONFIG_CASES]
        return [
            StartupCell(
                aggregation=row.given.aggregation(mode),
                case=row.given,
                layout=fitting[0],
                depth=self.depth,
                spec=CheckSpec(check=row.check, name=row.name),
                config_case=row,
            )
            for row, fitting in pairs
            if fitting
            for mode in row.modes
            if mode in self.aggregations
        ]

    def _log_cells(self) -> list[LogCell]:
        if self.depth is not Depth.STEP:
            return []
        return [LogCell(log_case=case) for case in LOG_CASES if case.mode in self.aggregations]

    def _generated_cells(self) -> list[GeneratedCell]:
        if not self.examples:
            return []
        return [
            GeneratedCell(
                mode=mode,
                divisor=aggregation.divisor if aggregation else None,
                layout=layout,
                depth=self.depth,
                examples=self.examples,
                seed=self.seed,
            )
            for layout in self.layouts
            for mode, aggregation in self.aggregations.items()
        ]


def _require_drivable(option: str, chosen: str, adapter: Adapter, known: Sequence[str]) -> None:
    if chosen not in known:
        raise InvalidSettingsError(
            f"--{option}={chosen}: the adapter of {adapter.name} drives its {adapter.engine} engine"
            f" with {' and '.join(known)} alone",
            f"leave --{option} out",
        )


def _gate(settings: Settings, expect: Path | None, baseline: Path | None) -> Gate:
    if expect is not None and baseline is not None:
        raise InvalidSettingsError(
            f"--expect={expect} and --baseline={baseline} are two gates", "choose one"
        )
    if expect is not None:
        known = expectations.load(expect)
        known.require_each_to_match_once(settings.all_ids())
        return Expecting(known)
    return Strict() if baseline is None else _comparing(settings, baseline)


def _comparing(settings: Settings, path: Path) -> Comparing:
    report, adapter = load(path), settings.adapter
    if (report.adapter, report.engine) != (adapter.name, adapter.engine):
        raise InvalidSettingsError(
            f"--baseline={path} is of {report.adapter} on {report.engine}, and this run is of"
            f" {adapter.name} on {adapter.engine}",
            "give a baseline of that",
        )
    if report.environment.dtype != settings.hardware.dtype:
        raise InvalidSettingsError(
            f"--baseline={path} is of {report.environment.dtype}, and this run is of"
            f" {settings.hardware.dtype}, which is held to other bounds",
            "give a baseline of that, or another --dtype",
        )
    return Comparing(path, report, settings.request)


def _modes(text: str | None) -> dict[Mode, Aggregation | None]:
    if text is None:
        return dict.fromkeys(Mode)
    modes: dict[Mode, Aggregation | None] = {}
    for item in text.split(","):
        if item == Mode.CONSTANT:
            modes[Mode.CONSTANT] = None
        else:
            aggregation = Aggregation.parse(item)
            modes[aggregation.mode] = aggregation
    return modes


def _checks(text: str | None) -> frozenset[Check]:
    names = list(Check) if text is None else text.split(",")
    try:
        return frozenset(map(Check, names))
    except ValueError as error:
        raise InvalidSettingsError(str(error), f"choose from {', '.join(Check)}") from None


def _depth(text: str) -> Depth:
    try:
        return Depth(text)
    except ValueError:
        raise InvalidSettingsError(
            f"depth {text!r} is unknown", f"choose {' or '.join(Depth)}"
        ) from None


def _layouts(adapter: Adapter, texts: Sequence[str], rank_budget: RankBudget) -> tuple[Layout, ...]:
    if not texts:
        fitting = tuple(one for one in adapter.layouts() if one.world_size <= rank_budget.ranks)
        if not fitting:
            fewest = min(layout.world_size for layout in adapter.layouts())
            raise InvalidLayoutError(
                f"no layout of {adapter.name} takes fewer than {fewest} ranks and"
                f" {rank_budget.rule}",
                rank_budget.way_out_for(fewest),
            )
        return fitting
    layouts = tuple(dict.fromkeys(Layout.parse(text) for text in texts))
    for layout in layouts:
        if layout.world_size > rank_budget.ranks:
            raise InvalidLayoutError(
                f"layout {layout} takes {layout.world_size} ranks and {rank_budget.rule}",
                f"{rank_budget.way_out_for(layout.world_size)} or choose a smaller layout",
            )
    return tuple(sorted(layouts, key=lambda layout: layout.world_size))
