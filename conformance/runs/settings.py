"""The settings of a run, checked before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adapters.contract import Depth, InvalidLayoutError, Layout
from conformance.comparing import known
from conformance.comparing.gate import Comparing, Expecting, Gate, Strict
from conformance.comparing.report_file import load_reliable
from conformance.corpus import case_file as case_files
from conformance.corpus.cases import ALL_CASES
from conformance.findings.errors import InvalidSettingsError
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Check
from conformance.plan.plan import Plan
from conformance.ranks import processes
from conformance.ranks.hardware import ON_CPU, Hardware, choice
from conformance.runs import registry
from conformance.sources.changes import hunks_since
from conformance.sources.source import Source, resolve
from reference import did_you_mean
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract import Adapter
    from conformance.ranks.hardware import RankBudget


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run's adapter, source, selection and limits."""

    adapter: Adapter
    source: Source
    plan: Plan
    time_limit: float
    report: Path
    gate: Gate = field(default=Strict())
    hardware: Hardware = ON_CPU
    adapter_class: str | None = None
    """The name of the adapter, if it was given as ``module:Class``."""

    hunks: Mapping[str, str] = field(default_factory=dict)
    """The changes since a base, if one is given: the hunks of each file, by absolute path."""

    @classmethod
    def of(
        cls,
        *,
        adapter: str,
        source: str | None,
        engine: str | None,
        modes: str | None,
        checks: str | None,
        cases: Sequence[str] = (),
        depth: str,
        layouts: Sequence[str],
        plan_size: str,
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
        base: str | None = None,
    ) -> Settings:
        """The settings that a user's options give, after all checks.

        Raises:
            ConformanceError: an option is wrong; the error names value, rule and way out.
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
        found = resolve(chosen, source)
        plan = Plan(
            aggregations=modes_of(modes),
            checks=_checks(checks),
            cases=_cases(cases),
            depth=choice(Depth, "depth", depth),
            layouts=_layouts(chosen, layouts, rank_budget),
            size=choice(PlanSize, "plan", plan_size),
            examples=examples,
            seed=seed,
            case=None if case_file is None else case_files.load(case_file),
        ).driven_by(chosen)
        plan.require_something_to_run(plan.layouts if layouts else ())
        hardware = Hardware.of(device, backend, min(plan.ranks, rank_budget.here), dtype)
        _require_drivable("device", hardware.device, chosen, chosen.devices)
        _require_drivable("dtype", hardware.dtype, chosen, chosen.dtypes)
        settings = cls(
            adapter=chosen,
            source=found,
            plan=plan,
            time_limit=time_limit,
            report=report,
            hardware=hardware,
            adapter_class=adapter if registry.is_class(adapter) else None,
            hunks={} if base is None else _hunks(chosen, source, base),
        )
        return replace(settings, gate=_gate(settings, expect, baseline))


def _require_drivable(option: str, chosen: str, adapter: Adapter, known: Sequence[str]) -> None:
    if not known:
        raise InvalidSettingsError(
            f"the adapter of {adapter.name} declares no {option}s",
            f"give its class a tuple of them, such as {option}s = ({chosen!r},)",
        )
    if chosen not in known:
        raise InvalidSettingsError(
            f"--{option}={chosen}: the adapter of {adapter.name} drives its {adapter.engine} engine"
            f" with {' and '.join(known)} alone",
            f"leave --{option} out",
        )


def _hunks(adapter: Adapter, source: str | None, base: str) -> dict[str, str]:
    if source is None:
        raise InvalidSettingsError(
            f"--base={base} is the base of no named version", "name one with --source"
        )
    return hunks_since(adapter, source, base)


def _gate(settings: Settings, expect: Path | None, baseline: Path | None) -> Gate:
    if expect is not None and baseline is not None:
        raise InvalidSettingsError(
            f"--expect={expect} and --baseline={baseline} are two gates", "choose one"
        )
    if expect is not None:
        listed = known.expected(expect, settings.adapter.name, settings.adapter.engine)
        everything = settings.plan.extended_to(settings.adapter.layouts())
        cells = [*everything.cells(), *settings.plan.cells()]
        listed.require_each_to_match_once([cell.id for cell in cells])
        return Expecting(listed)
    return Strict() if baseline is None else _comparing(settings, baseline)


def _comparing(settings: Settings, path: Path) -> Comparing:
    report, adapter = load_reliable(path), settings.adapter
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
    return Comparing(path, report, settings.plan.request)


def modes_of(text: str | None) -> dict[Mode, Aggregation | None]:
    """The modes of ``--modes``, each with its divisor if one is given; all modes by default."""
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
    return frozenset(choice(Check, "checks", name) for name in names)


def _cases(names: Sequence[str]) -> frozenset[str]:
    known = [case.name for case in ALL_CASES]
    for name in names:
        if name not in known:
            raise InvalidSettingsError(
                f"case {name!r} is unknown",
                did_you_mean(name, known, f"choose {', '.join(known)}"),
            )
    return frozenset(names)


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
