"""The record of RLinf: options of reasoning as users type them, and RLinf's documents."""

from __future__ import annotations

from functools import partial

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.shells import NOTHING_LEARNED, PROBED, ZEROED
from adapters.toolkit import settings


def row_width(job: Job) -> int:
    """The width of a row: a prompt padded on the left and a response padded on the right."""
    return settings.longest_prompt(job) + settings.longest_response(job)


def packed_tokens(job: Job) -> int:
    """The token budget with which a micro-batch holds its largest number of rows."""
    return settings.largest_micro_batch(job) * row_width(job)


def budget(job: Job) -> int:
    """The token budget of a micro-batch, which in RLinf must hold at least one padded row."""
    return max(settings.rank_budget(job), row_width(job))


def prompts(job: Job) -> int:
    """The number of prompts of a batch; the prompts must split evenly over data-parallel ranks.

    Raises `Unsupported` for several steps, whose advantages would be normalised together.
    """
    settings.require_one_step(
        job, "a batch is normalised as a whole, and steps are cut out of it afterwards"
    )
    of_batch = settings.prompts_per_step(job)
    if of_batch % job.layout.dp:
        raise Unsupported(
            f"{of_batch} prompts cannot be split evenly over {job.layout.dp} ranks: each takes"
            " whole groups until it has its share of the samples"
        )
    return of_batch


def actions(job: Job) -> int:
    """The number of rows of an embodied policy's step: each row is one action, or padding."""
    settings.require_one_step(job, "rows of a batch are shuffled before steps are cut out of it")
    if job.layout.format != "bshd" or job.layout.options:
        raise Unsupported("no rows of several actions, and no balancing of them")
    return sum(step.size for step in job.steps) * settings.longest_response(job)


def actions_of_micro_batch(job: Job) -> int:
    """The number of rows of a micro-batch; RLinf requires it to divide the rows of a step."""
    return settings.largest_micro_batch(job, actions(job))


_FILE = RecordFile(
    "adapters.rlinf",
    settings,
    globals(),
    balanced=partial(
        settings.require_one_step,
        why="samples of a batch are dealt to ranks before steps are cut out of it",
    ),
    samples_of_prompt=partial(settings.samples_of_prompt, option="algorithm.group_size"),
    # These constants of an embodied policy are written as functions of a job, so that versions are
    # not asked whether they offer the options.
    embodied=lambda _: "embodied",
    mlp_policy=lambda _: "mlp_policy",
    has_value_head=lambda _: True,
)

RLINF = _FILE.record(NOTHING_LEARNED, ZEROED, PROBED)
FSDP2 = _FILE.variant("fsdp2", base=RLINF)
