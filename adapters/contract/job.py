"""The input of ranks, a job, and their output: an observation of the framework's behaviour.

A job for startup validation has a configuration that differs in a few settings from an ordinary
job's.
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
    from reference.arrays import Gradient, Values
    from reference.step import Step


class Depth(StrEnum):
    """The depth of the framework's own code that a job runs."""

    REDUCER = "reducer"  # the reduction function alone, with token losses as input
    LOSS = "loss"  # the whole loss function with its scaling
    STEP = "step"  # the whole train step up to the gradient that the optimizer gets


class Setting(StrEnum):
    """A setting that a configuration may change from the value implied by mode and layout."""

    MODE = "mode"  # the reduction mode, which may also be left to the default
    DIVISOR = "divisor"  # the divisor of mode `constant`, as typed
    PER_TOKEN = "per_token"  # the older flag for mode `token_mean`
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
    # a custom conversion leaves out the denominators of `prompt_mean`
    DENOMINATORS_DROPPED = "denominators_dropped"
    BOUNDARY_GAP = "boundary_gap"  # a sample between two prompt groups belongs to no group
    BOUNDARY_OVERLAP = "boundary_overlap"  # a sample belongs to two adjacent prompt groups
    BOUNDARY_SHORT = "boundary_short"  # the last prompt group ends before the last sample


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Changes to the configuration that the job's mode and layout imply, each a `Setting`.

    ``says_mode`` is False if the mode is left to the framework's default. A ``divisor`` of None
    stands for the job's divisor, and an empty text for no divisor. The custom reducer divides sums
    by `REDUCER_DIVISOR` in every mode. A ``batch_size`` of None stands for the job's. ``distils``
    subtracts the divergence from a teacher, times `KL_COEFFICIENT`, from advantages that the
    framework computes. ``in_file`` has the settings that are made in a configuration file.
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
        """The settings that differ from the settings implied by the job."""
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
    """A column of the batch that is given to a framework, by its name in `ProbedBatch`."""

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
    REWARDS = "rewards"  # one per sample


class Paint(NamedTuple):
    """The only token of a batch with a non-zero value in a column.

    ``sample`` counts over all steps, ``token`` within the response. ``id`` is the token's id if the
    gradients of all other tokens are multiplied by 0.
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
    """Values that replace the framework's own at an operation of a source line.

    They replace the result, or the tensor or Python number at ``position`` among the operands of
    its kind. ``columns`` are the source columns of the expression, None if unknown. ``caller`` is
    the line from which the function must have been called, None if any caller counts. ``entries``
    has values by rank and by the number of earlier calls of the line; other calls are left
    unchanged. If ``entries`` is None, each entry of the tensor is multiplied by its own mark, or
    replaced by the mark if the entry is 0.
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
    """New text for a statement, or for the header of a compound statement, in a framework's file.

    ``span`` is the position of the replaced text: first line and column, last line and column, as
    in `ast`.
    """

    file: str
    span: tuple[int, int, int, int]
    text: str


class FileVersions(NamedTuple):
    """Other versions of a framework's files, whose functions run in place of the imported ones."""

    texts: tuple[tuple[str, str], ...]
    """The path and the other text of each file."""


CodeChange = Edit | FileVersions

MARKS = 4096
"""The mark of rank 0's first entry, and the number of marks of each rank. Marks are so small that
all their products with counts are exact in float32."""


def mark(rank: int, index: int) -> int:
    """The mark of the entry with an index, counted over all entries that a rank replaces."""
    return MARKS * (1 + rank) + index


class Defaults(StrEnum):
    """The ways in which options of a job's loss get their documented defaults."""

    LEFT_OUT = "left_out"
    TYPED = "typed"


class Place(StrEnum):
    """The groups of tokens that can be poisoned in a column."""

    MASKED = "masked tokens"
    OUTSIDE = "prompts and padding"
    REJECTED = "rejected tokens"
    CLIPPED = "tokens whose ratio is beyond its upper bound"


POISONS = (math.nan, math.inf, -math.inf, 1e30)
"""Values that no token's loss may depend on. Three of them do not become 0 when multiplied by 0."""

