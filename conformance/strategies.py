"""hypothesis strategies for steps and aggregations, for anyone's own property tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from reference.aggregation import Aggregation, Conventions, EmptyUnits, Mode, SampleUnit
from reference.step import Sample, Step

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


@st.composite
def steps(draw: DrawFn, *, max_samples: int = 12, max_response: int = 12) -> Step:
    """Steps of up to ``max_samples`` samples: any masks, groups of any size in any order."""
    size = draw(st.integers(1, max_samples))
    identifiers = st.lists(st.integers(0, size - 1), min_size=size, max_size=size)
    groups, rollouts = draw(identifiers), draw(identifiers)
    return Step.of(
        [
            Sample(
                prompt_length=draw(st.integers(1, 8)),
                loss_mask=draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_response)),
                group=group,
                rollout=rollout,
            )
            for group, rollout in zip(groups, rollouts, strict=True)
        ]
    )


def aggregations() -> SearchStrategy[Aggregation]:
    """All modes, `constant` with divisors from 1 to 100,000, whole and broken."""
    divisors = st.one_of(st.integers(1, 100_000), st.floats(1, 1e5))
    return st.one_of(
        st.sampled_from([mode for mode in Mode if mode is not Mode.CONSTANT]).map(Aggregation),
        divisors.map(lambda divisor: Aggregation(Mode.CONSTANT, divisor)),
    )


def conventions() -> SearchStrategy[Conventions]:
    """Every combination of conventions."""
    return st.builds(
        Conventions,
        sample_unit=st.sampled_from(SampleUnit),
        empty_units=st.sampled_from(EmptyUnits),
    )
