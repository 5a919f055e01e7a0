"""The records of ROLL: options of its RLVR pipeline as users type them, and its documents."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial

from adapters.contract import Job, Layout, Objective, Unsupported
from adapters.contract.objective import CONSTANTS, OF_CRITIC
from adapters.contract.tables import RecordFile
from adapters.engines.shells import NOTHING_LEARNED, PIPELINE_STAGES, ZEROED
from adapters.toolkit import settings

POLICY_GRADIENT_WORKER = "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"
ENGINE = "actor_train.strategy_args.strategy_config"
SIZES = "actor_train.training_args"


def _width(job: Job, slices: int) -> int:
    """The length that rows are padded to, by which `seq-mean-token-sum-norm` divides.

    Rows are cut into slices of equal length: `get_feature_on_cp_rank` asserts this on FSDP2, and
    mcore_adapter documents it for `get_batch_on_this_cp_rank`. Raises `Unsupported` if no such
    length gives the job's divisor.
    """
    divisor = job.aggregation.divisor
    longest = max(int((step.prompt_lengths + step.response_lengths).max()) for step in job.steps)
    if divisor is None or divisor == 1:
        return _rounded_up(longest, slices)
    width = divisor + 1
    if width < longest:
        raise Unsupported(f"the divisor plus 1 is sequence_length, {width:g}: not {longest} tokens")
    if width % slices:
        raise Unsupported(
            f"the divisor plus 1 is sequence_length, {width:g}, which ROLL cuts into {slices} equal"
            " slices"
        )
    return int(width)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def width_for_ulysses(job: Job) -> int:
    """The padded length of rows on FSDP2, whose context-parallel ranks have one slice each."""
    return _width(job, job.layout.cp)


def width_for_slices(job: Job) -> int:
    """The padded length of rows on Megatron."""
    return _width(job, slices(job))


def slices(job: Job) -> int:
    """The number of slices of a row: each context-parallel rank has one from each half.

    With dynamic batching each micro-batch has its own width, with packing each row. Raises
    `Unsupported` if `seq-mean-token-sum-norm` divides by such widths and the objective is not the
    plain policy loss, since a mistake in widths would combine with another mistake.
    """
    divides_by_width = job.aggregation.divisor not in (None, 1)
    if divides_by_width and rows_differ(job.layout) and job.objective is not Objective.POLICY:
        raise Unsupported("rows differ in width, the divisor: looked at without other terms")
    return 2 * job.layout.cp if job.layout.cp > 1 else 1


def rows_differ(layout: Layout) -> bool:
    """Whether widths of rows differ: with dynamic batching, or with packing."""
    return layout.micro_batches == "tokens" or layout.format == "thd"


def rounded_budget(job: Job) -> int:
    """The token budget of micro-batches, rounded up to a multiple of the slices of a row."""
    return _rounded_up(settings.rank_budget(job), slices(job))


def micro_batches(job: Job) -> int:
    """The number of a rank's micro-batches per step; of its samples if tokens cut micro-batches."""
    count = job.layout.micro_batches
    return count if isinstance(count, int) else settings.samples_per_step(job) // job.layout.dp


def worker(job: Job) -> str:
    """The policy-gradient worker; raises `Unsupported` if its metrics differ from the job's."""
    if job.objective in (Objective.OFF_POLICY, Objective.REJECTION_OFF_POLICY):
        raise Unsupported(
            "the worker of policy gradients logs ratios out of bounds, and not whether they are"
            " clipped"
        )
    return POLICY_GRADIENT_WORKER


def devices(job: Job) -> str:
    """The devices of a worker's ranks."""
    return f"list(range({job.layout.world_size}))"


_FILE = RecordFile(
    "adapters.roll",
    settings,
    globals(),
    folder=tempfile.gettempdir(),
    half_of_dual_clip=(CONSTANTS.dual_clip - 1) / 2,
    samples_of_prompt=partial(settings.samples_of_prompt, option="num_return_sequences_in_group"),
    whitens=partial(
        settings.require_one_step,
        why="each step is a batch of rollouts, whose advantages are whitened alone",
    ),
)

ROLL = _FILE.record(NOTHING_LEARNED, ZEROED)
FSDP2 = _FILE.variant("fsdp2", base=ROLL)

# ROLL has no critic on Megatron.
_WITHOUT_CRITIC = {one: of for one, of in ROLL.objectives.items() if one not in OF_CRITIC}
MEGATRON = _FILE.variant(
    "megatron", PIPELINE_STAGES, base=replace(ROLL, objectives=_WITHOUT_CRITIC)
)