OVERFLOWS = (-100.0, -1e4, -1e30, -math.inf)
"""Log-probabilities of an earlier policy that make the importance ratio infinite in float32."""


@dataclass(frozen=True, kw_only=True)
class Poison:
    """Values that replace a column's values at some tokens, cycled over token ids."""

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
    """The column whose values require a gradient, as if a model had been run without ``no_grad``.
    """
    defaults: Defaults | None = None
    """The way in which options get their documented defaults; None if they have the values that
    other jobs set."""
    painted: Paint | None = None
    """The only entry of a column with a non-zero value, if any."""
    replaced: Replacement | CodeChange | None = None
    """A value or code that replaces the framework's own in an experiment."""

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
    """The framework does not support the job's mode, depth or layout; the message says which."""


class Refused(Exception):  # noqa: N818 - a verdict, not an error
    """The framework declined to run, before any step, with one of its own errors."""


class PendingReduction(StrEnum):
    """The reduction that the rest of a train step would apply to the ranks' gradients."""

    REPLICATED = "replicated"  # no reduction: every rank holds the final gradient
    SUM = "sum"
    MEAN = "mean"
    SUM_PER_COUNTED_TOKEN = "sum_per_counted_token"  # sum, divided by the counted tokens
    SUM_PER_TOKEN = "sum_per_token"  # sum, divided by the active tokens of the step
    # sum, divided by the samples of the step, as conventions count them
    SUM_PER_SAMPLE = "sum_per_sample"


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """Sums of a micro-batch by name; ``count`` divides all, ``normalizers`` divide single sums."""

    keys: tuple[str, ...]
    values: tuple[float, ...]
    count: float = 1.0
    normalizers: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """The observation of one rank, with an entry for each step of the job.

    ``token_weights`` has the weight of every response token, float64 and flat like ``Step.mask``.
    ``counted_tokens`` is the framework's token count on this rank, for `SUM_PER_COUNTED_TOKEN`.
    ``forward_passes`` has the index of the forward pass in which this rank held each response
    token, or -1, and thus describes how the framework cut the step. It is empty if the adapter does
    not report it. ``rows`` has, for each of these forward passes, the number of rows that hold a
    sample of the step. The sum exceeds the number of samples if a framework repeats samples as
    padding. ``rows`` may be empty too. ``skipped_steps`` are the steps whose gradient the trainer
    discarded because it was NaN or infinite: their weights are 0. All these fields may be empty on
    a pipeline stage without a probe; only the last stage must have a probe. ``reported`` are the
    metrics that the framework logs on this rank, after its own reduction over micro-batches and
    ranks; None if this rank logs none. Metrics of rollouts (`OF_ROLLOUTS`) have one entry for the
    batch. Unknown metrics are absent. ``reported`` is empty below depth `step`.
    """

    token_weights: tuple[Values, ...]
    pending_reduction: PendingReduction = PendingReduction.REPLICATED
    counted_tokens: tuple[float, ...] = ()
    forward_passes: tuple[NDArray[np.int32], ...] = ()
    rows: tuple[NDArray[np.int32], ...] = ()
    skipped_steps: frozenset[int] = frozenset()
    reported: Mapping[Metric, tuple[float | None, ...]] = field(default_factory=dict)
    logged: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """All numbers of the framework's logs, by their names in the logs. Adapters do not set it."""

    logs_together: bool = False
    """Whether each logged number covers several optimizer steps, so that ``reported`` cannot have
    one for each step."""

    own_losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The result of `ProbedBatch.own_losses`, for `Objective.ROUTER`."""

    routed: int = 0
    """The number of positions, padding included, by which router losses were multiplied, as in
    Megatron-Core with a loss per token. Adapters do not set it."""

    attached_gradient: Gradient | None = None
    """The gradient of the attached column, by token id, which should be 0; None if no column is
    attached. Adapters do not set it."""

    reads_poison: bool = False
    """Whether the adapter has read the poisoned column. Adapters do not set it."""
