"""The impact of causes at the size of a production step, by numbers worked out by hand.

The production step has 512 samples with 453,819 active tokens; 5 of the samples are empty. It
is cut into 8 ranks of 8 micro-batches.
"""

import pytest

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.cause import UNSEEN_BY_ADAM, Impact, Range
from tests.causes.found import found
from tests.findings import Said, right, wrong

CUT = "(512 samples, dp 8, 8 micro-batches each)"
SLICED = "(512 samples, dp 8, cp 8, 8 micro-batches each)"


def said_of(*said: Said) -> str:
    [cause] = found(*said)
    return str(cause.impact)


@pytest.mark.parametrize(
    ("identity", "mistake", "words"),
    [
        # the production step has 8 context-parallel ranks
        (
            "weights/token_mean/a/dp1-cp2-mb1-thd",
            "multiplied_by_cp",
            f"gradient 8 times too large {SLICED}; {UNSEEN_BY_ADAM}",
        ),
        # 5 empty samples count as tokens: 1 - 453,819 / 453,824
        (
            "weights/token_mean/a/dp1-cp1-mb1-thd",
            "empty_samples_counted",
            f"gradient 0.0011 % too small {CUT}; {UNSEEN_BY_ADAM}",
        ),
        # the production step has 512 samples
        (
            "weights/constant/a/dp1-cp1-mb1-thd",
            "samples_not_averaged",
            f"gradient 512 times too large {CUT}; {UNSEEN_BY_ADAM}",
        ),
        (
            "metric/token_mean/a/dp2-cp1-mb1-thd",
            "divided_by_dp",
            f"the logged number is 8 times too small {CUT}",
        ),
        # in the catalogue's own words, as the factor depends on the step
        (
            "weights/token_mean/a/dp1-cp1-mb1-thd",
            "not_divided",
            "too large by the divisor that is missing, such as the number of tokens of a step",
        ),
        # each rank has 64 samples, so a mean of the ranks' means is right
        ("weights/sample_mean/a/dp2-cp1-mb1-thd", "denominators_per_rank", ""),
        # neither the lost tokens nor the size of a term besides the policy loss can be predicted
        ("weights/token_mean/a/dp2-cp1-mb1-thd", "tokens_lost", ""),
        ("auxiliary.kl/token_mean/a/dp2-cp1-mb1-thd", "divided_by_dp", ""),
    ],
)
def test_the_impact_is_what_a_mistake_does_to_a_production_step(
    identity: str, mistake: str, words: str
) -> None:
    assert said_of(wrong(identity, f"policy_loss/{mistake}")) == words


def test_what_is_measured_on_the_production_step_comes_before_any_prediction() -> None:
    numbers = [(0.94, 0.9563), (1.04, 1.0)]  # 0.9563 is the cosine of 17°
    measured = [
        (finding.model_copy(update={"scale": scale, "cosine": cosine}), clues)
        for mode, (scale, cosine) in zip(("token_mean", "sample_mean"), numbers, strict=True)
        for finding, clues in [
            wrong(f"weights/{mode}/production_step/dp4-cp1-mb2-thd", "policy_loss/divided_by_dp")
        ]
    ]
    tiny = wrong("weights/token_mean/a/dp2-cp1-mb1-thd", "policy_loss/divided_by_dp")

    assert said_of(*measured, tiny) == (
        "gradient 6 % too small to 4 % too large, direction off by up to 17°"
        " (512 samples, dp 4, 2 micro-batches each)"
    )


def test_nothing_is_said_of_a_batch_that_the_production_step_is_not() -> None:
    """The production step's groups have one size; the mistake shows only if sizes differ."""
    uneven = "where prompt groups differ in size"
    merged = "policy_loss/groups_merged"
    identity = "advantages.group_normalised/token_mean/{}/dp1-cp1-mb1-thd"
    assert "direction" in said_of(wrong(identity.format("a"), merged))
    assert not said_of(
        wrong(identity.format("a"), merged, facts=[uneven]), right(identity.format("b"), merged)
    )


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ((0.94, 1.04), "6 % too small to 4 % too large"),
        ((0.9583, 0.9687), "3.1 to 4.2 % too small"),
        ((1.0, 1.04), "up to 4 % too large"),
        ((0.5, 120.0), "2 times too small to 120 times too large"),
        ((453_819.0, 453_819.0), "454,000 times too large"),
        ((-0.5, 0.0), "-0.5 to 0 times the right size"),
        ((1.0, 1.0), ""),
    ],
)
def test_factors_are_said_in_words(factors: tuple[float, float], words: str) -> None:
    assert Range(*factors).off == words


def test_sizes_in_sentences_are_those_of_their_formulas() -> None:
    cp, tokens, dp, samples = 8, 16 * 1024, 8, 512
    assert (
        f"{(cp - 1) / tokens:.2%}".replace("%", " %") in MISTAKES["cp_shares_rounded_down"].at_size
    )
    assert (
        f"{(dp - 1) / samples:.1%}".replace("%", " %") in MISTAKES["repeated_rows_averaged"].at_size
    )


def test_an_impact_without_numbers_says_nothing() -> None:
    assert not str(Impact())
