"""Log-probabilities that are cut out of rows at other positions than masks and advantages.

Mask, advantage and weight then belong to one token, and log-probability, ratio and divergence to a
token that is some positions later or earlier in the row. The distance is found from the observed
numbers, for each micro-batch or sample. For a logged number it follows from the padding of rows to
a multiple of the context-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.objective import CONSTANTS, Metric
from conformance.expected.step_context import of_samples
from conformance.expected.term import PolicyDerivative, PolicyQuantity
from conformance.explain.catalogue.miscounts import widest
from conformance.explain.catalogue.mistake import Kind, Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from conformance.explain.measurement import Measurement
    from reference.arrays import Integers, Mask, Values
    from reference.losses.policy_losses import PolicyTokens


MISALIGNED = "log_probs_misaligned"


FURTHEST = 7
"""The most positions by which rows may be misaligned: padding to a multiple of 8 adds up to 7."""

UNKNOWN = -1.0
"""The log-probability beyond the ends of responses; 0 would make some divergences 0 / 0."""

OF_LOG_PROBS = (Metric.KL, Metric.ENTROPY, Metric.POLICY_KL, Metric.RATIO)
"""Terms whose factors are functions of log-probabilities, so that they are shifted as well."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Responses whose log-probabilities are those of tokens ``shifts`` [N] positions later.

    Losses may be moved beyond a response's ends, to positions of the prompt or of padding. These
    are positions too; old and new policy are equal there.
    """

    context: StepContext
    shifts: Integers

    @cached_property
    def sample(self) -> Integers:
        """The sample of each position."""
        lengths = self.context.step.response_lengths + np.abs(self.shifts)
        return np.repeat(np.arange(self.context.step.size), lengths)

    @cached_property
    def of_log_probs(self) -> Integers:
        """For each position, the place in the response from which its log-probability comes."""
        number = np.arange(len(self.sample))
        first = np.searchsorted(self.sample, self.sample)
        return number - first + np.minimum(self.shifts, 0)[self.sample]

    @cached_property
    def is_own(self) -> Mask:
        """Whether each position's log-probability is that of a response token."""
        return self._is_within(self.of_log_probs)

    def own(self, values: Values, otherwise: float = 0.0) -> Values:
        """Values that are shifted with log-probabilities; ``otherwise`` beyond the response."""
        return np.where(self.is_own, self._at(self.of_log_probs, values), otherwise)

    def moved(self, values: Values) -> Values:
        """Values that belong to losses, by position; 0 at positions without a loss."""
        return self._at(self.of_log_probs - self.shifts[self.sample], values)

    def tokens(self, tokens: PolicyTokens) -> PolicyTokens:
        """The inputs of a policy loss at each position."""
        log_probs, log_ratios = self.own(tokens.log_probs, UNKNOWN), self.own(tokens.log_ratios)
        rollout = self.moved(tokens.log_probs - tokens.log_ratios - tokens.rollout_log_ratios)
        return replace(
            tokens,
            advantages=self.moved(tokens.advantages),
            log_probs=log_probs,
            log_ratios=log_ratios,
            rollout_log_ratios=np.where(self.is_own, log_probs - log_ratios - rollout, 0.0),
            mask=self.moved(tokens.mask.astype(np.float64)) > 0,
            sequence=self.sample,
            batch=of_samples(self.context, tokens.batch)[self.sample],
        )

    def prediction(
        self, term: LossTerm, weights: Values, derivatives: Values | float = 1.0
    ) -> Prediction:
        """The prediction for a term; its numbers times ``derivatives`` give the gradient."""
        return Prediction(
            name=MISALIGNED,
            words=f"losses are applied to the log-probabilities of tokens {self.words}",
            weights=self.moved(weights)[self.is_own],
            factors=self._factors(term, derivatives),
        )

    def _factors(self, term: LossTerm, derivatives: Values | float) -> Values:
        source = term.source
        if isinstance(source, PolicyDerivative):
            return DERIVATIVES[source.objective](self.tokens(source.tokens), CONSTANTS)[self.is_own]
        if isinstance(source, PolicyQuantity):
            return source.of(self.tokens(source.tokens))[self.is_own]
        if term.metric in OF_LOG_PROBS:
            return term.factors
        of_losses = self.moved(term.factors * derivatives)[self.is_own]
        divisors = np.broadcast_to(derivatives, of_losses.shape)
        factors: Values = np.divide(of_losses, divisors, out=of_losses, where=divisors != 0)
        return factors

    @property
    def words(self) -> str:
        """The shifts of log-probabilities, in words."""
        distances = sorted({abs(int(shift)) for shift in self.shifts if shift})
        plural = "" if distances == [1] else "s"
        directions = {"later": self.shifts > 0, "earlier": self.shifts < 0}
        found = [direction for direction, which in directions.items() if which.any()]
        far = " or ".join(map(str, distances))
        return f"{far} position{plural} {' or '.join(found)} in the row"

    def _is_within(self, places: Integers) -> Mask:
        lengths = self.context.step.response_lengths[self.sample]
        return np.asarray((places >= 0) & (places < lengths))

    def _at(self, places: Integers, values: Values) -> Values:
        step = self.context.step
        last = step.response_lengths[self.sample] - 1
        index = step.offsets[:-1][self.sample] + np.clip(places, 0, last)
        return np.where(self._is_within(places), values[index], 0.0)


