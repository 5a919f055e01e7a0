"""Diagnoses tokens with no weight or twice their weight, while all other tokens are right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option
from conformance.expected.term import PolicyDerivative, ValueDerivative
from conformance.explain.catalogue.mistake import Prediction
from conformance.explain.catalogue.parts import filled_up
from conformance.findings.finding import Diagnosis
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conformance.expected.placement import TokenPlacement
    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from conformance.explain.measurement import ObservedWeights
    from reference.arrays import Integers, Mask, Values

    Matches = Callable[[Values], bool]


FIRST_OF_SLICES = "first_of_slices_left_out"


FEW_SLICES = 3
"""For a logged number, the most tokens that are tried both as the first token of a slice and as an
inner token."""

OVER_DP, OVER_CP = "not_reduced_over_dp", "not_reduced_over_cp"


def diagnoses_of_lost(weights: ObservedWeights) -> Iterator[Diagnosis]:
    """Yield diagnoses of tokens that are lost or repeated, if all other weights are right."""
    context, observed, active = weights.context, weights.observed, weights.active
    matches = weights.measurement.is_given_by
    gone = active & np.equal(observed, 0)
    none = active.any() and gone[active].all()
    if none and not weights.elsewhere and not context.untrained[active].any():
        tokens = int(active.sum())
        words = f"the term reaches no gradient: all {tokens} active tokens weigh nothing"
        name = "term_without_gradient"
        yield Diagnosis(name=name, explanation=words, numbers={"tokens": tokens})
        return
    if gone.any() and matches(np.where(gone, 0, context.expected)):
        yield from of_lost_tokens(weights.term, gone, active)
    elif (
        gone.any()
        and _is_made_of(gone, active, context.sample)
        and matches(_of_smaller_step(context, gone))
    ):
        name = "samples_dropped" if context.untrained[gone].all() else "samples_lost"
        words = "weigh nothing, and all others are right for a step without these samples"
        yield _diagnosis(context, gone, name, words)
    elif (unheld := _only_counted(context, active)).any() and matches(
        _of_smaller_step(context, unheld)
    ):
        yield _of_samples_that_only_count(context, unheld)
    for mistake in _divided_again(context) if gone.any() else ():
        if matches(mistake.weights):
            yield _diagnosis(context, gone, mistake.name, f"weigh nothing: {mistake.words}")
    lowest = (observed[active] / context.expected[active]).min(initial=1.0)
    twice = active & (observed > 1.5 * lowest * context.expected)
    if twice.any() and not twice[active].all() and _is_made_of(twice, active, context.sample):
        yield from _repeated(context, twice, matches)


def _only_counted(context: StepContext, active: Mask) -> Mask:
    """The tokens of samples that no rank held and that have no active token: [tokens].

    Empty if no token of the step is active, since a step must keep at least one sample.
    """
    kept = ~context.untrained | active
    return ~np.isin(context.sample, context.sample[kept]) & active.any()


def _of_samples_that_only_count(context: StepContext, unheld: Mask) -> Diagnosis:
    """The diagnosis of untrained samples without active tokens that should have been counted."""
    samples = len(np.unique(context.sample[unheld]))
    words = "have no active token and were never trained, and all others are right for a step"
    told = f"{samples} of {context.step.size} samples {words} without these"
    return Diagnosis(name="samples_dropped", explanation=told, numbers={"samples": samples})


def of_untrained(context: StepContext) -> Diagnosis | None:
    """The diagnosis of active tokens that no rank trained; None if there are none."""
    untrained = context.untrained & context.step.mask
    if not untrained.any():
        return None
    return _diagnosis(context, untrained, "samples_dropped", "were never trained")


def _of_smaller_step(context: StepContext, gone: Mask) -> Values:
    """The weights of the step without the samples that have lost tokens: [tokens]."""
    step = context.step
    samples = ~np.isin(np.arange(step.size), context.sample[gone])
    tokens = samples[context.sample]
    names = ("prompt_lengths", "response_lengths", "groups", "rollouts")
    smaller = replace(
        step,
        **{name: getattr(step, name)[samples] for name in names},
        mask=step.mask[tokens],
        original_mask=None if step.original_mask is None else step.original_mask[tokens],
        rewards=None,
        token_names=None,
        sample_names=None,
    )
    weights = np.zeros(len(tokens))
    weights[tokens] = token_weights(smaller, context.aggregation, context.conventions)
    return weights


def of_lost_tokens(term: LossTerm, gone: Mask, active: Mask) -> Iterator[Diagnosis]:
    """Yield diagnoses of lost tokens, ``gone`` [tokens], if all other tokens are right."""
    others = "no others are active" if gone[active].all() else "all others are right"
    for name, words in kinds_of_loss(term, gone, active):
        yield _diagnosis(term.context, gone, name, f"weigh nothing, {others}: {words}")


def shares(context: StepContext) -> Iterator[Prediction]:
    """Yield the weights if only some ranks or micro-batches contribute to the gradient."""
    filled = [*filled_up(context)]
    for name, words, kept in _shares(context):
        yield Prediction(name=name, words=words, weights=np.where(kept, context.expected, 0))
        # Repeated rows are the same on all context-parallel ranks of a data-parallel rank.
        for other in filled if name == OVER_CP else ():
            yield replace(
                other,
                words=f"{other.words}, and {words}",
                weights=np.where(kept, other.weights, 0),
                together=(*other.together, name),
            )
    yield from _divided_again(context)
    placement = context.placement
    if placement is not None:
        last = placement.micro_batch == placement.micro_batches - 1
        for which, kept in (("last", last), ("first", placement.micro_batch == 0)):
            words = f"it is that of the {which} micro-batch of each rank"
            weights = np.where(kept, context.expected, 0)
            yield Prediction(name="micro_batches_lost", words=words, weights=weights)


def _divided_again(context: StepContext) -> Iterator[Prediction]:
    """Yield one rank's weights if each micro-batch divides all gradients accumulated so far."""
    for name, words, kept in _shares(context):
        if name == OVER_DP:
            placement, dp = context.known_placement, float(context.layout.dp)
            later = placement.micro_batches - 1 - placement.micro_batch
            again = f"{words}, and each micro-batch divided earlier ones by dp once more"
            weights = np.where(kept, context.expected / dp**later, 0)
            yield Prediction(name=name, words=again, weights=weights)


