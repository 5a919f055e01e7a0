"""The records of TRL's trainers: fields of their configurations, and TRL's documents."""

from __future__ import annotations

from dataclasses import replace

from adapters.contract import Job, Metric, Unsupported
from adapters.contract.tables import RecordFile, read_departures
from adapters.engines import generations, shells
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.trainers import OF_RUNS
from adapters.toolkit import settings

ESTIMATOR = "trl/trainer/grpo_config.py, use_bias_correction_kl"
"""The place of TRL's documentation of the estimator: k3, times the ratio if the option is on."""


def divisor(job: Job) -> int | str:
    """The divisor as typed in a configuration, else the mode's; empty if there is none."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    is_one = job.aggregation.divisor == 1  # luspo's divisor, which no option sets
    return "" if is_one else settings.whole_divisor(job, "max_completion_length") or ""


def samples_of_prompt(job: Job) -> int:
    """The samples of a prompt; raises `Unsupported` if TRL requires more."""
    schedule = schedule_of(job)
    if schedule.generation_size < 2:
        raise Unsupported(f"a generation of {schedule.generation_size} sample: TRL needs 2")
    return generations_of_prompt(job, schedule)


def one_more_micro_batch(job: Job) -> int:
    """The number of micro-batches of an accumulation window, one more than an epoch has."""
    return schedule_of(job).micro_batches + 1


_FILE = RecordFile("adapters.trl", settings, generations, globals(), runs=OF_RUNS)
_TRL = _FILE.record(
    shells.OF_VALUES, shells.OF_HUB, shells.OF_DTYPE, shells.NOTHING_LEARNED, shells.ZEROED
)
_GENERATING = (
    *read_departures("adapters.trl", "generating"),
    shells.OF_POLICIES,
    shells.OF_PROMPTS,
)

GRPO = _FILE.variant("grpo", *_GENERATING, base=_TRL)
GRPO = replace(GRPO, options=(*GRPO.options, *shells.GRPO_OPTIONS))
RLOO = _FILE.variant("rloo", *_GENERATING, base=_TRL)
ASYNC = _FILE.variant("async", base=_TRL)

# With Liger-Kernel, TRL logs no entropies.
_METRICS: dict[Metric, str] = {
    metric: name for metric, name in GRPO.metrics.items() if metric != Metric.ENTROPY
}
LIGER = _FILE.variant("liger", base=replace(GRPO, metrics=_METRICS))
