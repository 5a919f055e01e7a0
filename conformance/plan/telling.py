"""Chooses the jobs that are most likely to show what a change does: a minute's, on two layouts.

A change to the code of advantages needs other checks than a change to a loss. Which checks it
touches is read off the words of its lines. This only orders the jobs: every check gets some while
there is time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.contract.objective import Objective
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Check
from conformance.plan.plan import Plan, mode_of_advantages
from conformance.plan.quick import covering
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from adapters.contract import Adapter, Layout
    from conformance.plan.matrix import MatrixCell

JOBS = 64
"""Run of each version: a minute for two versions of SkyRL, slime or miles on two cores."""

MOST_RANKS = 4

WORDS = {
    Check.WEIGHTS: r"aggregat|reduc|denominator|num_(tokens|items|samples)|_mean\b|loss_mask|"
    r"scal(e|ing)\b|micro_?batch|accumulat",
    Check.METRIC: r"metric|log_dict|\blog_|stats|wandb|report|track",
    Check.SHARDING: r"group|prompt_(id|ind|mean)|partition|balanc|shard|dispatch",
    Check.OFF_POLICY: r"ratio|clip|old_log|cispo|gspo|ppo_loss|policy_loss|surrogate",
    Check.AUXILIARY: r"entropy|kl_loss|kl_coef|aux_loss|router",
    Check.REJECTION: r"reject|rollout_log|\btis\b|icepop|mismatch|importance|veto|staleness",
    Check.ADVANTAGES: r"advantage|\bgae\b|reward|return|whiten|normali[sz]|baseline|rloo|discount",
    Check.ROLLOUTS: r"rollout|response_length|reward|advantage",
    Check.OTHER_LOSSES: r"value|critic|\bsft\b|distill|teacher",
    Check.LAWS: r"metric|log_dict|\blog_|stats|wandb|report|track|ratio|\.(mean|std|sum)\(",
    Check.POISON: r"masked_fill|isfinite|isnan|nan_to_num|\b(nan|inf)\b|where\(|\* *\w*mask|clamp",
    Check.NO_GRADIENT: r"detach|no_grad|requires_grad|stop_gradient",
    Check.DEFAULTS: r"default|: *(float|int|str|bool)( \| None)? *=",
}
"""Words of changed lines that each check can tell something of."""

PARALLELISM = {
    "pp": r"pipeline|\bpp\b|virtual_stage",
    "tp": r"tensor_(model_)?parallel|\btp\b",
}
"""Words of lines for which a layout with several ranks of a kind is chosen."""

SHARE = 0.05
"""Of the changed lines that have to be about a pipeline or an option for it to be chosen."""

LEAST_OF_A_FORMAT = 0.2
"""Of the layouts that have to be of a format for it to be chosen: slime has a few for a format that
only old versions have."""

LARGEST_WEIGHT = 5
"""How much more a fact counts of the check that most changed lines are about."""


@dataclass(frozen=True, kw_only=True)
class Telling:
    """Layouts, cells to run on them, and the checks that a change is about, most lines first.

    Cells of the most telling jobs come first; cells of one job stay together.
    """

    layouts: tuple[Layout, ...]
    cells: tuple[MatrixCell, ...]
    touched: tuple[Check, ...]


def telling(
    adapter: Adapter,
    changed: Mapping[str, str],
    layouts: Sequence[Layout] = (),
    checks: Collection[Check] = tuple(Check),
    modes: Collection[Mode] = tuple(Mode),
) -> Telling:
    """What to run of an adapter for a change, on two layouts or on given ones.

    ``changed`` has the changed lines of each file.
    """
    lines = [
        f"{name} {line}".lower() for name, text in changed.items() for line in text.split("\n")
    ]
    counts = {check: _count(lines, words) for check, words in WORDS.items() if check in checks}
    touched = sorted((one for one in counts if counts[one]), key=lambda one: -counts[one])
    chosen = tuple(layouts) or _layouts(adapter, lines)
    plan = Plan(
        layouts=chosen,
        aggregations=dict.fromkeys(modes),
        checks=frozenset(checks),
        size=PlanSize.FULL,
        mode_of_advantages=mode_of_advantages(adapter, modes),
        fills_up=adapter.fills_up,
    )
    cells = [
        cell
        for cell in (*plan.cells_of_cases, *plan.cells_apart)
        if cell.spec.check in checks and _is_offered(cell, adapter)
    ]
    most = max(counts.values(), default=0) or 1
    weights = {one: 1 + round((LARGEST_WEIGHT - 1) * counts[one] / most) for one in counts}
    facts: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for cell in cells:
        for fact in _facts(cell):
            weight = weights.get(cell.spec.check, 1)
            facts[cell.job_id].update((*fact, number) for number in range(weight))
    checks_of = {cell.job_id: cell.spec.check for cell in cells}
    ordered = list(covering(facts))
    first_of_checks = {checks_of[one]: one for one in reversed(ordered)}.values()
    ids = {*ordered[:JOBS], *first_of_checks}
    order = {one: place for place, one in enumerate(dict.fromkeys([*ordered, *ids]))}
    kept = tuple(
        sorted((one for one in cells if one.job_id in ids), key=lambda one: order[one.job_id])
    )
    return Telling(layouts=chosen, cells=kept, touched=tuple(touched))


def _count(lines: Iterable[str], words: str) -> int:
    return sum(re.search(words, line) is not None for line in lines)


def _facts(cell: MatrixCell) -> Iterator[tuple[object, ...]]:
    """Yield what a cell tells: its mode on its layout above all, and of the loss, every case.

    Each law, and each column that is altered, counts as two.
    """
    slug, mode, case = cell.spec.slug, cell.aggregation.mode, cell.case.name
    if cell.spec.is_looked_at_once:
        what = cell.spec.law.name if cell.spec.law else slug
        yield from ((what, cell.spec.check), (what,), (cell.spec.objective, cell.spec.check))
        return
    yield slug, mode, cell.layout
    yield slug, mode, cell.layout.micro_batches
    yield slug, case
    if cell.spec.objective is Objective.POLICY:
        yield slug, mode, case


def _is_offered(cell: MatrixCell, adapter: Adapter) -> bool:
    """Whether some version of the framework has a cell's mode and objective, by its record."""
    record = adapter.framework
    if record is None:
        return True
    modes = {Mode(mode.partition(":")[0]) for mode in record.mode_names.values()}
    return cell.aggregation.mode in modes and cell.spec.objective in {
        Objective.POLICY,
        *record.objectives,
    }