def _shares(context: StepContext) -> Iterator[tuple[str, str, Mask]]:
    """Yield a mistake, its words and the tokens of each dp rank, cp rank, and pair of both."""
    placement, layout = context.placement, context.layout
    if placement is None:
        return
    for name, whose, part, size in (
        (OVER_DP, "other data-parallel ranks", placement.dp_rank, layout.dp),
        (OVER_CP, "other context-parallel ranks", placement.cp_rank, layout.cp),
        (
            "not_reduced_over_ranks",
            "all other ranks",
            placement.dp_rank * layout.cp + placement.cp_rank,
            layout.dp * layout.cp,
        ),
    ):
        if size > 1:
            for rank in range(size):
                yield name, f"those of {whose} were not added", part == rank


def slices_without_first(
    context: StepContext, observed: tuple[Mask, Mask] | None = None
) -> Iterator[Prediction]:
    """Leaves out the first token of each slice, as if rows were sliced before shifting targets.

    Slices that begin within a response are known. Whether a slice begins with the last token of a
    response is unknown. If weights are ``observed``, the tokens that weigh nothing show where
    slices begin; the second array has tokens that would weigh nothing in any case. For a sum, both
    possibilities are tried for each of a few slices, and a right sum does not show that the mistake
    is absent.
    """
    if (firsts := _Firsts.of(context)) is None:
        return
    active = context.step.mask_before_rejection  # a denominator may count rejected tokens
    surely, alone = firsts.surely & active, np.flatnonzero(firsts.alone & active)[:FEW_SLICES]
    subsets = chain.from_iterable(combinations(alone, size) for size in range(len(alone) + 1))
    lost = [surely | np.isin(np.arange(len(active)), some) for some in subsets]
    if observed is not None:
        gone = np.where(observed[1], surely, observed[0] & active)
        lost = [gone if firsts.are(gone, active) else surely]
    is_sum = observed is None
    some = (one for one in lost if (is_sum or one.any()) and not one[active].all())
    for left_out in {one.tobytes(): one for one in some}.values():
        yield Prediction(name=FIRST_OF_SLICES, weights=_without(context, left_out).expected)


