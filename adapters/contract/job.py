"""The input of ranks, a job, and their output, an observation of a framework.

A job for startup validation has a configuration that differs in a few points from other jobs'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.objective import Metric, Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract.layout import Layout
    from reference.aggregation import Aggregation
    from reference.step import Step


class Depth(StrEnum):
    """The depth of the framework's own code that a job runs."""

    REDUCER = "reducer"  # the reduction function alone, with token losses as input
    LOSS = "loss"  # the whole loss function with its scaling
    STEP = "step"  # the whole train step up to the gradient that the optimizer gets


class Setting(StrEnum):
    """A setting in which the configuration of a run may differ from what its job implies."""

    MODE = "mode"  # which may also be left to the default
    DIVISOR = "divisor"  # of `constant`, as typed
    PER_TOKEN = "per_token"  # the older flag for `token_mean`
    ENTROPY = "entropy"  # an entropy bonus besides the policy loss
    KL = "kl"  # a divergence from a reference policy besides the policy loss
    BATCH_SIZE = "batch_size"  # the number of samples of an optimizer step
    CORRECTION = "correction"  # a custom function for truncated importance sampling
    REDUCER = "reducer"  # a custom reducer of the policy loss
    DISTILLATION = "distillation"  # the divergence from a teacher in the advantages
    CONFIG_FILE = "config_file"  # a configuration file that is read after the command line


class FaultInjection(StrEnum):
    """A fault in the samples or train data that reach the loss."""

    GROUPS_MISSING = "groups_missing"  # samples have no prompt group
    GROUP_INCOMPLETE = "group_incomplete"  # the first prompt group lacks a sample
    DENOMINATORS_DROPPED = "denominators_dropped"  # a custom conversion leaves out `prompt_mean`'s
    BOUNDARY_GAP = "boundary_gap"  # a sample between two prompt groups belongs to none
    BOUNDARY_OVERLAP = "boundary_overlap"  # a sample belongs to two adjacent prompt groups
    BOUNDARY_SHORT = "boundary_short"  # the last prompt group ends before the last sample


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration of a run, where it differs from what the job's mode and layout imply.

    ``says_mode`` is False if the mode is left to the default; ``per_token`` is the older flag for
    `token_mean`. ``divisor`` is the text typed: the job's divisor if None, no divisor if empty.
    ``entropy`` and ``kl`` switch on auxiliary losses; ``corrects`` sets a custom function for
    truncated importance sampling, ``reduces`` a custom reducer of the policy loss, which divides
    sums by `REDUCER_DIVISOR` in every mode. ``batch_size`` is the number of samples of an optimizer
    step, the job's if None. ``distils`` subtracts the divergence from a teacher, times
    `KL_COEFFICIENT`, from advantages that the framework computes. ``in_file`` are the settings in a
    configuration file instead of the command line.
    """

    says_mode: bool = True
    per_token: bool = False
    divisor: str | None = None
    entropy: bool = False
    kl: bool = False
    corrects: bool = False
    reduces: bool = False
    batch_size: int | None = None
    distils: bool = False
    in_file: frozenset[Setting] = frozenset()
    fault_injection: FaultInjection | None = None

    @property
    def settings(self) -> frozenset[Setting | FaultInjection]:
        """The settings in which it differs from what the job implies."""
        chosen: dict[Setting | FaultInjection, bool] = {
            Setting.MODE: not self.says_mode,
            Setting.DIVISOR: self.divisor is not None,
            Setting.PER_TOKEN: self.per_token,
            Setting.ENTROPY: self.entropy,
            Setting.KL: self.kl,
            Setting.BATCH_SIZE: self.batch_size is not None,
            Setting.CORRECTION: self.corrects,
            Setting.REDUCER: self.reduces,
            Setting.DISTILLATION: self.distils,
            Setting.CONFIG_FILE: bool(self.in_file),
        }
        faults = () if self.fault_injection is None else (self.fault_injection,)
        return frozenset([*(setting for setting, is_set in chosen.items() if is_set), *faults])


DEFAULT_CONFIGURATION = Configuration()
REDUCER_DIVISOR = 64.0  # the divisor of the custom reducer


class Column(StrEnum):
    """A column of a batch that a framework is given, by its name in `ProbedBatch`."""

    OLD_LOG_PROBS = "old_log_probs"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    ROLLOUT_LOG_PROBS = "rollout_log_probs"
    ADVANTAGES = "advantages"
    VALUES = "values"
    OLD_VALUES = "old_values"
    RETURNS = "returns"
    LOG_PROBS = "log_probs"
    ENTROPIES = "entropies"
    TEACHER_LOG_PROBS = "teacher_log_probs"
    REWARDS = "rewards"  # of samples


class Paint(NamedTuple):
    """The only token of a batch that has a value in a column, where every other has none.

    ``sample`` counts over all steps, ``token`` within the response. ``id`` is the token's, if the
    gradient of all others is multiplied by 0.
    """

    sample: int
    token: int
    column: Column = Column.ADVANTAGES
    id: int | None = None


class Operand(StrEnum):
    """The replaced tensor of an operation."""

    RESULT = "result"
    TENSOR = "tensor"
    NUMBER = "number"


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Values that are put in place of a framework's own, wherever a line asks for an operation.

    They replace the result, or the tensor or Python number at ``position`` among the operands of
    its kind. ``columns`` are those of the expression, None if they are not known. ``caller`` is the
    line that must have called its function, None if any may have. ``entries`` has values by rank
    and by the number of earlier calls of the line; calls that it lacks are left alone. If it is
    None, each entry is multiplied by a mark of its own, or replaced by the mark if it is 0.
    """

    file: str
    line: int
    columns: tuple[int, int] | None
    operation: str
    operand: Operand
    position: int = 0
    caller: tuple[str, int] | None = None
    entries: tuple[tuple[tuple[float, ...], ...], ...] | None = None


