"""The plan of a run: its checks by case, mode and layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from adapters.contract import Depth, Layout
from conformance.corpus.case import fewest_micro_batches
from conformance.corpus.cases import ALL_CASES, Case
from conformance.corpus.configurations import CONFIG_CASES, LOG_CASES
from conformance.findings.errors import InvalidSettingsError
from conformance.findings.report import PlanSize, Request
from conformance.findings.verdict import Check
from conformance.plan.checks import ALTERED, CHECK_SPECS, DEFAULTED, LAWFUL, CheckSpec
from conformance.plan.matrix import AnyMatrixCell, GeneratedCell, LogCell, MatrixCell, StartupCell
from conformance.plan.quick import Substitutes, pairwise, quick_jobs
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from adapters.contract import Adapter
    from adapters.contract.objective import Objective
    from conformance.plan.quick import Combination


Cell = TypeVar("Cell", bound=AnyMatrixCell)


def mode_of_advantages(adapter: Adapter, chosen_modes: Collection[Mode] = tuple(Mode)) -> Mode:
    """The mode in which an adapter's advantages are checked; they do not depend on the mode.

    It is a mode that needs no option, since every version has it, or else `sample_mean`. If that
    mode is not chosen, it is the first of the chosen modes.
    """
    of_record = adapter.framework.modes.values() if adapter.framework else ()
    named = [_mode(text) for text in adapter.mode_names.values()]
    liked = [*(_mode(text) for text, chosen in of_record if not chosen), Mode.SAMPLE_MEAN]
    usual = next((mode for mode in liked if mode in named), named[0] if named else Mode.SAMPLE_MEAN)
    return usual if usual in chosen_modes else next(iter(chosen_modes))


def _mode(text: str) -> Mode:
    """The mode in a text such as ``constant:40``, with or without a divisor."""
    return Mode(text.partition(":")[0])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The choices that determine the cells of a run."""

    layouts: tuple[Layout, ...]
    aggregations: dict[Mode, Aggregation | None] = field(
        default_factory=lambda: dict.fromkeys(Mode)
    )
    """Modes to run, with a divisor that replaces the cases' own."""

    checks: frozenset[Check] = frozenset(Check)
    depth: Depth = Depth.STEP
    size: PlanSize = PlanSize.FULL
    examples: int = 0
    """The number of cases to generate for each mode and layout."""

    seed: str = ""
    """The seed of generated cases."""

    mode_of_advantages: Mode = Mode.SAMPLE_MEAN
    """The only mode in which advantages are checked; they do not depend on the mode."""

    with_defaults: frozenset[Objective] = frozenset()
    """The objectives with options whose defaults the framework documents."""

    fills_up: bool = False
    """Whether steps may have fewer samples than all ranks have micro-batches."""

    cases: frozenset[str] = frozenset()
    """The names of the cases to run; if empty, all cases."""

    case: Case | None = None
    """A user's own case, which replaces all other cases."""

    def driven_by(self, adapter: Adapter) -> Plan:
        """The plan for an adapter, made from its record before the framework is loaded."""
        return replace(
            self,
            mode_of_advantages=mode_of_advantages(adapter, self.aggregations),
            with_defaults=frozenset(adapter.framework.with_defaults if adapter.framework else ()),
            fills_up=adapter.fills_up,
        )

    @property
    def request(self) -> Request:
        """These settings as a report records them."""
        constant = self.aggregations.get(Mode.CONSTANT)
        return Request(
            plan=self.size,
            divisor=constant.divisor if constant else None,
            examples=self.examples,
            seed=self.seed,
            case=self.case.name if self.case else None,
        )

    @property
    def ranks(self) -> int:
        """The number of ranks of the largest layout."""
        return max(layout.world_size for layout in self.layouts)

    def extended_to(self, layouts: Iterable[Layout]) -> Plan:
        """A full plan of the same checks, on these layouts and on the plan's own."""
        return replace(
            self,
            aggregations=dict.fromkeys(Mode),
            checks=frozenset(Check),
            layouts=tuple(dict.fromkeys([*layouts, *self.layouts])),
            size=PlanSize.FULL,
            examples=max(self.examples, 1),
            case=None,
        )

    def cells(self) -> list[AnyMatrixCell]:
        """The cells of all findings, those on one layout together, generated cases last."""
        cells: list[AnyMatrixCell] = [*self._chosen()]
        if self.case is None:
            cells += [
                *self.cells_apart,
                *self._startup_cells(),
                *self._log_cells(),
                *self._generated_cells(),
            ]
        return self._checked(cells)

    def _checked(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells of the chosen checks and cases."""
        return [
            cell
            for cell in cells
            if cell.spec.check in self.checks
            and (not self.cases or cell.id.split("/")[2] in self.cases)
        ]

    def _chosen(self) -> Sequence[MatrixCell]:
        """The cells of all jobs of a full plan, or of the chosen jobs of a quick plan."""
        if self.size is PlanSize.FULL:
            return self.cells_of_cases
        return [cell for cell in self.cells_of_cases if cell.job_id in self.quick_jobs]

    @cached_property
    def quick_jobs(self) -> Mapping[str, AbstractSet[Combination]]:
        """The jobs of the quick plan, each with the combinations that it is the first to show."""
        return quick_jobs(cell for cell in self.cells_of_cases if cell.spec.check in self.checks)

    def substitutes(self, is_offered: Callable[[AnyMatrixCell], bool]) -> Substitutes:
        """The cells that may replace cells of a quick plan that a framework declines.

        A full plan has no substitutes, since it has all cells.
        """
        cells = () if self.size is PlanSize.FULL else self.chosen_of_cases
        return Substitutes(cell for cell in cells if is_offered(cell))

    def require_something_to_run(self, named: Sequence[Layout]) -> None:
        """Require a chosen case to fit each layout that a user named, and the plan to have a cell.

        Raises:
            InvalidSettingsError: a layout, or the whole plan, would have no finding.
        """
        if self.case is not None:
            cases = [self.case]
        else:
            cases = [one for one in ALL_CASES if not self.cases or one.name in self.cases]
        fitted = [any(self._runs(case, layout) for case in cases) for layout in self.layouts]
        for layout, is_fitted in zip(self.layouts, fitted, strict=True):
            if not is_fitted and (layout in named or not any(fitted)):
                raise InvalidSettingsError(
                    f"nothing to run: no chosen case fits layout {layout}, which needs a sample for"
                    f" each of {layout.dp * fewest_micro_batches(layout)} micro-batches",
                    "choose a smaller --layout or another --case, or give a larger step with"
                    " --case-file",
                )
        if not self.cells():
            raise InvalidSettingsError(
                "nothing to run: no chosen check applies to a chosen mode, case and layout",
                "choose others",
            )

    @property
    def chosen_of_cases(self) -> list[MatrixCell]:
        """The cells of a full plan of the chosen checks and cases."""
        return self._checked(self.cells_of_cases)

    @cached_property
    def cells_of_cases(self) -> list[MatrixCell]:
        """The cells of all cases, with cells that share a job adjacent."""
        cases = ALL_CASES if self.case is None else (self.case,)
        seen = [spec for spec in CHECK_SPECS if spec.is_seen_at(self.depth)]
        specs = [
            replace(spec, modes=(self.mode_of_advantages,)) if spec.is_of_advantages else spec
            for spec in seen
        ]
        taken = [
            (case, self._aggregation(mode, case), [one for one in takers if mode in one.modes])
            for case in cases
            for takers in [[spec for spec in specs if spec.takes(case)]]
            for mode in self.aggregations
        ]
        return [
            MatrixCell(
                aggregation=aggregation, case=case, layout=layout, depth=self.depth, spec=spec
            )
            for layout in self.layouts
            for case, aggregation, takers in taken
            if self._runs(case, layout)
            for spec in takers
            if spec.is_seen_on(layout)
        ]

    def _runs(self, case: Case, layout: Layout) -> bool:
        return case.is_meant_for(layout) if self.fills_up else case.runs_on(layout)

    def _cell(self, mode: Mode, case: Case, layout: Layout, spec: CheckSpec) -> MatrixCell:
        aggregation = self._aggregation(mode, case)
        return MatrixCell(
            aggregation=aggregation, case=case, layout=layout, depth=self.depth, spec=spec
        )

    def _aggregation(self, mode: Mode, case: Case) -> Aggregation:
        return self.aggregations[mode] or case.aggregation(mode)

    @property
    def cells_apart(self) -> list[MatrixCell]:
        """The cells of altered columns and laws, which need only one layout or two in any plan."""
        return [*self._altered_cells(), *self._lawful_cells()]

    def _altered_cells(self) -> list[MatrixCell]:
        """The cells of altered columns, on the first layout; a full plan adds a layout with CP."""
        if self.depth is not Depth.STEP:
            return []
        sliced = [one for one in self.layouts[1:] if one.cp > self.layouts[0].cp == 1]
        layouts = self.layouts[:1] + tuple(sliced[:1] if self.size is PlanSize.FULL else ())
        return [
            self._cell(mode, case, layout, spec)
            for layout in layouts
            for mode in self.aggregations
            for spec in ALTERED
            if spec.is_seen_in_every_mode or mode is self.mode_of_advantages
            for case in spec.cases
            if self._runs(case, layout)
        ]

    def _lawful_cells(self) -> list[MatrixCell]:
        """The cells of laws: in one mode, each on the smallest layout that can show a violation."""
        if self.depth is not Depth.STEP:
            return []
        by_size = sorted(self.layouts, key=lambda one: (one.world_size, one.micro_batches != 1))
        defaulted = [spec for spec in DEFAULTED if spec.objective in self.with_defaults]
        return [
            self._cell(mode, case, layout, spec)
            for spec in (*LAWFUL, *defaulted)
            if spec.law
            for mode in [spec.law.mode or self.mode_of_advantages]
            if mode in self.aggregations
            for layout in [*filter(spec.law.fits, by_size)][:1]
            for case in spec.cases
            if self._runs(case, layout)
        ]

    def _startup_cells(self) -> list[StartupCell]:
        """The cells of configurations: each on the first layout that fits, if one does."""
        if self.depth is not Depth.STEP:
            return []
        pairs = [
            (config_case, [layout for layout in self.layouts if config_case.fits(layout)])
            for config_case in CONFIG_CASES
        ]
        return [
            StartupCell(
                aggregation=config_case.given.aggregation(mode),
                case=config_case.given,
                layout=fitting[0],
                depth=self.depth,
                spec=CheckSpec(check=config_case.check, name=config_case.name),
                config_case=config_case,
            )
            for config_case, fitting in pairs
            if fitting
            for mode in config_case.modes
            if mode in self.aggregations
        ]

    def _log_cells(self) -> list[LogCell]:
        if self.depth is not Depth.STEP:
            return []
        return [LogCell(log_case=case) for case in LOG_CASES if case.mode in self.aggregations]

    def _generated_cells(self) -> list[GeneratedCell]:
        layouts = self.layouts if self.size is PlanSize.FULL else pairwise(self.layouts)
        return [
            GeneratedCell(
                mode=mode,
                divisor=aggregation.divisor if aggregation else None,
                layout=layout,
                depth=self.depth,
                examples=self.examples,
                seed=self.seed,
            )
            for layout in layouts
            if self.examples
            for mode, aggregation in self.aggregations.items()
        ]
