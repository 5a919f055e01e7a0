"""Ranks the lines to look at for a wrong weight, without claiming that one of them is the bug.

If the weight is off by the number of ranks or micro-batches, a factor may lack its counterpart.
Otherwise a count in a divisor differs from the reference's count.
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from adapters.contract.job import Column
from conformance.findings.cause import NO_FACTOR
from conformance.tracing.chain import SUMMING
from conformance.tracing.graph import NEGLIGIBLE, computed, is_close, is_of_count
from conformance.tracing.source.origins import has_constant, origins
from conformance.tracing.source.scopes import scope_of
from conformance.tracing.suspects.other_calls import OtherCalls
from conformance.tracing.suspects.reasons import LATER, MOST, Ranked, Suspect, Why, of_lines
from conformance.tracing.suspects.wrong_counts import WrongCounts
from conformance.tracing.suspects.wrong_weight import OfWeight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.chain import Factor
    from conformance.tracing.graph import Node


CHOOSING = tuple(
    f"aten.{name}" for name in ("minimum", "maximum", "min.", "max.", "clamp", "where")
)
"""The beginnings of the names of operations that choose one of several values."""


class Suspects(OfWeight):
    """Looks for the lines that may have made the weight of a traced token wrong."""

    def best(self) -> list[Suspect]:
        """At most three suspects, the likeliest first."""
        found = [*self._all()]
        told = [one for one in found if one.why is not Why.CONSEQUENCE]
        if not any(self.weight.is_own(one.suspect.line) for one in told):
            told += [*self._of_sums(), *self._of_logs(), *self._of_divisors()]
            told += self._of_ratios()
            for factor in self.weight.factors if self.weight.traced.is_wrong and self._off else ():
                told += self._of_parts(factor, Why.OF_PART)
                told += WrongCounts(self.weight).partly(factor)
        return self._ordered(told or found or self._of_losses())

    def of_rest(self, rest: float) -> list[Suspect]:
        """Those of a factor by which Python multiplies a number that it has read."""
        return self._ordered(WrongCounts(self.weight).suspects_of_divisor(1 / rest) if rest else ())

    def _ordered(self, found: Iterable[Ranked]) -> list[Suspect]:
        return of_lines(one.suspect for one in sorted(found, key=self._rank, reverse=True))

    def may_be_wrong(self, factor: float) -> bool:
        """Whether a factor that no operation shows had to be another, or only another is known."""
        needed = factor / self._off if self._off else 0.0
        if is_close(factor, self._off) or not needed:
            return True
        return self._right.needed(1 / needed) is not None or self._right.is_size(needed)

    def _rank(self, one: Ranked) -> tuple[bool, Why, int]:
        return self.weight.is_own(one.suspect.line), one.why, one.depth

    def _all(self) -> Iterator[Ranked]:
        if self.weight.traced.observed and not self.weight.traced.expected:
            yield from self._of_unmasked()
        if self.weight.traced.expected and not self.weight.traced.observed:
            yield from self._of_choices()
        if not self.weight.traced.observed or not self.weight.traced.expected:
            return
        for factor in self.weight.factors:
            yield from self._of_factor(factor)
            yield from WrongCounts(self.weight).suspects(factor)
            yield from OtherCalls(self.weight).suspects(factor)

    def _of_factor(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a factor that lacks a partner, or is 1 and may be the partner."""
        if factor.is_idle and self._right.factor(self._off) is not None:
            yield from self._of_idle(factor)
        yield from self._of_mean(factor)
        if not factor.is_idle and is_close(factor.value**2, self._off):
            inverse = f"multiplies by {factor.value:.6g}, and had to divide by it"
            yield from self.weight.at(factor.node, Why.INVERSE, 0, inverse)
        if not factor.is_idle and is_close(factor.value, self._off):
            yield from self._of_what_is_off(factor)

    def _of_what_is_off(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a factor that is what the weight is off by, and where it is made."""
        operation = self._chain.operation(factor)
        averages = operation.collective is not None or operation.backward_pass is not None
        is_mean = ".mean" in operation.name and not averages
        why = Why.MEAN if is_mean else Why.AVERAGED if averages else Why.WITHOUT_PARTNER
        partners, same = self._partners(factor)
        why = Why.SURPLUS if why is Why.WITHOUT_PARTNER and partners else why
        why = Why.PARTNERED if partners >= same else why
        why = Why.CONSEQUENCE if self._may_be_count(factor) else why
        words = f"multiplies by {self._off:.6g}, which is what the weight is off by"
        yield from self.weight.at(factor.node, why, 0, words)
        for node in self._factors_of_tokens(factor):
            yield from self.weight.at(node, why, 1, words)
        yield from self._of_parts(factor, Why.PART)

    def _may_be_count(self, factor: Factor) -> bool:
        """Whether it may divide by the tokens of a unit that has one, which are miscounted."""
        has_one_token = is_close(self._right.tokens, 1)
        return has_one_token and factor.value < 1 and not self._right.is_size(factor.value)

    def _of_sums(self) -> Iterator[Ranked]:
        """Yield the lines that add up losses which nothing divides, and who called them.

        A term that is added to the losses of tokens is undivided there.
        """
        counted = self._right.needed if self._is_undivided else self._right.ingredient
        needed = counted(self._off) if self.weight.traced.is_wrong else None
        if needed is None and not self._is_undivided:
            return
        by = "" if needed is None else f" by {self._off:.6g} {needed}"
        words = f"adds up losses, and nothing divides them{by}"
        for depth, node in enumerate(self._chain.way):
            operation = self.weight.operation(node)
            if operation.backward_pass is not None:
                return
            if operation.name.startswith(SUMMING):
                for place, line in enumerate(operation.stack[:MOST]):
                    yield Ranked(Why.UNDIVIDED, depth * LATER - place, Suspect(line, words))
                yield from self._of_unread(operation.stack)
            elif self._joins_others(node):
                yield from self.weight.at(node, Why.UNREAD, depth, words)

    @property
    def _is_undivided(self) -> bool:
        """Whether a weight below 1 is expected, and no factor but a coefficient divides.

        A factor that another one takes back does not divide.
        """
        traced, factors = self.weight.traced, self.weight.factors
        forward = [f for f in factors if self.weight.operation(f.node).backward_pass is None]
        values = [one.value for one in _kept(forward)]
        is_small = 0 < abs(traced.expected) < 1 and not traced.is_trained_right
        return traced.is_wrong and is_small and min(values, default=1.0) > 1 - NEGLIGIBLE

    def _joins_others(self, node: Node) -> bool:
        """Whether a term is added to what tokens have of another one."""
        operation = self.weight.operation(node)
        is_term = self.weight.traced.column is not Column.ADVANTAGES
        is_sum = operation.name.startswith("aten.add") and operation.contents.size > 1
        return is_term and is_sum and len(operation.inputs) > 1

    def _of_logs(self) -> Iterator[Ranked]:
        """Yield the lines that make a wrong log of a loss whose gradient is right.

        Those that add up or average losses come first.
        """
        if not self.weight.traced.is_trained_right:
            return
        words = "makes a log of a loss whose gradient is right"
        trained = self._chain.graph.trained
        for depth, node in enumerate(node for node in self._chain.way if node not in trained):
            operation = self.weight.operation(node)
            is_sum = operation.name.startswith(SUMMING) or "reduce" in operation.name
            yield from self.weight.at(node, Why.JOINED if is_sum else Why.LOGGED, -depth, words)

    def _of_unread(self, stack: Sequence[Line]) -> Iterator[Ranked]:
        """Yield the lines that get something besides a sum, and never read it."""
        for place, line in enumerate(stack):
            scope = scope_of(line) if self.weight.is_own(line) else None
            for name in () if scope is None else scope.unread():
                words = f"gets {name} and never reads it, where nothing divides a sum of losses"
                yield Ranked(Why.UNREAD, -place, Suspect(line, words))

    def _of_parts(self, factor: Factor, why: Why) -> Iterator[Ranked]:
        """Yield the lines that count a part of the step for a factor, and who called them."""
        for node, words in WrongCounts(self.weight).parts(factor):
            yield from self.weight.at(node, why, 0, words)
            for place, line in enumerate(self.weight.callers(node), 1):
                yield Ranked(why, -place, Suspect(line, words))

    def _of_ratios(self) -> Iterator[Ranked]:
        """Yield the lines of the first factor of a token's loss, if that alone is wrong.

        It had to be the ratio of the objective: of the token, its sequence, or another. Where that
        of the token is right, it had to be what corrects it.
        """
        right, several = self.weight.traced.derivative, _kept(self.weight.factors)
        multiplied = [one for one in several if not one.is_idle and one.value]
        if multiplied and self._is_ratio_of_token(multiplied[0]):
            several = several[several.index(multiplied[0]) + 1 :]
            right /= self.weight.traced.ratio
            multiplied = multiplied[1:]
        factor = multiplied[0] if multiplied and self.weight.traced.is_wrong else None
        if factor is None or is_close(factor.value, right):
            return
        is_all = right != 1 and is_close(factor.value, right * self._off)
        if is_of_count(factor.value) and not is_all:
            idle = (one for one in several if one.is_idle and is_close(1, right * self._off))
            factor = next(idle, None)  # a ratio of 1, before a count
            is_all = True
        if factor is None:
            return  # the weight is wrong by something else
        words = f"multiplies by {factor.value:.6g}, where the objective has {right:.6g}"
        made = computed(self._chain.graph, self._chain.operands(factor)) or factor.node
        for place, line in enumerate(self.weight.operation(made).stack):
            why = Why.RATIO_ALONE if is_all else Why.RATIO
            yield Ranked(why, -place, Suspect(line, words))

    def _is_ratio_of_token(self, factor: Factor) -> bool:
        """Whether it is the ratio of the token, which something else corrects."""
        ratio = self.weight.traced.ratio
        return is_close(factor.value, ratio) and ratio != self.weight.traced.derivative

    def _factors_of_tokens(self, factor: Factor) -> Iterator[Node]:
        """Yield the operands of a factor that have an entry for each token."""
        for node in self._chain.operands(factor):
            if self.weight.operation(node).contents.size > 1:
                yield node

    def _of_divisors(self) -> Iterator[Ranked]:
        """Yield the lines that divide by something else than the tokens that are to be counted."""
        for factor in self.weight.factors if self.weight.traced.is_wrong else ():
            divisor = 1 / factor.value if factor.value else math.inf
            is_forward = self.weight.operation(factor.node).backward_pass is None
            if is_forward and divisor > 1 and self._right.ingredient(divisor) is None:
                words = f"divides by {divisor:.6g}, where there are {self._right.tokens:g} tokens"
                yield from self.weight.at(factor.node, Why.DIVISOR, 0, words)

    def _of_unmasked(self) -> Iterator[Ranked]:
        """Yield the line that first adds a masked token's loss to others, and who called it."""
        sizes = [self.weight.operation(node).contents.size for node in self._chain.way]
        for node, before, after in zip(self._chain.way[1:], sizes, sizes[1:], strict=False):
            if after == 1 < before and self.weight.operation(node).backward_pass is None:
                words = "adds up the loss of a masked token, which no mask has made 0"
                yield from self.weight.at(node, Why.UNMASKED, 0, words)
                for place, line in enumerate(self.weight.callers(node), 1):
                    yield Ranked(Why.UNMASKED, -place, Suspect(line, words))
                return

    def _of_choices(self) -> Iterator[Ranked]:
        """Yield the lines that choose among values, and who called them.

        A token that weighs nothing among others, and something alone, was not chosen. Most is said
        by a choice between two values of the token, then by bounds.
        """
        words = "chooses among values, and leaves out that of the token where others have one"
        graph = self._chain.graph
        for depth, node in enumerate(self._chain.way):
            operation = self.weight.operation(node)
            if operation.backward_pass is None and operation.name.startswith(CHOOSING):
                several = sum(one in graph.painted for one in graph.inputs(node)) > 1
                is_bound = operation.name.startswith("aten.clamp")
                why = Why.CHOOSING if several else Why.BOUNDING if is_bound else Why.MASKING
                for place, line in enumerate(operation.stack[:MOST]):
                    yield Ranked(why, depth * LATER - place, Suspect(line, words))

    def _of_losses(self) -> Iterator[Ranked]:
        """Yield the lines that compute losses of tokens, and their callers, the latest first."""
        operations = map(self.weight.operation, self._chain.way)
        of_tokens = takewhile(_is_of_tokens, operations)
        for depth, operation in enumerate(of_tokens if self.weight.traced.is_wrong else ()):
            stack = operation.stack[:MOST]
            outside = [line for line in stack if line.file != stack[0].file]
            for place, line in enumerate((*stack[:1], *outside[:1])):
                yield Ranked(Why.LOSS, depth * LATER - place, Suspect(line, NO_FACTOR))

    def _of_idle(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a factor of 1, best where its function knows the missing one."""
        operation = self._chain.operation(factor)
        sizes = [self.weight.operation(one).contents.size for one in self._chain.operands(factor)]
        is_large = max(sizes, default=1) > 1
        is_written = has_constant(operation.stack, 1)
        may_lack = self._is_of_kind(operation) or (is_written and 1.0 in operation.numbers)
        if is_large or operation.line is None or not may_lack:
            return
        words = f"multiplies by 1 where the weight lacks a factor of {1 / self._off:.6g}"
        missing = max(self._off, 1 / self._off)
        knows = any(is_close(held, missing) for _, held in operation.variables)
        depth = self._chain.factors.index(factor)
        if 1.0 not in operation.numbers:
            yield from self.weight.at(factor.node, Why.IDLE_TENSOR, depth, words)
            return
        why = Why.KNOWING if knows else Why.IDLE
        names = [name for name, held in operation.variables if held == 1]
        yield from self.weight.at(factor.node, why, depth, words)
        own = self.weight.is_own(operation.line)
        for place, line in enumerate(origins(operation.stack, names) if own else ()):
            before = -LATER if is_written else LATER
            yield Ranked(why, depth + before - place, Suspect(line, words))

    def _partners(self, factor: Factor) -> tuple[int, int]:
        """How many others take back what a factor does, and how many do the same, with itself."""
        values = [one.value for one in self._chain.factors]
        partners = [one for one in values if is_close(one * factor.value, 1)]
        return len(partners), len([one for one in values if is_close(one, factor.value)])

    def _of_mean(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a mean over entries that are not those that a unit has."""
        if ".mean" in self._chain.operation(factor).name and not factor.is_idle:
            entries = 1 / factor.value
            if (needed := self._right.needed(entries * self._off)) is not None:
                words = (
                    f"a mean of {entries:.6g} where there are {entries * self._off:.6g} {needed}"
                )
                why = Why.AVERAGED if self._leaves_to_another(factor) else Why.MEAN
                yield from self.weight.at(factor.node, why, 0, words)

    def _leaves_to_another(self, mean: Factor) -> bool:
        """Whether the function of a mean of a part has a 1 where the parts' number is missing."""
        line, factors = self._chain.operation(mean).line, self._chain.factors
        later = [one for one in factors[factors.index(mean) :] if one.is_idle]
        operations = [self._chain.operation(one) for one in later]
        return self._right.factor(self._off) is not None and any(
            1.0 in one.numbers
            and self._is_of_kind(one)
            and line is not None
            and one.line is not None
            and (one.line.file, one.line.function) == (line.file, line.function)
            for one in operations
        )

    def _is_of_kind(self, operation: Operation) -> bool:
        """Whether it divides if the weight is too large, or multiplies if it is too small."""
        return (".div" in operation.name) == (self._off > 1)


def _is_of_tokens(operation: Operation) -> bool:
    """Whether it has an entry for each token, before any gradient is taken."""
    return operation.contents.size > 1 and operation.backward_pass is None


def _kept(factors: Iterable[Factor]) -> list[Factor]:
    """The factors that no other one takes back."""
    kept: list[Factor] = []
    for one in factors:
        inverse = next((other for other in kept if is_close(other.value * one.value, 1)), None)
        if inverse is None:
            kept.append(one)
        else:
            kept.remove(inverse)
    return kept