def shifts_of(measurement: Measurement) -> Integers | None:
    """The shift of each sample's log-probabilities in positions, [N]; None if they are not shifted.

    At least one token must have a gradient that is wrong and not 0.
    """
    observed = measurement.observed
    if not (measurement.is_per_token and np.isfinite(observed).all()):
        return None
    if not (observed[~_fits(measurement, measurement.expected, measurement.magnitude)] != 0).any():
        return None
    candidates = sorted(range(-FURTHEST, FURTHEST + 1), key=lambda shift: (abs(shift), -shift))
    fitting = np.stack([_fits_shifted(measurement, shift) for shift in candidates])
    for part in _parts(measurement.context):
        wrong = np.stack([np.bincount(part, weights=~fits) for fits in fitting])
        if not wrong.min(axis=0).any():
            of_tokens = np.array(candidates)[wrong.argmin(axis=0)][part]
            return of_samples(measurement.context, of_tokens)
    return None


def _parts(context: StepContext) -> Iterator[Integers]:
    """Yield ways to divide a step into parts that may each have a shift of their own: [tokens]."""
    if context.placement is not None:
        yield context.placement.micro_batch_number
    yield context.sample


def _fits_shifted(measurement: Measurement, shift: int) -> Mask:
    """Whether each token's number is the one predicted if all rows are off by ``shift``."""
    context = measurement.context
    rows = _Rows(context=context, shifts=np.full(context.step.size, shift))
    numbers, sizes = np.zeros(len(measurement.observed)), measurement.others
    for term in measurement.terms:
        found = rows.prediction(term, term.context.expected, measurement.derivatives)
        products = found.products(term)
        numbers = numbers + products
        sizes = sizes + np.abs(products) + np.abs(found.weights) * term.rounding
    return _fits(measurement, numbers, sizes)


def _fits(measurement: Measurement, numbers: Values, sizes: Values | float) -> Mask:
    off = np.abs(measurement.observed - numbers)
    return np.asarray(off <= measurement.tolerance * sizes)


def misaligned(
    term: LossTerm, shifts: Integers | None, derivatives: Values | float
) -> Iterator[Prediction]:
    """Yield the prediction for a term of a gradient if log-probabilities are off by ``shifts``."""
    if shifts is not None:
        rows = _Rows(context=term.context, shifts=shifts)
        yield rows.prediction(term, term.context.expected, derivatives)


def misaligned_by_padding(term: LossTerm, parts: Iterable[Prediction]) -> Iterator[Prediction]:
    """Yield predictions for a logged number if responses are cut from the ends of padded rows.

    Rows are padded to a multiple of the context-parallel ranks. The number may be meant as a mean
    of means, so each such prediction in ``parts`` is combined with the misalignment.
    """
    if term.metric not in OF_LOG_PROBS and not isinstance(term.source, PolicyQuantity):
        return
    context = term.context
    cp, placement = context.layout.cp, context.placement
    if cp == 1 or context.layout.format != "bshd" or placement is None:
        return
    lengths = context.step.prompt_lengths + context.step.response_lengths
    widths = widest(lengths, of_samples(context, placement.micro_batch_number))
    rows = _Rows(context=context, shifts=-widths % cp)
    if rows.shifts.any():
        yield rows.prediction(term, context.expected)
        of_parts = (one for one in parts if one.kind is Kind.PARTS and not one.together)
        yield from (rows.prediction(term, one.weights) for one in of_parts)