class Edit(NamedTuple):
    """Another text of a statement, or of the header of a compound one, in a framework's file.

    ``span`` is that of the text it replaces: its first line and column, and its last ones, as
    `ast` has them.
    """

    file: str
    span: tuple[int, int, int, int]
    text: str


MARKS = 4096
"""The first mark, and how many a rank has: all products with counts are exact in float32."""


def mark(rank: int, index: int) -> int:
    """The mark of an entry, counted over all that a rank replaces."""
    return MARKS * (1 + rank) + index


class Defaults(StrEnum):
    """The way in which a job gets the documented defaults of its loss's options."""

    LEFT_OUT = "left_out"
    TYPED = "typed"


class Place(StrEnum):
    """The place of poison in a column."""

    MASKED = "masked tokens"
    OUTSIDE = "prompts and padding"
    REJECTED = "rejected tokens"
    CLIPPED = "tokens whose ratio is beyond its upper bound"


POISONS = (math.nan, math.inf, -math.inf, 1e30)
"""Values that no token's loss may depend on: multiplied by 0, three of them are not 0."""

OVERFLOWS = (-100.0, -1e4, -1e30, -math.inf)
"""Log-probabilities of an earlier policy that make the ratio to it infinite in float32."""


@dataclass(frozen=True, kw_only=True)
class Poison:
    """Values that stand in a column at some tokens, cycled over their token ids."""

    column: Column
    place: Place = Place.MASKED
    values: tuple[float, ...] = POISONS

    def __str__(self) -> str:
        return f"{self.column} of {self.place}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The optimizer steps of one batch of rollouts, to run on all ranks of a layout."""

    steps: tuple[Step, ...]
    aggregation: Aggregation
    layout: Layout
    depth: Depth
    objective: Objective = Objective.POLICY
    configuration: Configuration = DEFAULT_CONFIGURATION
    poison: Poison | None = None
    attached: Column | None = None
    """The column whose values have a gradient, as if a model was run without ``no_grad``."""
    defaults: Defaults | None = None
    """The way in which options get their documented defaults; None if all jobs' values are used."""
    painted: Paint | None = None
    """The only entry with a value."""
    replaced: Replacement | Edit | None = None
    """A value or statement that replaces one of the framework's own, in a job of an experiment."""

    is_recorded: bool = False
    """Whether the operations of all ranks are recorded, for a trace."""

    @property
    def rejects(self) -> bool:
        """Whether rejection sampling removes tokens."""
        return any(step.original_mask is not None for step in self.steps)

    @property
    def lacks_rewards(self) -> bool:
        """Whether some samples have no reward, given as NaN."""
        given = [step.rewards for step in self.steps if step.rewards is not None]
        return any(math.isnan(reward) for rewards in given for reward in rewards)


