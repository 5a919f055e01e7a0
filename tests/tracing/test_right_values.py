"""The reference's counts of the parts of a step, in the order of a rank's micro-batches."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.tracing import right_values
from conformance.tracing.right_values import PARTS, LeftOut, counts_of_parts, left_out

OWN, OF_SAMPLES, OF_ALL, OF_RANK, SAMPLES, SAMPLES_OF_RANK = PARTS


def test_tokens_of_micro_batches_are_counted_on_each_rank_and_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two ranks has two micro-batches, and the second rank has one."""
    monkeypatch.setattr(right_values, "counts_of_step", lambda _: {"of the step": 6.0})
    mask = np.array([1, 1, 1, 0, 1, 1, 1], np.bool_)
    sample = np.array([0, 0, 1, 1, 2, 2, 3])
    context: Any = SimpleNamespace(
        step=SimpleNamespace(mask=mask),
        sample=sample,
        placement=SimpleNamespace(
            dp_rank=np.array([0, 0, 0, 0, 1, 1, 1]),
            micro_batch_number=np.array([0, 0, 1, 1, 2, 2, 2]),
        ),
    )
    passes = ([0, 0, 1, 1, -1, -1, -1], [-1, -1, -1, -1, 0, 0, 0])
    observations: Any = [SimpleNamespace(forward_passes=[np.array(one)]) for one in passes]

    counts = counts_of_parts(context, observations)

    assert counts[OWN] == [[2.0, 1.0], [3.0]]
    assert counts[OF_SAMPLES] == [[2.0, 1.0], [2.0, 1.0]]
    assert counts[OF_ALL] == [[5.0, 1.0], [5.0, 1.0]]
    assert counts[OF_RANK] == [[3.0], [3.0]]
    assert counts[SAMPLES] == [[1.0, 1.0], [2.0]]
    assert counts[SAMPLES_OF_RANK] == [[2.0], [2.0]]
    assert counts["of the step"] == [[6.0], [6.0]]


def test_parts_are_left_out_where_others_are_counted_right() -> None:
    right = [[15.0, 19.0, 1.0]]
    lacking = left_out((((15.0,), (19.0,)),), right)

    assert lacking == LeftOut(parts=1, counted=34.0, right=35.0)
    assert left_out((((15.0,), (18.0,)),), right) is None
    assert left_out((((15.0, 19.0, 1.0),),), right) is None
    overwritten = left_out((((15.0,), (19.0,), (1.0,)),), right)
    assert overwritten == LeftOut(parts=2, counted=1.0, right=35.0)


def test_parts_that_are_left_out_make_a_wrong_count_only_if_it_is_their_sum() -> None:
    lacking = LeftOut(parts=4, counted=9.0, right=22.0)

    assert lacking.makes(9.0, 22.0)
    assert not lacking.makes(4.5, 5.5)  # another count, which lacks no part
    assert not lacking.makes(9.0, None)
