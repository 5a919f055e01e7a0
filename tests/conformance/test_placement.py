"""The cut of a step, from the forward passes in which ranks held its tokens."""

import numpy as np

from adapters.contract import Layout, Observation
from conformance.expected.placement import (
    filled_rows,
    forward_pass_of_token,
    rows_of_passes,
    token_placement,
    zigzag_rank,
)
from reference.step import Sample, Step

NONE = -1

PASSES = np.array(
    [
        # the samples of the tokens: a a a a b b c c d d
        [4, NONE, 4, NONE, 6, NONE, NONE, NONE, NONE, NONE],
        [NONE, 4, NONE, 4, NONE, NONE, NONE, NONE, NONE, NONE],
        [NONE, NONE, NONE, NONE, NONE, NONE, 0, NONE, NONE, 3],
        [NONE, NONE, NONE, NONE, NONE, NONE, NONE, 0, 1, NONE],
    ]
)
"""The forward pass of each token with dp = 2 and cp = 2. The passes missing on the first two ranks
belong to other steps."""


def test_tokens_are_where_a_rank_held_them() -> None:
    passes = np.delete(PASSES, 5, axis=1)
    placement = token_placement(passes, Layout(dp=2, cp=2))

    assert placement.dp_rank.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert placement.cp_rank.tolist() == [0, 1, 0, 1, 0, 0, 1, 1, 0]
    assert placement.micro_batch.tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 2]
    assert placement.micro_batch.dtype == np.int64
    assert placement.micro_batch_number.tolist() == [0, 0, 0, 0, 1, 2, 2, 3, 4]
    assert placement.micro_batches.tolist() == [2, 2, 2, 2, 2, 3, 3, 3, 3]


def test_micro_batches_are_numbered_from_0_on_a_single_rank_too() -> None:
    placement = token_placement(np.array([[6, 4, 6, 9]]), Layout())

    assert placement.micro_batch.tolist() == [1, 0, 1, 2]
    assert placement.micro_batches.tolist() == [3] * 4
    assert {placement.micro_batch_number.dtype, placement.micro_batches.dtype} == {
        np.dtype(np.int64)
    }


def test_token_that_two_ranks_held_is_the_first_one_s() -> None:
    placement = token_placement(np.array([[0, NONE], [5, 5]]), Layout(dp=2))

    assert placement.dp_rank.tolist() == [0, 1]
    assert placement.micro_batch.tolist() == [0, 0]


def observations(*ranks: list[int] | None) -> list[Observation]:
    return [
        Observation(
            token_weights=(), forward_passes=(np.array([9, 9]), np.array(rank)) if rank else ()
        )
        for rank in ranks
    ]


def test_ranks_tell_what_they_held_of_a_step() -> None:
    passes = forward_pass_of_token(observations([0, NONE], [NONE, 1]), 1, Layout(cp=2))

    assert passes.tolist() == [[0, NONE], [NONE, 1]]


def test_first_of_the_tensor_parallel_ranks_speaks_for_all() -> None:
    passes = forward_pass_of_token(
        observations([0, NONE], [7, 7], [NONE, 1], None), 1, Layout(dp=2, tp=2)
    )

    assert passes.tolist() == [[0, NONE], [NONE, 1]]


def test_nothing_is_known_where_a_rank_does_not_tell() -> None:
    assert forward_pass_of_token(observations([0, 0], None), 1, Layout(dp=2)) is None
    assert forward_pass_of_token(observations(None), 0, Layout()) is None


def test_rows_of_repeated_samples_fill_up_micro_batches() -> None:
    """Two ranks have two passes; the second has copies, one beside its own sample and one alone."""
    passes = np.array([[0, 0, 1, -1], [-1, -1, -1, 0]], np.int32)
    rows = np.array([[2, 1], [2, 1]], np.int32)
    layout = Layout(dp=2)
    filled = filled_rows(rows, passes, token_placement(passes, layout), layout, 2)

    assert filled.of_micro_batch.tolist() == [2, 2, 1, 2]
    assert filled.of_rank.tolist() == [3, 3, 3, 3]
    assert filled.micro_batches.tolist() == [2, 2, 2, 2]
    assert filled.most_micro_batches == 2


def test_rows_are_added_over_context_parallel_ranks_and_unknown_unless_all_tell() -> None:
    """Each row begins on one of the two ranks; the first rank has one more pass."""
    of_ranks = [np.array([1, 0, 1], np.int32), np.array([1, 1], np.int32)]
    told = [Observation(token_weights=(), rows=(rows,)) for rows in of_ranks]
    layout = Layout(cp=2)

    rows = rows_of_passes(told, 0, layout)
    assert rows.tolist() == [[2, 1, 1]]
    assert rows_of_passes([told[0], Observation(token_weights=())], 0, layout) is None


def test_zigzag_slices_take_a_chunk_from_either_end() -> None:
    """12 tokens are 4 chunks of 3; the 7 of the response are predicted at positions 4 to 10."""
    step = Step.of([Sample(prompt_length=5, loss_mask=[1] * 7, group=0)] * 2)

    assert zigzag_rank(step, 2).tolist() == [1, 1, 1, 1, 1, 0, 0] * 2
    assert not zigzag_rank(step, 1).any()