def _without(context: StepContext, left_out: Mask) -> StepContext:
    """The context of the step with the given tokens masked."""
    step, kept = context.step, ~left_out
    original = None if step.original_mask is None else step.original_mask & kept
    smaller = replace(step, mask=step.mask & kept, original_mask=original)
    return replace(context, steps=(smaller,), step_index=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Firsts:
    """The tokens of a step that begin context-parallel slices: [tokens] each.

    Each token is predicted from the token before it, so the slice that contains this earlier token
    counts as holding the token. The first token that a slice contains is therefore the last token
    that the previous slice holds.
    """

    surely: Mask
    """Tokens whose successor is in the same response and held by another slice."""

    perhaps: Mask
    """Tokens that end a response: the next token is a prompt's, whose slice is unknown."""

    alone: Mask
    """The last ``perhaps`` tokens of slices without ``surely`` tokens, except rows' last slices."""

    slices: Integers
    """The number of the slice that holds each token."""

    @classmethod
    def of(cls, context: StepContext) -> _Firsts | None:
        """The tokens that begin a step's slices; None without slices or a known cut."""
        placement, cp = context.placement, context.layout.cp
        if placement is None or cp == 1:
            return None
        slices = placement.micro_batch_number * cp + placement.cp_rank
        perhaps = np.diff(context.sample, append=-1) != 0
        surely = (np.diff(slices, append=-1) != 0) & ~perhaps
        unsure = perhaps & (placement.cp_rank < cp - 1) & ~np.isin(slices, slices[surely])
        backwards = np.flatnonzero(unsure)[::-1]
        alone = np.zeros_like(unsure)
        alone[backwards[np.unique(slices[backwards], return_index=True)[1]]] = True
        return cls(surely=surely, perhaps=perhaps, alone=alone, slices=slices)

    def are(self, gone: Mask, active: Mask) -> bool:
        """Whether the lost active tokens are exactly those that begin slices, and not all tokens.

        If no lost token surely begins a slice, each slice may have lost at most one token.
        """
        lost, surely = gone & active, self.surely & active
        begin = (surely <= lost).all() and (lost <= surely | self.perhaps).all()
        one_each = np.bincount(self.slices[lost]).max(initial=0) <= 1
        return bool(lost.any() and (active & ~lost).any() and begin and (surely.any() or one_each))


def kinds_of_loss(term: LossTerm, gone: Mask, active: Mask) -> Iterator[tuple[str, str]]:
    """Yield mistakes, each with its words, that affect exactly the lost active tokens."""
    context = term.context
    placement = context.placement
    if context.untrained[gone].all():
        yield "samples_dropped", "no rank ever held them in training"
        return
    for name, words, kept in _shares(context):
        if np.array_equal(gone, active & ~kept):
            yield name, words
    if placement is not None and _is_made_of(gone, active, placement.micro_batch_number):
        if Option.OVERLAP_GRAD_REDUCE in context.layout.options and _are_last(
            gone, active, placement
        ):
            yield (
                "reduced_before_the_last_micro_batch",
                "those of the last micro-batches of ranks, as if the overlapping reduction of"
                " gradients had begun before them",
            )
        yield "micro_batches_lost", "those of whole micro-batches"
    of_samples = _is_made_of(gone, active, context.sample)
    if of_samples:
        yield "samples_lost", "those of whole samples"
    elif (firsts := _Firsts.of(context)) is not None and firsts.are(gone, active):
        yield FIRST_OF_SLICES, "those at the beginning of context-parallel slices"
        return
    if not gone[active].all():
        if isinstance(term.source, PolicyDerivative | ValueDerivative):
            yield "tokens_clipped", "as if the loss clipped or dropped them"
        if not of_samples:
            yield "tokens_lost", "their gradient was lost"


def _are_last(gone: Mask, active: Mask, placement: TokenPlacement) -> bool:
    """Whether each rank that lost a micro-batch also lost all of its later micro-batches."""
    return all(
        gone[active & (placement.dp_rank == rank) & (placement.micro_batch >= first)].all()
        for rank in np.unique(placement.dp_rank[gone])
        for first in [placement.micro_batch[gone & (placement.dp_rank == rank)].min()]
    )


def _is_made_of(gone: Mask, active: Mask, part: Integers) -> bool:
    """Whether the lost tokens are exactly the active tokens of some parts, but not of all parts."""
    lost = np.unique(part[gone])
    whole = np.array_equal(gone, active & np.isin(part, lost))
    return whole and len(lost) < len(np.unique(part))


def _repeated(context: StepContext, twice: Mask, matches: Matches) -> Iterator[Diagnosis]:
    """Yield the diagnosis of samples repeated to fill up a batch, and perhaps counted twice."""
    doubled = np.where(twice, 2.0, 1.0) * context.expected
    samples = len(np.unique(context.sample[twice]))
    size = context.step.size
    for words, factor in (("", 1.0), (" and are counted so", size / (size + samples))):
        if matches(doubled * factor):
            yield _diagnosis(context, twice, "samples_repeated", f"weigh twice as much{words}")


def _diagnosis(context: StepContext, tokens: Mask, name: str, words: str) -> Diagnosis:
    samples = len(np.unique(context.sample[tokens]))
    return Diagnosis(
        name=name,
        explanation=f"{tokens.sum()} active tokens of {samples} samples {words}",
        numbers={"tokens": int(tokens.sum()), "samples": samples},
    )
