"""Listings for a reader: the corpus, a case sample by sample, or a plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from conformance.corpus.cases import ALL_CASES, CASES_BY_NAME
from conformance.findings.errors import UnknownCaseError
from conformance.findings.report import PlanSize
from conformance.runs.check import is_offered
from conformance.views.formatting import text_table
from reference import did_you_mean, exact
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description
    from conformance.corpus.cases import Case
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.plan.plan import Plan
    from conformance.plan.quick import Combination
    from reference.step import Step

LONGEST_MASK = 40
"""The most digits of a mask in a row; longer masks are shown by the lengths of their runs."""

MOST_CHECKS = 4
"""The largest number of a job's checks that are named."""

MOST_SAMPLES = 64
"""The most samples of a step whose weights are shown; larger denominators help no reader."""


def find(name: str) -> Case:
    """Returns the case of that name.

    Raises:
        UnknownCaseError: there is no such case.
    """
    if name not in CASES_BY_NAME:
        hint = did_you_mean(name, CASES_BY_NAME, f"choose {', '.join(CASES_BY_NAME)}")
        raise UnknownCaseError(f"case {name!r} is unknown", hint)
    return CASES_BY_NAME[name]


def table() -> list[str]:
    """Returns the lines of a table of all cases; numbers of several steps are joined by +."""
    header = ["case", "samples", "prompts", "active tokens", "catches", "source"]
    return text_table([header, *map(_row, ALL_CASES)])


def detail(case: Case) -> Iterator[str]:
    """Yields one case: its samples, and the weight of each sample's active tokens in every mode.

    For `sample_mean`, N counts samples; frameworks that count rollouts have other weights.
    """
    layouts = ", ".join(map(str, case.layouts)) or "all with a sample for each micro-batch"
    yield case.name
    yield f"  catches  {case.catches}"
    yield f"  source   {case.source}"
    yield f"  layouts  {layouts}"
    for number, step in enumerate(case.steps, 1):
        yield ""
        yield (
            f"step {number} of {len(case.steps)}: N = {step.size} samples, P = {_prompts(step)}"
            f" prompts, M = {step.active_tokens.sum()} active tokens, L = {case.divisor:g}"
        )
        yield from text_table(_samples(case, step))


def plan_table(plan: Plan, description: Description | None = None) -> Iterator[str]:
    """Yields the jobs of the quick plan, each with its checks and its reason.

    With the description of a version, only jobs that the version supports are shown.
    """

    def offered(cells: Iterable[AnyMatrixCell]) -> list[AnyMatrixCell]:
        return [one for one in cells if description is None or is_offered(one, description)]

    cells, every = offered(plan.cells()), offered(replace(plan, size=PlanSize.FULL).cells())
    jobs, all_jobs = ({cell.job_id for cell in some} for some in (cells, every))
    yield (
        f"{len(cells)} of {len(every)} findings, by {len(jobs)} of {len(all_jobs)} jobs: every pair"
        " of a mode, a case and the properties of a layout for each check"
    )
    yield ""
    checks: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        checks[cell.job_id].append(cell.spec.slug)
    shown = plan.quick_jobs
    rows = [
        [job, _first_of(of_job), _reasons(shown.get(job, ()))] for job, of_job in checks.items()
    ]
    yield from text_table([["job", "checks", "the first with"], *rows])


def _first_of(slugs: Sequence[str]) -> str:
    more = len(slugs) - MOST_CHECKS
    return ", ".join(slugs[:MOST_CHECKS]) + (f" and {more} more" if more > 0 else "")


def _reasons(combinations: Collection[Combination]) -> str:
    """Returns one of the combinations that a job is the first to show, in words."""
    if not combinations:
        return "what is looked at once"
    first, *others = sorted(combinations)
    return " × ".join(first) + (f" and {len(others)} more" if others else "")


def _row(case: Case) -> list[str]:
    return [
        case.name,
        "+".join(str(step.size) for step in case.steps),
        "+".join(str(_prompts(step)) for step in case.steps),
        "+".join(str(step.active_tokens.sum()) for step in case.steps),
        case.catches,
        case.source,
    ]


def _samples(case: Case, step: Step) -> list[list[str]]:
    """Returns a header and a row for each sample."""
    modes = [*Mode] if step.size <= MOST_SAMPLES else []
    header = ["sample", "group", "rollout", "prompt", "response", *modes, "mask"]
    weights = [_weights(case, step, mode) for mode in modes]
    return [header] + [
        [
            str(i),
            str(step.groups[i]),
            str(step.rollouts[i]),
            str(step.prompt_lengths[i]),
            str(step.response_lengths[i]),
            *(of_mode[i] for of_mode in weights),
            mask_digits(step.mask[response]),
        ]
        for i, response in enumerate(step.responses)
    ]


def _weights(case: Case, step: Step, mode: Mode) -> list[str]:
    """Returns the weight of an active token of each sample, 0 for samples without any."""
    tokens = exact.token_weights(step, case.aggregation(mode))
    return [str(max(of_sample)) for of_sample in tokens]


def mask_digits(mask: NDArray[np.bool_]) -> str:
    """Returns the mask digit by digit, or a long one as ``300·1 20·0 7·1``."""
    digits = "".join(map(str, mask.astype(int)))
    if len(digits) <= LONGEST_MASK:
        return digits
    return " ".join(f"{len([*stretch])}·{digit}" for digit, stretch in groupby(digits))


def _prompts(step: Step) -> int:
    return len(np.unique(step.groups))
