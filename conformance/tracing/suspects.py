"""Ranks the lines to look at for a wrong weight. They are suspects; none is claimed to be the bug.

If the weight is off by the number of ranks or micro-batches, a factor may lack its counterpart.
Otherwise a count in a divisor differs from the reference's count. That count is unfolded until
its parts are right: the line that combined them is the suspect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import GIVEN, READ
from conformance.tracing.chain import SUMMING
from conformance.tracing.counts import COMMON, Count, How, Unfolding
from conformance.tracing.graph import Node, is_close
from conformance.tracing.reasons import Ranked, Suspect, Why
from conformance.tracing.right_counts import RightCounts
from conformance.tracing.source.origins import has_constant, origins
from conformance.tracing.source.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.tracer import TracedJob

LATER = 1000
"""More than there are factors in a chain: what ranks before all that is later or deeper."""

MOST = 3
"""How many suspects are named."""

CONSTANTS = ("aten.ones.", "aten.new_ones", "aten.full.", "aten.new_full")
"""Operations whose entries come from no mask."""


class _Wrong(NamedTuple):
    """A count that had to be another for the weight to be right, and what it is a part of."""

    made: Count
    needed: float
    user: Node
    depth: int


@dataclass(frozen=True, eq=False)
class Suspects:
    """Looks for the lines that may have made the weight of a traced token wrong."""

    traced: TracedJob
    chain: Chain
    package: str | None
    """That of the framework, whose lines are suspected before those of its engine."""

    def best(self) -> list[Suspect]:
        """At most three suspects, the likeliest first."""
        by_line: dict[tuple[str, int], Suspect] = {}
        found = [*self._all()] or [*self._of_sums(), *self._of_divisors()]
        told = [one for one in found if one.why is not Why.CONSEQUENCE]
        for one in sorted(told or found, key=self._rank, reverse=True):
            by_line.setdefault((one.suspect.line.file, one.suspect.line.number), one.suspect)
        return [*by_line.values()][:MOST]

    def may_be_wrong(self, factor: float) -> bool:
        """Whether a factor that no operation shows had to be another, or only another is known."""
        needed = factor / self._off if self._off else 0.0
        if is_close(factor, self._off) or not needed:
            return True
        return self._right.needed(1 / needed) is not None or self._right.is_size(needed)

    def _rank(self, one: Ranked) -> tuple[bool, Why, int]:
        return self._is_own(one.suspect.line), one.why, one.depth

    def _is_own(self, line: Line) -> bool:
        """Whether a line is the framework's, and not its engine's."""
        return self.package is None or f"/{self.package}/" in line.file

    def _all(self) -> Iterator[Ranked]:
        if self.traced.observed and not self.traced.expected:
            yield from self._of_unmasked()
        if not self.traced.observed or not self.traced.expected:
            return
        for factor in self.chain.factors:
            yield from self._of_factor(factor)
            found = [one for wrong in self._wrong_counts(factor) for one in self._of_count(wrong)]
            counted = [one for one in found if one.why is Why.COUNTED]
            own = [one.depth for one in counted if self._is_own(one.suspect.line)]
            deepest = max(own or [one.depth for one in counted], default=0)
            for one in found:
                is_consequence = one.why is Why.COUNTED and one.depth < deepest
                most = (
                    Why.CONSEQUENCE if is_consequence else Why.MASK if factor.is_idle else one.why
                )
                yield one._replace(why=min(one.why, most))

    @cached_property
    def _right(self) -> RightCounts:
        return RightCounts(self.traced.context, self.traced.place)

    @cached_property
    def _off(self) -> float:
        """What the right weight is multiplied by."""
        return self.traced.observed / self.traced.expected

    @cached_property
    def _files(self) -> frozenset[str]:
        """The files of the framework that ranks have imported."""
        files = frozenset[str]().union(*(trace.files for trace in self.traced.traces))
        if self.package is None:
            return files
        return frozenset(one for one in files if f"/{self.package}/" in one)

    def _operation(self, node: Node) -> Operation:
        return self.chain.graph.operation(node)

    def _of_factor(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a factor that lacks a partner, or is 1 and may be the partner."""
        operation = self.chain.operation(factor)
        if factor.is_idle and self._right.factor(self._off) is not None:
            yield from self._of_idle(factor)
        yield from self._of_mean(factor)
        if not factor.is_idle and is_close(factor.value**2, self._off):
            inverse = f"multiplies by {factor.value:.6g}, and had to divide by it"
            yield from self._at(factor.node, Why.INVERSE, 0, inverse)
        if not factor.is_idle and is_close(factor.value, self._off):
            words = f"multiplies by {self._off:.6g}, which is what the weight is off by"
            averages = operation.collective is not None or operation.backward_pass is not None
            why = Why.AVERAGED if averages else Why.WITHOUT_PARTNER
            yield from self._at(
                factor.node, Why.PARTNERED if self._partner(factor) else why, 0, words
            )

    def _of_sums(self) -> Iterator[Ranked]:
        """Yield the lines that add up losses which nothing divides, and who called them."""
        needed = self._right.needed(self._off) if self.traced.is_wrong else None
        if needed is None:
            return
        words = f"adds up losses, and nothing divides them by {self._off:.6g} {needed}"
        for depth, node in enumerate(self.chain.way):
            operation = self._operation(node)
            if operation.name.startswith(SUMMING) and operation.backward_pass is None:
                for place, line in enumerate(operation.stack[:MOST]):
                    yield Ranked(Why.UNDIVIDED, depth * LATER - place, Suspect(line, words))

    def _of_divisors(self) -> Iterator[Ranked]:
        """Yield the lines that divide by something else than the tokens that are to be counted."""
        for factor in self.chain.factors if self.traced.is_wrong else ():
            divisor = 1 / factor.value if factor.value else math.inf
            is_forward = self._operation(factor.node).backward_pass is None
            if is_forward and divisor > 1 and self._right.ingredient(divisor) is None:
                words = f"divides by {divisor:.6g}, where there are {self._right.tokens:g} tokens"
                yield from self._at(factor.node, Why.DIVISOR, 0, words)

    def _of_unmasked(self) -> Iterator[Ranked]:
        """Yield the line that first adds a masked token's loss to others, and who called it."""
        sizes = [self._operation(node).contents.size for node in self.chain.way]
        for node, before, after in zip(self.chain.way[1:], sizes, sizes[1:], strict=False):
            if after == 1 < before and self._operation(node).backward_pass is None:
                words = "adds up the loss of a masked token, which no mask has made 0"
                yield from self._at(node, Why.UNMASKED, 0, words)
                for place, line in enumerate(self._callers(node), 1):
                    yield Ranked(Why.UNMASKED, -place, Suspect(line, words))
                return

    def _of_idle(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a factor of 1, best where its function knows the missing one."""
        operation = self.chain.operation(factor)
        sizes = [self._operation(one).contents.size for one in self.chain.operands(factor)]
        is_large = max(sizes, default=1) > 1
        if is_large or operation.line is None or not self._is_of_kind(operation):
            return
        words = f"multiplies by 1 where the weight lacks a factor of {1 / self._off:.6g}"
        missing = max(self._off, 1 / self._off)
        knows = any(is_close(held, missing) for _, held in operation.variables)
        depth = self.chain.factors.index(factor)
        if 1.0 not in operation.numbers:
            yield from self._at(factor.node, Why.IDLE_TENSOR, depth, words)
            return
        why = Why.KNOWING if knows else Why.IDLE
        names = [name for name, held in operation.variables if held == 1]
        yield from self._at(factor.node, why, depth, words)
        is_written = has_constant(operation.stack, 1)
        own = self._is_own(operation.line)
        for place, line in enumerate(origins(operation.stack, names) if own else ()):
            before = -LATER if is_written else LATER
            yield Ranked(why, depth + before - place, Suspect(line, words))

    def _is_of_kind(self, operation: Operation) -> bool:
        """Whether it divides if the weight is too large, or multiplies if it is too small."""
        return (".div" in operation.name) == (self._off > 1)

    def _partner(self, factor: Factor) -> bool:
        """Whether another factor takes back what one does."""
        return any(is_close(one.value * factor.value, 1) for one in self.chain.factors)

    def _of_mean(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the line of a mean over entries that are not those that a unit has."""
        if ".mean" in self.chain.operation(factor).name and not factor.is_idle:
            entries = 1 / factor.value
            if (needed := self._right.needed(entries * self._off)) is not None:
                words = (
                    f"a mean of {entries:.6g} where there are {entries * self._off:.6g} {needed}"
                )
                why = Why.AVERAGED if self._leaves_to_another(factor) else Why.MEAN
                yield from self._at(factor.node, why, 0, words)

    def _leaves_to_another(self, mean: Factor) -> bool:
        """Whether the function of a mean of a part has a 1 where the parts' number is missing."""
        line, factors = self.chain.operation(mean).line, self.chain.factors
        return any(
            one.is_idle
            and 1.0 in operation.numbers
            and self._is_of_kind(operation)
            and line is not None
            and operation.line is not None
            and (operation.line.file, operation.line.function) == (line.file, line.function)
            and self._right.factor(self._off) is not None
            for one in factors[factors.index(mean) :]
            if (operation := self.chain.operation(one))
        )

    def _wrong_counts(self, factor: Factor) -> Iterator[_Wrong]:
        """Yield the counts that a factor is made of, each with what it had to be.

        Where nothing was divided by the tokens of a unit, a divisor of 1 had to be these. A factor
        of 1 may be a quotient of two counts.
        """
        if factor.is_idle and not self._may_lack_counts(factor):
            return
        unfolding, operation = Unfolding(self.chain.graph), self.chain.operation(factor)
        ways = [
            (1 / factor.value, self._off / factor.value),
            (factor.value, factor.value / self._off),
        ]
        for value, needed in reversed(ways) if ".mul" in operation.name else ways:
            found = [unfolding.of_value(one, value) for one in self.chain.operands(factor)]
            numbers = [one for one in operation.numbers if is_close(one, value)]
            found += [unfolding.number(one, factor.node) for one in numbers]
            for count in found:
                if count is not None:
                    yield from self._below(_Wrong(count, needed, factor.node, 0))
            if factor.is_idle:
                return

    def _may_lack_counts(self, factor: Factor) -> bool:
        """Whether a factor of 1 is a tensor that had to have the tokens of a unit, or the ranks."""
        if not self.chain.operands(factor):
            return False
        divides = ".div" in self.chain.operation(factor).name
        lacks_tokens = divides and is_close(self._off, self._right.tokens)
        return lacks_tokens or self._right.ranks(self._off) is not None

    def _below(self, wrong: _Wrong) -> Iterator[_Wrong]:
        """Yield a count and the parts of it that had to be others."""
        if is_close(wrong.made.value, wrong.needed):
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
        """Yield a sum of Python at the line that read its parts, which cannot be told apart."""
        nodes = [part.node for part in parts if part.node is not None]
        if all(self._operation(node).name == READ for node in nodes):
            yield _Wrong(
                replace(wrong.made, node=nodes[0]), wrong.needed, nodes[0], wrong.depth + 1
            )

    def _of_count(self, wrong: _Wrong) -> Iterator[Ranked]:
        """Yield the lines to look at because of one count that had to be another."""
        count, needed = wrong.made, self._right.needed(wrong.needed)
        if self._is_superfluous(wrong):
            words = f"multiplies a count by {count.value:.6g}, which is what the weight is off by"
            yield from self._at(wrong.user, Why.WITHOUT_PARTNER, wrong.depth, words)
        if count.node is None and self._right.is_size(count.value):
            needed = needed or self._right.factor(wrong.needed)
        if needed is None or is_close(wrong.needed, 1):
            return
        words = f"{count.value:.6g} where there are {wrong.needed:.6g} {needed}"
        if count.node is not None:
            yield from self._of_collective(count.node, wrong, words)
        if self._right.ingredient(count.value) is not None:
            return
        if is_close(self._recounted(count), wrong.needed):
            for inner in self._deepest_changed(count):
                made = f"makes {inner.value:.6g} of {self._recounted(inner):.6g}"
                yield from self._at(inner.node, Why.CHANGED, wrong.depth, f"{made}: {words}")
        is_whole = self._right.ingredient(wrong.needed) is not None and not self._divides(
            wrong.needed
        )
        for node in self._unused(count.value, wrong) if is_whole else ():
            yield from self._at(node, Why.UNUSED, 0, f"counts right, but nothing uses it: {words}")
        yield from self._returned(wrong, words)
        if count.node is None:
            yield from self._of_number(wrong, words)
        elif self._operation(count.node).contents.size == 1 or not self._is_part(count):
            is_part = self._is_part(count) and is_close(wrong.needed, self._right.tokens)
            why = Why.PART if is_part else Why.COUNTED
            yield from self._at(count.node, why, wrong.depth, words)
            yield from self._behind(wrong, words)
            for place, line in enumerate(self._callers(count.node)):
                yield Ranked(Why.CALLER, wrong.depth * LATER - place, Suspect(line, words))

    def _returned(self, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the lines of plain Python that had a count before a tensor was made of it."""
        count, node = wrong.made.value, wrong.made.node or wrong.user
        is_given = wrong.made.node is None or self._operation(node).name == GIVEN
        if not is_given or wrong.made.parts or count <= COMMON or self._right.is_size(count):
            return
        for place, one in enumerate(self.chain.graph.traces[node.rank].returned):
            if one.place <= node.place and any(is_close(count, held) for held in one.numbers):
                later = LATER * LATER if one.is_shared else 0  # its caller chose what it counts
                yield Ranked(Why.RETURNED, -place - later, Suspect(one.line, words))

    def _is_superfluous(self, wrong: _Wrong) -> bool:
        """Whether a count is multiplied by a number of ranks or micro-batches that had to be 1."""
        count = wrong.made
        is_number = count.node is None and count.value != 1 and not count.parts
        return is_number and is_close(wrong.needed, 1) and self._right.is_size(count.value)

    def _behind(self, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the lines of plain Python that counted, or chose what was counted."""
        made = self._operation(wrong.made.node or wrong.user)
        user = self._operation(wrong.user) if made.name == GIVEN else made
        if user.line is None or not self._is_own(user.line):
            return
        sources = [*Slice(self._files).of(user.stack)]
        chosen = next((one for one in sources if one.chooses), None)
        if chosen is not None:
            line, counted = chosen.line, user.line
            is_given = (line.file, line.function) != (counted.file, counted.function)
            why = Why.MASK if is_given and self._only_adds(wrong.made) else Why.CHOSEN
            yield Ranked(why, wrong.depth, Suspect(line, words))
        if made.name == GIVEN and wrong.made.how is How.GIVEN:
            counting = [one.line for one in sources if one.counts]
            for place, line in enumerate(counting):
                yield Ranked(Why.COUNTED_BY_PYTHON, -place, Suspect(line, words))

    def _only_adds(self, count: Count) -> bool:
        """Whether a count is the sum of entries that were given, which the line that adds has."""
        parts = [*count.walk()]
        of_entries = all(one.how in (How.SUM, How.SAME, How.GIVEN) for one in parts)
        nodes = [one.node for one in parts if one.node is not None]
        made = [self._operation(node) for node in nodes]
        is_local = not any(one.collective or one.name.startswith(CONSTANTS) for one in made)
        return of_entries and is_local and len(parts) > 1

    def _of_collective(self, node: Node, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the line of a reduction over too many or too few ranks, and who chose them."""
        operation, count = self._operation(node), wrong.made.value
        if operation.collective is None or "reduce" not in operation.name or not count:
            return
        group, world = len(operation.collective.group), self.traced.context.layout.world_size
        is_right = self._right.ingredient(wrong.needed) is not None
        may_be_few = wrong.needed > count and group < world
        if self._right.ranks(wrong.needed / count) is None or not (is_right or may_be_few):
            return
        reduced = f"adds up over {group} of {world} ranks: {words}"
        yield from self._at(node, Why.GROUP, LATER, reduced)
        chooser = Slice(self._files).chosen_by(operation.stack, "group")
        if chooser is not None:
            yield Ranked(Why.GROUP, LATER + 1, Suspect(chooser, reduced))
        for place, line in enumerate(self._callers(node)):
            yield Ranked(Why.GROUP, -place, Suspect(line, reduced))

    def _callers(self, node: Node) -> Sequence[Line]:
        """The lines that led to one of the framework's own; none to one of its engine."""
        stack = self._operation(node).stack
        return stack[1:MOST] if stack and self._is_own(stack[0]) else ()

    def _of_number(self, wrong: _Wrong, words: str) -> Iterator[Ranked]:
        """Yield the line that computes with a number of Python, and those that assigned it."""
        number, operation = wrong.made.value, self._operation(wrong.user)
        names = [name for name, held in operation.variables if is_close(held, number)]
        is_size = self._right.is_size(number) and self._right.factor(wrong.needed) is not None
        knows = any(is_close(held, wrong.needed) for _, held in operation.variables)
        assigned = [*origins(operation.stack, names)]
        is_written = has_constant(operation.stack, number)
        if number == 1 and is_written and wrong.depth:
            yield from self._at(wrong.user, Why.WRITTEN, wrong.depth, words)
        if number == 1 and not (assigned or knows):
            return
        of_size = Why.ONE if number == 1 else Why.SIZE
        why = Why.CALLER if wrong.made.parts else of_size if is_size else Why.ASSIGNED
        if number != 1 and self._right.is_size(number) and not is_size:
            why = Why.CONSEQUENCE  # it is right for what it counts
        before = -LATER if is_written else LATER
        for place, line in enumerate(assigned):
            yield Ranked(why, before - place, Suspect(line, words))
        is_right = why is Why.CONSEQUENCE
        at = of_size if is_size else why if is_right else Why.COUNTED
        yield from self._at(wrong.user, at, wrong.depth, words)

    def _at(self, node: Node | None, why: Why, depth: int, words: str) -> Iterator[Ranked]:
        line = None if node is None else self._operation(node).line
        if line is not None:
            yield Ranked(why, depth, Suspect(line, words))

    def _is_part(self, count: Count) -> bool:
        """Whether it is the mask of a part of the step, which is right for that part."""
        return self._right.part(count.value) is not None

    def _divides(self, count: float) -> bool:
        """Whether a factor divides by a count."""
        return any(is_close(factor.value * count, 1) for factor in self.chain.factors)

    def _unused(self, value: float, wrong: _Wrong) -> Iterator[Node]:
        """Yield the collectives that make what a count had to be of what it is."""
        rank = (wrong.made.node or wrong.user).rank
        for place, operation in enumerate(self.chain.graph.traces[rank].operations):
            node = Node(rank, place)
            if operation.collective is None or node in self._counted:
                continue
            for one in operation.inputs:
                read = self._operation(Node(rank, one)).contents.values
                pairs = zip(read, operation.contents.values, strict=False)
                if any(is_close(a, value) and is_close(b, wrong.needed) for a, b in pairs):
                    yield node

    @cached_property
    def _counted(self) -> frozenset[Node]:
        """All nodes that the token's weight depends on."""
        found: set[Node] = set()
        waiting = [factor.node for factor in self.chain.factors]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self.chain.graph.inputs(node)
        return frozenset(found)

    def _recounted(self, count: Count) -> float:
        """What a count is without clamps, and without entries that come from no mask."""
        parts = [self._recounted(part) for part in count.parts]
        shares = [*zip(parts, count.shares, strict=False)]
        match count.how:
            case How.SAME | How.CLAMP:
                return parts[0]
            case How.SUM:
                return math.fsum(part * share for part, share in shares)
            case How.PRODUCT if all(parts):
                return math.prod(float(part**share) for part, share in shares)
            case How.GIVEN if count.node is not None:
                name = self._operation(count.node).name
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