def _layouts(adapter: Adapter, lines: Sequence[str]) -> tuple[Layout, ...]:
    """The layout on which most mistakes show, and the one that most users have.

    The first has a pipeline, tensor parallelism or options only if the lines are about them.
    """
    usual = adapter.layouts()[0].format
    small = [one for one in adapter.layouts() if one.world_size <= MOST_RANKS]
    formats = Counter(one.format for one in small)
    fitting = [one for one in small if formats[one.format] >= LEAST_OF_A_FORMAT * len(small)]
    first = max(fitting, key=lambda one: _rank(one, lines, usual))
    plain = [one for one in fitting if one != first and _is_plain(one)]
    second = sorted(plain, key=lambda one: (one.format != usual, one.micro_batches == "tokens"))
    return (first, *second[:1])


def _rank(layout: Layout, lines: Sequence[str], usual: str) -> tuple[int, int, bool, bool]:
    """A sort key: what the lines are about, then what most mistakes need to show."""
    least = len(lines) * SHARE
    has = [words for part, words in PARALLELISM.items() if getattr(layout, part) > 1]
    special = [_count(lines, words) > least for words in (*has, *layout.options)]
    cut = (layout.dp > 1) + (layout.cp > 1) + (layout.micro_batches != 1)
    about = 2 * sum(special) - len(special)
    return about, cut, layout.format != usual, layout.micro_batches == "tokens"


def _is_plain(layout: Layout) -> bool:
    has_several = layout.dp > 1 and layout.micro_batches != 1
    return has_several and layout.cp == layout.tp == layout.pp == 1 and not layout.options
