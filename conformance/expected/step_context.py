"""One optimizer step with everything that its weights depend on, and its expected weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.layout import Option
from conformance.expected.placement import (
    FilledRows,
    TokenPlacement,
    filled_rows,
    token_placement,
)
from conformance.findings.errors import UnknownCutError
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    Conventions,
    EmptyUnits,
    MicroBatchWeight,
    Mode,
    auxiliary_aggregation,
)
from reference.weights import counted_tokens, token_weights, unit_of_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adapters.contract import Layout
    from reference.step import Step


class ExpectedNumber(NamedTuple):
    """A number that the reference expects, named by everything that may change it except the case.

    Within a run, all numbers with the same name and case must be equal: the name contains mode,
    layout and micro-batches if the number may depend on them.
    """

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StepContext:
    """One optimizer step of a batch, its aggregation and how it was cut into forward passes.

    Contexts are equal if they refer to the same steps and all other fields are equal.
    """

    steps: tuple[Step, ...]
    step_index: int
    aggregation: Aggregation
    conventions: Conventions
    layout: Layout
    forward_pass_of_token: NDArray[np.int32] | None
    """Index of the forward pass in which each rank held each token, if known: [ranks, tokens]."""

    rows_of_passes: NDArray[np.int32] | None = None
    """The number of rows of each forward pass, if known: [data-parallel ranks, passes]."""

    per_micro_batch: bool = False
    """Whether the loss is a mean of micro-batch losses, each with the aggregation."""

    is_skipped: bool = False
    """Whether the trainer threw the gradient away and made no optimizer step."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepContext) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        arrays = self.forward_pass_of_token, self.rows_of_passes
        return (
            self.steps,
            self.step_index,
            self.aggregation,
            self.conventions,
            self.layout,
            *(None if known is None else (known.shape, known.tobytes()) for known in arrays),
            self.per_micro_batch,
            self.is_skipped,
        )

    @cached_property
    def untrained(self) -> NDArray[np.bool_]:
        """Tokens that no rank is known to have held: [tokens]."""
        if self.forward_pass_of_token is None:
            return np.zeros(len(self.step.mask), np.bool_)
        untrained: NDArray[np.bool_] = np.less(self.forward_pass_of_token.max(axis=0), 0)
        return untrained

    @cached_property
    def placement(self) -> TokenPlacement | None:
        """The placement of the step's tokens; None unless it is known for every token."""
        if self.forward_pass_of_token is None or self.untrained.any():
            return None
        return token_placement(self.forward_pass_of_token, self.layout)

    @property
    def known_placement(self) -> TokenPlacement:
        """The placement of the step's tokens; raises `UnknownCutError` if it is not known."""
        if self.placement is None:
            raise UnknownCutError(
                f"{self.aggregation.mode} of micro-batches is declared, and not in which forward"
                " pass every token was; have the adapter tell its forward passes"
            )
        return self.placement

    @cached_property
    def filled_rows(self) -> FilledRows | None:
        """The rows of each token's micro-batch; None unless some rows are known to be repeated."""
        rows, passes, placement = self.rows_of_passes, self.forward_pass_of_token, self.placement
        if rows is None or passes is None or placement is None or rows.sum() == self.step.size:
            return None
        return filled_rows(rows, passes, placement, self.layout, self.most_micro_batches)

    @property
    def most_micro_batches(self) -> int:
        """The largest number of micro-batches of any rank.

        Micro-batches without samples count if they are known to belong to this step, which is not
        known in a batch of several steps.
        """
        if self.placement is None:
            raise ValueError("it is not known how the step was cut into micro-batches")
        if self.rows_of_passes is None:
            return int(self.placement.micro_batches.max())
        if len(self.steps) > 1:
            return int((self.rows_of_passes > 0).sum(axis=1).max())
        return int(self.rows_of_passes.shape[1])

    @property
    def step(self) -> Step:
        """The step that is judged."""
        return self.steps[self.step_index]

    @property
    def mode(self) -> Mode:
        """The mode of the aggregation."""
        return self.aggregation.mode

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """The reference's weights: [tokens]."""
        if self.per_micro_batch:
            return self.micro_batch_means
        return token_weights(self.step, self.aggregation, self.conventions)

    def of_term(self, how: AuxiliaryAggregation | None) -> StepContext:
        """The context of an auxiliary term; the same context if ``how`` is None."""
        if how is None:
            return self
        aggregation = auxiliary_aggregation(self.aggregation, how)
        return replace(self, aggregation=aggregation, per_micro_batch=how.depends_on_cut)

    def before_rejection(self) -> StepContext:
        """The context of a term over the mask before rejection sampling."""
        steps = (
            replace(step, mask=step.mask_before_rejection, original_mask=None)
            for step in self.steps
        )
        return replace(self, steps=tuple(steps))

    @property
    def fingerprint(self) -> ExpectedNumber:
        """A checksum of all expected weights, named by everything that may change them."""
        ordinals = np.arange(1, len(self.expected) + 1)
        return ExpectedNumber(f"weights of {self.scope}", math.fsum(self.expected * ordinals))

    @property
    def scope(self) -> str:
        """Everything that the expected weights may depend on, besides the case."""
        divisor = "" if self.aggregation.divisor is None else f":{self.aggregation.divisor:g}"
        weight = self.conventions.micro_batch_weight
        where = f" of {weight} micro-batches on {self.layout}" if self.per_micro_batch else ""
        return f"step {self.step_index}, {self.mode}{divisor}{where}"

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Index of the sample that each response token belongs to: [tokens]."""
        return np.repeat(np.arange(self.step.size), self.step.response_lengths)

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """Index of the unit that each sample belongs to: [N]."""
        return unit_of_sample(self.step, self.mode, self.conventions)

    @property
    def counted(self) -> NDArray[np.int64]:
        """For each sample, the number of its tokens that denominators count: [N]."""
        return counted_tokens(self.step, self.conventions)

    @property
    def units(self) -> int:
        """Number of units; empty units are left out unless the conventions count them."""
        tokens = np.bincount(self.unit, weights=self.counted)
        counted = self.conventions.empty_units is EmptyUnits.COUNTED
        return len(tokens) if counted else max(int((tokens > 0).sum()), 1)

    @cached_property
    def micro_batch_means(self) -> NDArray[np.float64]:
        """Weights of a mean of micro-batch means, over all ranks: [tokens].

        A micro-batch's mean is over samples if the mode is `sample_mean`, else over tokens.
        Micro-batches without active tokens add 0 and count; padding micro-batches do not count.
        """
        placement = self.known_placement
        batch = placement.micro_batch_number
        micro_batches = (placement.micro_batches * self.layout.dp).astype(np.float64)
        if self.conventions.micro_batch_weight is MicroBatchWeight.BY_SAMPLES:
            micro_batches = by_samples(self, placement)
        if self.mode is Mode.SAMPLE_MEAN:
            return self.weights(units=micro_batches * units_held(self.sample, batch))
        tokens = np.bincount(batch, weights=self.step.mask).astype(np.float64)[batch]
        return self.weights(tokens, micro_batches)

    def weights(
        self,
        tokens: NDArray[np.float64] | None = None,
        units: NDArray[np.float64] | float | None = None,
    ) -> NDArray[np.float64]:
        """1 / (units · tokens of the unit) for active tokens, else 0: [tokens].

        ``tokens`` [N or tokens] replaces the tokens of each unit, ``units`` the number of units.
        """
        counted = self.unit_tokens if tokens is None else tokens
        per_token = counted[self.sample] if len(counted) == self.step.size else counted
        counted_units = self.units if units is None else units
        denominators = np.broadcast_to(counted_units * per_token, self.step.mask.shape)
        active = self.step.mask & (denominators > 0)
        return np.divide(1.0, denominators, out=np.zeros(len(active)), where=active)

    @cached_property
    def unit_tokens(self) -> NDArray[np.float64]:
        """For each sample, the number of its unit's tokens, or the divisor L if one is set: [N]."""
        return self.tokens_if(self.counted)

    def tokens_if(self, of_samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """`unit_tokens` if samples have ``of_samples`` tokens: [N]."""
        if self.aggregation.divisor is not None:
            return np.full(self.step.size, self.aggregation.divisor)
        tokens = np.bincount(self.unit, weights=of_samples)
        return tokens[self.unit].astype(np.float64)


def truncated_samples(step: Step, layout: Layout) -> NDArray[np.bool_]:
    """The samples that the layout's truncation filter masks; none if it has no filter: [N].

    All of their tokens are active before the filter, so a rank holds and may count the tokens.
    """
    is_filtered = Option.MASKED_TRUNCATION in layout.options
    return np.asarray((step.original_tokens == 0) & is_filtered)


def by_samples(context: StepContext, placement: TokenPlacement) -> NDArray[np.float64]:
    """Divisor of each token's micro-batch mean if samples weight the mean of means: [tokens]."""
    of_rank = units_held(context.sample, placement.dp_rank) * context.layout.dp
    return of_rank / units_held(context.sample, placement.micro_batch_number)


def units_held(unit: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.float64]:
    """Number of units with tokens in the same part as each token: [tokens].

    ``label`` numbers the part, such as a rank or micro-batch, of each token.
    """
    units = int(unit.max()) + 1
    part_of_pair = np.unique(label * units + unit) // units
    return np.bincount(part_of_pair).astype(np.float64)[label]


def of_samples(context: StepContext, of_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of each sample, [N], given a per-token value that is constant within samples."""
    return of_tokens[context.step.offsets[:-1]]