class Unsupported(Exception):  # noqa: N818 - a verdict, not an error
    """The framework has no such mode, depth or layout; the message says which."""


class Refused(Exception):  # noqa: N818 - a verdict, not an error
    """The framework declined to run, before any step, with an error of its own."""


class PendingReduction(StrEnum):
    """The reduction that the rest of a train step would apply to the ranks' gradients."""

    REPLICATED = "replicated"  # none: every rank holds the final gradient
    SUM = "sum"
    MEAN = "mean"
    SUM_PER_COUNTED_TOKEN = "sum_per_counted_token"  # sum, divided by the counted tokens
    SUM_PER_TOKEN = "sum_per_token"  # sum, divided by the active tokens of the step
    SUM_PER_SAMPLE = "sum_per_sample"  # by its samples, as conventions count them


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """Sums of a micro-batch by name: ``count`` divides all, ``normalizers`` each its own."""

    keys: tuple[str, ...]
    values: tuple[float, ...]
    count: float = 1.0
    normalizers: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """The observation of one rank, with an entry for each step of the job.

    ``token_weights`` has the weight of every response token, float64 and flat like ``Step.mask``.
    ``counted_tokens`` are those that the framework counted here, for `SUM_PER_COUNTED_TOKEN`.
    ``forward_passes`` has the index of the forward pass in which this rank held each response
    token, or -1: how the framework cut the step. It is empty if the adapter does not report it.
    ``rows`` has, for each of these forward passes, how many rows hold a sample of the step: more
    than it has samples where a framework repeats some to fill up. It may be empty too.
    ``skipped_steps`` are those whose gradient the trainer threw away, as it was NaN or infinite:
    their weights are 0.
    All of these may be empty on a pipeline stage without a probe, which only the last must have.
    ``reported`` are the metrics that the framework logs on this rank, after its own reduction over
    micro-batches and ranks; None if this rank logs none. Those of rollouts (`OF_ROLLOUTS`) have one
    entry for the batch. Unknown metrics are absent; empty below depth `step`.
    """

    token_weights: tuple[NDArray[np.float64], ...]
    pending_reduction: PendingReduction = PendingReduction.REPLICATED
    counted_tokens: tuple[float, ...] = ()
    forward_passes: tuple[NDArray[np.int32], ...] = ()
    rows: tuple[NDArray[np.int32], ...] = ()
    skipped_steps: frozenset[int] = frozenset()
    reported: Mapping[Metric, tuple[float | None, ...]] = field(default_factory=dict)
    logged: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """All numbers of the framework's logs by its own names. Adapters do not set it."""

    logs_together: bool = False
    """Whether each logged number is of several optimizer steps, which ``reported`` cannot tell."""

    own_losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """As `ProbedBatch.own_losses` reads them, for `Objective.ROUTER`."""

    routed: int = 0
    """The positions, padding included, whose router losses were multiplied by their number, as
    Megatron-Core does with a loss per token. Adapters do not set it."""

    attached_gradient: NDArray[np.float32] | None = None
    """The gradient that reached an attached column, by token id, which should be 0; None if no
    column is attached. Adapters do not set it."""

    reads_poison: bool = False
    """Whether the adapter has read the column that is poisoned. Adapters do not set it."""
