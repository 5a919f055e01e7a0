"""Suspects lines that make a count which had to be another for the weight to be right.

A count is unfolded until its parts are right: the line that combined them is the suspect.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from itertools import compress, product
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import GIVEN
from conformance.tracing.counts import COMMON, Count, How, Unfolding
from conformance.tracing.graph import ALLOCATIONS, NEGLIGIBLE, Node, is_close
from conformance.tracing.source.origins import has_constant, origins, takes_size
from conformance.tracing.source.slices import Slice, is_setting
from conformance.tracing.suspects.plain_python import had_before
from conformance.tracing.suspects.reasons import LATER, Ranked, Suspect, Why
from conformance.tracing.suspects.wrong_weight import OfWeight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.trace import Returned
    from conformance.tracing.chain import Factor

ADDING = ("aten.add", "aten.sub", "aten.rsub")
"""The beginnings of the names of operations that may add a number of Python."""

CONSTANTS = ("aten.ones.", "aten.new_ones", "aten.full.", "aten.new_full")
"""Operations whose entries come from no mask."""


class _Wrong(NamedTuple):
    """A count that had to be another for the weight to be right, and what it is a part of."""

    made: Count
    needed: float
    user: Node
    depth: int


class WrongCounts(OfWeight):
    """Looks for the counts that made a weight wrong."""

    def suspects(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the lines of the counts that a factor is made of.

        Those of a 1 say less, unless something was changed to it.
        """
        most = Why.HANDED if factor.is_idle else Why.UNMASKED
        for one in self._ranked(self._wrong_counts(factor)):
            yield one if one.why is Why.CHANGED else one._replace(why=min(one.why, most))

    def suspects_of_divisor(self, divisor: float) -> Iterator[Ranked]:
        """Yield the lines of a count that was read together with the number that it divides."""
        end = self._chain.way[-1]
        count = Unfolding(self._chain.graph).of_value(end, divisor)
        if count is not None and self._right.ingredient(divisor) is None:
            yield from self._ranked(self._below(_Wrong(count, divisor * self._off, end, 0)))

    def _ranked(self, several: Iterable[_Wrong]) -> Iterator[Ranked]:
        """Yield the lines of counts; one that is made of a suspected one is a consequence."""
        found = [one for wrong in several for one in self._of_count(wrong)]
        counted = [one for one in found if one.why is Why.COUNTED]
        own = [one.depth for one in counted if self.weight.is_own(one.suspect.line)]
        deepest = max(own or [one.depth for one in counted], default=0)
        for one in found:
            is_consequence = one.why is Why.COUNTED and one.depth < deepest
            yield one._replace(why=Why.CONSEQUENCE) if is_consequence else one

    def partly(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the lines of plain Python that made a divisor which lacks one of its counts."""
        for wrong in self._wrong_counts(factor):
            needed = self._right.ingredient(wrong.needed)
            if self._right.ingredient(wrong.made.value) is not None and needed is not None:
                words = f"{wrong.made.value:.6g} where there are {wrong.needed:.6g} {needed}"
                yield from self._returned(wrong, Why.PARTLY, words)

    def parts(self, factor: Factor) -> Iterator[tuple[Node, str]]:
        """Yield what counts a part of the step in a factor, whatever it had to be."""
        if factor.is_idle:
            return
        unfolding = Unfolding(self._chain.graph)
        for value, node in product((factor.value, 1 / factor.value), self._chain.operands(factor)):
            count = unfolding.of_value(node, value)
            for one in () if count is None else self._not_right(count):
                if one.node is not None and self.weight.operation(one.node).contents.size == 1:
                    whose = None if one.value == 1 else self._right.part(one.value)
                    if whose is not None:
                        yield one.node, f"counts {one.value:g} active tokens of {whose} alone"

    def _not_right(self, count: Count) -> Iterator[Count]:
        """Yield a count and those it is made of, without right ones and their parts."""
        if count.value == 1 or self._right.ingredient(count.value) is None:
            yield count
            for part in count.parts:
                yield from self._not_right(part)

    def _wrong_counts(self, factor: Factor) -> Iterator[_Wrong]:
        """Yield the counts that a factor is made of, each with what it had to be.

        Where nothing was divided by the tokens of a unit, a divisor of 1 had to be their number. A
        factor of 1 may be a quotient of two counts.
        """
        if factor.is_idle and not self._may_lack_counts(factor):
            return
        unfolding, operation = Unfolding(self._chain.graph), self._chain.operation(factor)
        ways = [
            (1 / factor.value, self._off / factor.value),
            (factor.value, factor.value / self._off),
        ]
        for value, needed in reversed(ways) if ".mul" in operation.name else ways:
            found = [unfolding.of_value(one, value) for one in self._chain.operands(factor)]
            numbers = [one for one in operation.numbers if is_close(one, value)]
            found += [unfolding.number(one, factor.node) for one in numbers]
            for count in found:
                if count is not None:
                    yield from self._below(_Wrong(count, needed, factor.node, 0))
            if factor.is_idle:
                return

    def _may_lack_counts(self, factor: Factor) -> bool:
        """Whether a factor of 1 is a tensor that had to have the tokens of a unit, or the ranks."""
        if not self._chain.operands(factor):
            return False
        divides = ".div" in self._chain.operation(factor).name
        lacks_tokens = (
            divides
            and self._off != 1
            and (is_close(self._off, self._right.tokens) or self._right.part(self._off) is not None)
        )
        return lacks_tokens or self._right.ranks(self._off) is not None

    def _needed(self, number: float) -> str | None:
        """What a count had to be, in words: a right one, or what the loss was multiplied by."""
        multiplied = (one.value for one in self._chain.factors if not one.is_idle)
        if not self._right.is_size(number) and any(is_close(one, number) for one in multiplied):
            return "by which another factor multiplies"
        is_of_ranks = self._right.ranks(self._off) is not None  # then a part of a size is chance
        whose = None if is_of_ranks else self._right.part(number)
        of_part = None if whose is None else f"active tokens of {whose}"
        return self._right.needed(number) or of_part

    def _below(self, wrong: _Wrong) -> Iterator[_Wrong]:
        """Yield a count and the parts of it that had to be others."""
        is_size = wrong.made.value > 1 and self._right.is_size(wrong.made.value)
        is_no_count = is_size and wrong.needed < 1 - NEGLIGIBLE
        if is_close(wrong.made.value, wrong.needed) or is_no_count:
            return
        yield wrong
        user = wrong.made.node or wrong.user
        tensors = [part for part in wrong.made.parts if part.node is not None]
        if wrong.made.how is How.SUM and len(tensors) > 1:
            yield from self._summed(wrong, tensors)
            return
        for place, part in enumerate(wrong.made.parts):
            if wrong.made.how is How.SUM and part.node is None:
                continue  # a number that is added, such as against a division by 0
            if wrong.made.is_mean:
                continue  # another sum would be one of as many more entries
            needed = wrong.made.needed(place, wrong.needed)
            if needed is not None and math.isfinite(needed):
                yield from self._below(_Wrong(part, needed, user, wrong.depth + 1))

    def _summed(self, wrong: _Wrong, parts: Sequence[Count]) -> Iterator[_Wrong]:
        """Yield a sum at the line that made all its parts, which cannot be told apart.

        Parts that have several entries are pieces of what is counted, and no counts themselves.
        """
        nodes = [part.node for part in parts if part.node is not None]
        made = [self.weight.operation(node) for node in nodes]
        are_counts = all(one.contents.size == 1 for one in made)
        if are_counts and len({one.line for one in made}) == 1:
            yield _Wrong(
                replace(wrong.made, node=nodes[0]), wrong.needed, nodes[0], wrong.depth + 1
            )

    def _of_count(self, wrong: _Wrong) -> Iterator[Ranked]:
        """Yield the lines to look at because of one count that had to be another."""
        count, needed = wrong.made, self._needed(wrong.needed)
        if self._is_superfluous(wrong):
            words = f"multiplies a count by {count.value:.6g}, which is what the weight is off by"
            yield from self.weight.at(wrong.user, Why.WITHOUT_PARTNER, wrong.depth, words)
        if count.node is None and self._right.is_size(count.value):
            needed = needed or self._right.factor(wrong.needed)
        is_changed = is_close(self._recounted(count), wrong.needed)
        is_common = is_close(wrong.needed, 1) and not is_close(self._right.tokens, 1)
        is_told = needed is not None or is_changed
        if not is_told or is_common or self._begins_backward(count):
            return
        words = f"{count.value:.6g} where there are {wrong.needed:.6g} {needed}"
        words = words if needed else f"{wrong.needed:.6g} would be right"
        if count.node is not None:
            yield from self._of_collective(count.node, wrong, words)
        if is_changed:
            for inner in self._deepest_changed(count):
                made = f"makes {inner.value:.6g} of {self._recounted(inner):.6g}"
                yield from self.weight.at(inner.node, Why.CHANGED, wrong.depth, f"{made}: {words}")
        if self._right.ingredient(count.value) is not None:
            return
        is_whole = self._right.ingredient(wrong.needed) is not None and not self._divides(
            wrong.needed
        )
        for node in self._unused(count.value, wrong) if is_whole else ():
            yield from self.weight.at(
                node, Why.UNUSED, 0, f"counts right, but nothing uses it: {words}"
            )
        yield from self._returned(wrong, Why.RETURNED, words)
        if count.node is None:
            yield from self._of_number(wrong, words)
        elif self.weight.operation(count.node).contents.size > 1:
            if not self._right.is_mask(count.value):
                yield from self.weight.at(count.node, Why.MASK, wrong.depth, words)
        else:
            is_part = self._is_part(count) and is_close(wrong.needed, self._right.tokens)
            is_bounded = count.how is How.CLAMP
            of_part = -wrong.depth - (LATER if is_bounded else 0)  # nearest to what it stands for
            why, depth = (Why.PART, of_part) if is_part else (Why.COUNTED, wrong.depth)
            yield from self.weight.at(count.node, why, depth, words)
            yield from self._behind(wrong, words)
            for place, line in enumerate(self.weight.callers(count.node)):
                yield Ranked(Why.CALLER, wrong.depth * LATER - place, Suspect(line, words))

    def _begins_backward(self, count: Count) -> bool:
        """Whether it is the 1 that torch begins a backward pass with."""
        made = None if count.node is None else self.weight.operation(count.node)
        return (
            made is not None and made.name.startswith("aten.ones_like") and made.contents.size == 1
        )

    def _returned(self, wrong: _Wrong, why: Why, words: str) -> Iterator[Ranked]:
        """Yield the lines of plain Python that had a count before a tensor was made of it.

        The first to have it comes first, followed by those that called its function; a line that
        serves several callers comes after these, which chose what it counts. Lines that only read
        fields have counted nothing.
        """
        count, node = wrong.made.value, wrong.made.node or wrong.user
        had = self._chain.graph.handed(node, count)
        # The user's L is right where it was first.
        if had is not None and count != self.weight.traced.context.aggregation.divisor:
            is_right = self._right.ingredient(wrong.needed) is not None
            yield from self._had(
                [had], Why.ORIGIN if is_right and why is Why.RETURNED else why, words
            )
            return
        is_given = wrong.made.node is None or self.weight.operation(node).name == GIVEN
        is_size = wrong.made.node is None and (
            self._right.is_size(count) or takes_size(self.weight.operation(node).stack)
        )
        if not is_given or wrong.made.parts or count <= COMMON or is_size:
            return
        before, is_telling = had_before(self.weight, node, count)
        yield from self._had(before, why if is_telling else min(why, Why.CALLER), words)

    def _had(self, several: Iterable[Returned], why: Why, words: str) -> Iterator[Ranked]:
        """Yield the lines that had a number, the first one first."""
        for place, one in enumerate(several):
            lines = [*one.stack[1:], one.stack[0]] if one.is_shared else one.stack
            for depth, line in enumerate(lines):
                yield Ranked(why, -place * LATER - depth, Suspect(line, words))

    def _is_superfluous(self, wrong: _Wrong) -> bool:
        """Whether a count is multiplied by a number of ranks or micro-batches that had to be 1."""
        count = wrong.made
        is_number = count.node is None and count.value != 1 and not count.parts
        return is_number and is_close(wrong.needed, 1) and self._right.is_size(count.value)

    def _behind(self, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the lines of plain Python that counted, or chose what was counted."""
        made = self.weight.operation(wrong.made.node or wrong.user)
        user = self.weight.operation(wrong.user) if made.name == GIVEN else made
        if user.line is None or not self.weight.is_own(user.line):
            return
        sources = [*Slice(self.weight.files).of(user.stack)]
        chosen = next((one for one in sources if one.chooses), None)
        if chosen is not None:
            line, counted = chosen.line, user.line
            is_given = (line.file, line.function) != (counted.file, counted.function)
            is_other = is_given and not self._is_part(wrong.made)
            why = Why.HANDED if is_other and self._only_adds(wrong.made) else Why.CHOSEN
            yield Ranked(why, wrong.depth, Suspect(line, words))
        if made.name == GIVEN:
            counting = [one.line for one in sources if one.counts]
            if self._right.is_sample_of_unit(wrong.made.value):
                counting = [*(one.line for one in sources if one.adds), *counting]
            for place, line in enumerate(counting):
                yield Ranked(Why.COUNTED_BY_PYTHON, -place, Suspect(line, words))

    def _only_adds(self, count: Count) -> bool:
        """Whether a count is the sum of entries that were given, which the line that adds has."""
        parts = [*count.walk()]
        of_entries = all(one.how in (How.SUM, How.SAME, How.GIVEN) for one in parts)
        nodes = [one.node for one in parts if one.node is not None]
        names = [self.weight.operation(node).name for node in nodes]
        is_made = any(name.startswith((*CONSTANTS, *ALLOCATIONS)) for name in names)
        return of_entries and not is_made and len(parts) > 1

    def _of_collective(self, node: Node, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the line of a reduction over too many or too few ranks, and who chose them."""
        operation, count = self.weight.operation(node), wrong.made.value
        if operation.collective is None or "reduce" not in operation.name or not count:
            return
        group, world = len(operation.collective.group), self.weight.traced.context.layout.world_size
        is_right = self._right.ingredient(wrong.needed) is not None
        may_be_few = wrong.needed > count and group < world
        if self._right.ranks(wrong.needed / count) is None or not (is_right or may_be_few):
            return
        reduced = f"adds up over {group} of {world} ranks: {words}"
        yield from self.weight.at(node, Why.GROUP, LATER, reduced)
        chooser = Slice(self.weight.files).chosen_by(operation.stack, "group")
        if chooser is not None:
            yield Ranked(Why.GROUP, LATER + 1, Suspect(chooser, reduced))
        for place, line in enumerate(self.weight.callers(node)):
            yield Ranked(Why.GROUP, -place, Suspect(line, reduced))

    def _of_number(self, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the line that computes with a number of Python, and those that assigned it."""
        number, operation = wrong.made.value, self.weight.operation(wrong.user)
        names = [name for name, held in operation.variables if is_close(held, number)]
        is_size = self._right.is_size(number) and self._right.factor(wrong.needed) is not None
        knows = any(is_close(held, wrong.needed) for _, held in operation.variables)
        assigned = [*origins(operation.stack, names)]
        is_written = has_constant(operation.stack, number)
        if number == 1 and is_written and wrong.depth:
            yield from self.weight.at(wrong.user, Why.WRITTEN, wrong.depth, words)
        is_of_torch = operation.backward_pass is not None and not (is_written or assigned)
        if is_of_torch or (number == 1 and not (assigned or knows)):
            return  # such as the 2 by which the derivative of a maximum divides
        if not wrong.made.parts and takes_size(operation.stack):
            yield from self.weight.at(wrong.user, Why.ASSIGNED, wrong.depth, words)
            return
        is_chosen = is_setting(operation.stack, names)  # by the user, and right where it is read
        is_made = wrong.made.parts or is_chosen
        of_size = Why.ONE if number == 1 else Why.SIZE
        why = Why.CALLER if is_made else of_size if is_size else Why.ASSIGNED
        if number != 1 and self._right.is_size(number) and not is_size:
            why = Why.CONSEQUENCE  # it is right for what it counts
        before = -LATER if is_written else LATER
        for place, line in enumerate(assigned):
            yield Ranked(why, before - place, Suspect(line, words))
        is_right = why is Why.CONSEQUENCE
        at = of_size if is_size else why if is_right else Why.COUNTED
        yield from self.weight.at(wrong.user, at, wrong.depth, words)

    def _is_part(self, count: Count) -> bool:
        """Whether it is the mask of a part of the step, which is right for that part."""
        return self._right.part(count.value) is not None

    def _divides(self, count: float) -> bool:
        """Whether a factor divides by a count."""
        return any(is_close(factor.value * count, 1) for factor in self._chain.factors)

    def _unused(self, value: float, wrong: _Wrong) -> Iterator[Node]:
        """Yield the collectives that make what a count had to be of what it is."""
        rank = (wrong.made.node or wrong.user).rank
        for place, operation in enumerate(self._chain.graph.traces[rank].operations):
            node = Node(rank, place)
            if operation.collective is None or node in self._counted:
                continue
            for one in operation.inputs:
                read = self.weight.operation(Node(rank, one)).contents.values
                pairs = zip(read, operation.contents.values, strict=False)
                if any(is_close(a, value) and is_close(b, wrong.needed) for a, b in pairs):
                    yield node

    @cached_property
    def _counted(self) -> frozenset[Node]:
        """All nodes that the token's weight depends on."""
        graph = self._chain.graph
        factors = (factor.node for factor in self._chain.factors)
        return graph.behind(factors, frozenset(graph.nodes()))

    def _recounted(self, count: Count) -> float:
        """The count without clamps, and without constants that are added to it."""
        parts = [self._recounted(part) for part in count.parts]
        shares = [*zip(parts, count.shares, strict=False)]
        match count.how:
            case How.SAME | How.CLAMP:
                return parts[0]
            case How.SUM:
                name = "" if count.node is None else self.weight.operation(count.node).name
                is_added = name.startswith(ADDING)
                counted = [not is_added or bool(one.node or one.parts) for one in count.parts]
                return math.fsum(part * share for part, share in compress(shares, counted))
            case How.PRODUCT | How.ROUNDED if all(parts):
                return math.prod(float(part**share) for part, share in shares)
            case How.GIVEN if count.node is not None:
                name = self.weight.operation(count.node).name
                return 0.0 if name.startswith(CONSTANTS) else count.value
        return count.value

    def _deepest_changed(self, count: Count) -> Iterator[Count]:
        """Yield the counts that are not what they are made of, whose parts all are."""
        for one in count.walk():
            is_same = is_close(self._recounted(one), one.value)
            if one.parts and not is_same and not any(map(self._is_changed, one.parts)):
                yield one

    def _is_changed(self, count: Count) -> bool:
        return bool(count.parts) and not is_close(self._recounted(count), count.value)
