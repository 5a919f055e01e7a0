"""The derivatives of policy losses, by hand and against torch's gradients of the losses."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.objective import (
    CONSTANTS,
    OF_THE_ROLLOUT_POLICY,
    OFF_POLICY,
    Objective,
)
from adapters.native.corrections import CORRECTIONS, ActiveTokens
from adapters.native.losses import POLICY_LOSSES, ppo
from adapters.native.packing import Packed
from reference.losses import corrections, policy_losses
from reference.losses.policy_losses import PolicyTokens


def tokens(
    *log_ratios: float,
    advantages: list[float] | None = None,
    rollout: list[float] | None = None,
    mask: list[int] | None = None,
    sequence: list[int] | None = None,
) -> PolicyTokens:
    """Tokens of one sequence, by default all active and with advantages of 1."""
    size = len(log_ratios)
    return PolicyTokens(
        advantages=np.array(advantages or [1.0] * size),
        log_probs=np.zeros(size),
        log_ratios=np.array(log_ratios),
        rollout_log_ratios=np.array(rollout or [0.0] * size),
        mask=np.array(mask or [1] * size, bool),
        sequence=np.array(sequence or [0] * size),
        batch=np.zeros(size, int),
    )


def test_clipped_tokens_have_no_gradient() -> None:
    """Ratios are clipped to 0.8 or 1.3125 if clipping makes the loss larger."""
    given = tokens(0.0, 0.5, -0.5, 0.5, -0.5, advantages=[2.0, 2.0, 2.0, -1.0, -1.0])

    assert policy_losses.ppo(given, CONSTANTS).tolist() == pytest.approx(
        [-2.0, 0.0, -2 * math.exp(-0.5), math.exp(0.5), 0.0]
    )


def test_dual_clip_bounds_negative_advantages() -> None:
    given = tokens(1.25, 1.0, 1.25, advantages=[-1.0, -1.0, 1.0])

    assert policy_losses.dual_clip(given, CONSTANTS).tolist() == pytest.approx([0.0, math.e, 0.0])


def test_sequence_shares_the_mean_of_its_active_log_ratios() -> None:
    """The means are 0.1 and -0.1, as the masked third token is not in the first mean."""
    given = tokens(0.3, -0.1, 9.0, -0.1, mask=[1, 1, 0, 1], sequence=[0, 0, 0, 1])

    assert policy_losses.gspo(given, CONSTANTS).tolist() == pytest.approx(
        [-math.exp(0.1)] * 3 + [-math.exp(-0.1)]
    )


def test_sequence_without_active_tokens_has_a_ratio_of_one() -> None:
    given = tokens(0.3, 0.1, mask=[0, 0])

    assert policy_losses.gspo(given, CONSTANTS).tolist() == [-1.0, -1.0]


def test_clipped_importance_weights_keep_their_gradient() -> None:
    given = tokens(0.0, 0.5, -0.5, advantages=[1.0, 1.0, -1.0])

    assert policy_losses.cispo(given, CONSTANTS).tolist() == pytest.approx([-1.0, -1.3125, 0.8])


def test_soft_gates_are_one_at_a_ratio_of_one() -> None:
    """4·σ·(1-σ) is 1 for σ = 1/2; with τ = 1 and r = e^0.5 it is 1 / cosh(0.3244)^2."""
    given = tokens(0.0, 0.0, 0.5, advantages=[1.0, -2.0, 1.0])

    assert policy_losses.sapo(given, CONSTANTS).tolist() == pytest.approx(
        [-1.0, 2.0, -math.exp(0.5) / math.cosh((math.exp(0.5) - 1) / 2) ** 2]
    )


def test_penalty_has_the_sign_of_the_log_ratio() -> None:
    given = tokens(0.0, 0.5, -0.5)

    assert policy_losses.kl_cov(given, CONSTANTS).tolist() == pytest.approx(
        [-1.0, 0.5 - math.exp(0.5), -0.5 - math.exp(-0.5)]
    )


def test_geometric_mean_is_of_clipped_ratios() -> None:
    """Log-ratios are 0.5, which is clipped to 0.3125, and -0.5: the mean is -0.09375."""
    given = tokens(0.5, -0.5, 9.0, mask=[1, 1, 0])
    negative = tokens(0.5, -0.5, advantages=[-1.0, -1.0])

    assert policy_losses.geo_mean(given, CONSTANTS).tolist() == pytest.approx(
        [0.0, -math.exp(-0.09375), 0.0]
    )
    assert policy_losses.geo_mean(negative, CONSTANTS).tolist() == pytest.approx(
        [math.exp(0.15), 0.0]
    )


def test_losses_without_ratios() -> None:
    given = tokens(0.5, -0.5, advantages=[2.0, -1.0])

    assert policy_losses.gpg(given, CONSTANTS).tolist() == [-2.0, 1.0]
    assert policy_losses.dro(given, CONSTANTS).tolist() == [-1.75, 0.75]


def test_corrections_are_truncated() -> None:
    """Ratios are e^0.5, e^-1 and 2 (truncated); their product is e^0.5 without the masked one."""
    rollout = [0.5, -1.0, 1.0, 3.0]
    given = tokens(0.0, 0.0, 0.0, 0.0, rollout=rollout, mask=[1, 1, 1, 0])

    of_tokens = [-math.exp(0.5), -math.exp(-1), -2.0, -2.0]
    assert corrections.tis_token(given, CONSTANTS).tolist() == pytest.approx(of_tokens)
    assert corrections.tis_sequence(given, CONSTANTS).tolist() == pytest.approx(
        [-math.exp(0.5)] * 4
    )
    higher = replace(given, rollout_log_ratios=given.rollout_log_ratios + 1)
    assert corrections.tis_sequence(higher, CONSTANTS).tolist() == [-2.0] * 4


def test_sequences_out_of_bounds_have_no_loss_and_others_the_ratios_of_tokens() -> None:
    """Means are 0, 0.25 and -0.5; ratios of 0.7 to 1.25 are kept, e^-0.357 to e^0.223."""
    rollout = [0.5, -0.5, 9.0, 0.0, 0.5, -0.5]
    given = tokens(*[0.0] * 6, rollout=rollout, mask=[1, 1, 0, 1, 1, 1])
    given = replace(given, sequence=np.array([0, 0, 0, 1, 1, 2]))

    assert corrections.sequence_masked(given, CONSTANTS).tolist() == pytest.approx(
        [-math.exp(0.5), -math.exp(-0.5), -math.exp(9), 0, 0, 0]
    )


def test_covariances_between_the_bounds_are_clipped() -> None:
    """Means are 1/4 and -2 without the masked token; covariances are 4, -1/2, 4 and 13."""
    given = tokens(0.0, 0.0, 0.0, 0.0, 0.0, advantages=[4.25, 0.75, 2.25, -6.25, 9.0])
    given = replace(given, log_probs=np.array([-1.0, -3.0, 0.0, -4.0, -9.0]))
    given = replace(given, mask=np.array([1, 1, 1, 1, 0], bool))
    covariances = [Fraction(4), Fraction(-1, 2), Fraction(4), Fraction(13)]

    assert [Fraction(one) for one in corrections.covariances(given)[:4]] == covariances
    assert corrections.covariance_clipped(given, CONSTANTS)[:4].tolist() == [0, -0.75, 0, 6.25]


def test_a_fraction_of_the_largest_covariances_is_penalised_in_every_batch() -> None:
    """A quarter of eight tokens is two tokens; of two with equal covariances, it is one."""
    given = tokens(*[0.5] * 10, advantages=[1.0, -1.0] * 5)
    log_probs = np.array([-1.0, -1.5, -2.0, -2.5, -3.0, -3.5, -4.0, -4.5, -1.0, -2.0])
    given = replace(given, log_probs=log_probs, batch=np.array([0] * 8 + [1] * 2))
    penalty = corrections.covariance_penalised(given, CONSTANTS) + given.advantages * given.ratios

    assert np.flatnonzero(penalty).tolist() == [0, 7, 8]
    assert penalty[[0, 7, 8]] == pytest.approx(CONSTANTS.kl_penalty)
    assert np.flatnonzero(corrections.tied(given, CONSTANTS)).tolist() == [8, 9]


def test_tokens_of_moved_probability_have_no_gradient() -> None:
    """Probabilities are 1/2 now, and were 9/20, 7/16, 1/2 + 1/128 and 1/2 + 1/32."""
    old = [Fraction(9, 20), Fraction(7, 16) - Fraction(1, 999), Fraction(65, 128), Fraction(17, 32)]
    log_ratios = [math.log(Fraction(1, 2) / one) for one in old]
    given = tokens(*log_ratios, advantages=[1.0, 1.0, -1.0, -1.0])
    given = replace(given, log_probs=np.full(4, math.log(0.5)))
    towards = replace(given, advantages=-given.advantages)

    assert policy_losses.dppo_tv(given, CONSTANTS).tolist() == pytest.approx(
        [-10 / 9, 0, 64 / 65, 0]
    )
    assert (policy_losses.dppo_tv(towards, CONSTANTS) != 0).all()


def test_binary_divergence_is_of_a_token_and_of_any_other() -> None:
    """From 1/4 to 1/2 it is 1/4 ln(1/2) + 3/4 ln(3/2) = 0.13; from 1/2 to 9/20 it is 0.005."""
    given = tokens(math.log(2), math.log(0.9), advantages=[1.0, -1.0])
    given = replace(given, log_probs=np.log([0.5, 0.45]))
    weaker = replace(CONSTANTS, divergence_low=0.0051, divergence_high=0.1309)

    assert policy_losses.dppo_kl(given, CONSTANTS).tolist() == [0, 0]
    assert policy_losses.dppo_kl(given, weaker).tolist() == pytest.approx([-2.0, 0.9])
    assert policy_losses.importance_sampling(given, CONSTANTS).tolist() == pytest.approx(
        [-2.0, 0.9]
    )


def test_ratios_out_of_bounds_count_for_nothing_whatever_the_advantage() -> None:
    given = tokens(0.0, 0.5, -0.5, 0.25, advantages=[2.0, -1.0, 1.0, -1.0])

    assert policy_losses.rollout_is(given, CONSTANTS).tolist() == pytest.approx(
        [-2.0, 0, 0, math.exp(0.25)]
    )


def test_truncated_ratios_have_a_mean_of_one() -> None:
    """Ratios are 1/2, 1, 4 (truncated to 2) and a masked one: the mean is 7/6."""
    log_ratios = [math.log(0.5), 0.0, math.log(4), 5.0]
    given = tokens(0.0, 0.0, 0.0, 0.0, rollout=log_ratios, mask=[1, 1, 1, 0])
    of_new = tokens(*log_ratios, mask=[1, 1, 1, 0])
    expected = [-float(Fraction(ratio) / Fraction(7, 6)) for ratio in ("1/2", "1", "2", "2")]

    assert corrections.tis_normalised(given, CONSTANTS) == pytest.approx(expected)
    assert corrections.reinforce_normalised(of_new, CONSTANTS) == pytest.approx(expected)


def test_ratios_have_a_lower_bound_or_none_out_of_bounds() -> None:
    rollout = [math.log(ratio) for ratio in (0.5, 1.5, 4.0)]
    given = tokens(0.0, 0.0, 0.0, rollout=rollout)

    assert corrections.tis_bounded(given, CONSTANTS) == pytest.approx([-0.7, -1.5, -2.0])
    assert corrections.icepop(given, CONSTANTS) == pytest.approx([0, -1.5, 0])


def test_products_out_of_bounds_count_for_nothing() -> None:
    """Products are 3/2, 1/2 and 4."""
    rollout = [math.log(ratio) for ratio in (3, 0.5, 0.5, 4)]
    given = tokens(*[0.0] * 4, rollout=rollout, sequence=[0, 0, 1, 2])

    assert corrections.sequence_icepop(given, CONSTANTS) == pytest.approx([-1.5, -1.5, 0, 0])


def test_sequences_are_dropped_by_their_product_and_by_an_outlier() -> None:
    """Products are 1, 4, 1/2 and 1; the masked token's ratio of 100 is in none of them."""
    ratios = [2.0, 0.5, 4.0, 100.0, 0.5, 16.0, 0.0625]
    given = tokens(
        *[0.0] * 7, rollout=[math.log(one) for one in ratios], mask=[1, 1, 1, 0, 1, 1, 1]
    )
    given = replace(given, sequence=np.array([0, 0, 1, 1, 2, 3, 3]))

    assert corrections.product_masked(given, CONSTANTS).tolist() == [-1, -1, 0, 0, 0, -1, -1]
    assert corrections.outlier_masked(given, CONSTANTS).tolist() == [-1, -1, -1, -1, -1, 0, 0]


def test_only_negative_advantages_of_sequences_that_fell_are_dropped() -> None:
    """The mean of -log r is 1/4 in the first sequence, and -1/4 in the second."""
    log_ratios = [0.0, -0.5, 0.0, 0.5]
    given = tokens(*log_ratios, advantages=[-1.0, 1.0, -1.0, -1.0], sequence=[0, 0, 1, 1])

    assert corrections.opsm(given, CONSTANTS).tolist() == pytest.approx(
        [0, -math.exp(-0.5), 1, math.exp(0.5)]
    )


def test_second_moment_of_the_tokens_that_are_kept_is_below_its_bound() -> None:
    """Squared log-ratios are 1, 1/4, 0 and 1/4: with the first, their mean is exactly the bound."""
    rollout = [1.0, -0.5, 0.0, 0.5, 9.0]
    given = tokens(*[0.0] * 5, rollout=rollout, mask=[1, 1, 1, 1, 0])
    squares = [Fraction(one) ** 2 for one in rollout[:4]]

    assert sum(squares) / 4 == Fraction(CONSTANTS.second_moment)
    assert corrections.m2po(given, CONSTANTS)[:4].tolist() == [0, -1, -1, -1]
    apart = replace(given, batch=np.array([0, 1, 1, 1, 1]))
    assert corrections.m2po(apart, CONSTANTS)[:4].tolist() == [-1, -1, -1, -1]


FIELDS = tuple(ActiveTokens.__dataclass_fields__)

FAR_FROM_BOUNDS = st.sampled_from([-1.5, -0.7, -0.3, -0.1, 0.0, 0.1, 0.2, 0.4, 0.9, 1.3])


@st.composite
def random_tokens(draw: st.DrawFn) -> PolicyTokens:
    """Up to three sequences of up to five tokens, with ratios that are not at a bound."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    size = sum(lengths)

    def several(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)))

    return PolicyTokens(
        advantages=several(st.sampled_from([-2.0, -0.5, 0.25, 1.0, 3.0])),
        log_probs=several(st.floats(-6.0, -2.0)),
        log_ratios=several(FAR_FROM_BOUNDS),
        rollout_log_ratios=several(FAR_FROM_BOUNDS),
        mask=several(st.sampled_from([0, 1, 1])).astype(bool),
        sequence=np.repeat(np.arange(len(lengths)), lengths),
        batch=np.zeros(size, int),
    )


@pytest.mark.parametrize("objective", OFF_POLICY)
@settings(max_examples=25)
@given(given=random_tokens())
def test_derivatives_are_those_of_the_losses(objective: Objective, given: PolicyTokens) -> None:
    """They equal torch's gradients by the new log-probabilities, in float64."""
    none = torch.zeros(0)
    old = given.log_probs - given.log_ratios
    if objective in OF_THE_ROLLOUT_POLICY:
        given = replace(given, rollout_log_ratios=np.zeros(len(old)))
    if objective is Objective.M2PO:  # makes all squares different
        apart = given.rollout_log_ratios + np.arange(len(old)) / 1024
        given = replace(given, rollout_log_ratios=apart)
    packed = Packed(
        ids=none,
        advantages=torch.from_numpy(given.advantages),
        old_log_probs=torch.from_numpy(old),
        reference_log_probs=none,
        teacher_log_probs=none,
        rollout_log_probs=torch.from_numpy(old - given.rollout_log_ratios),
        old_values=none,
        returns=none,
        entropies=none,
        mask=torch.from_numpy(given.mask),
        original_mask=none,
        log_probs=torch.from_numpy(given.log_probs),
        correction=torch.ones(len(old), dtype=torch.float64),
        denominators=none,
        auxiliary_denominators=none,
        original_denominators=none,
        sequence=torch.from_numpy(given.sequence),
    )
    if objective in CORRECTIONS and given.mask.any():
        active = {field: getattr(packed, field)[packed.mask] for field in FIELDS}
        correction = CORRECTIONS[objective](ActiveTokens(**active))
        packed = replace(
            packed, correction=packed.correction.masked_scatter(packed.mask, correction)
        )
    log_probs = packed.log_probs.clone().requires_grad_()

    def sequence_sum(values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.from_numpy(given.summed(values.numpy()))

    loss = POLICY_LOSSES.get(objective, ppo)
    loss(log_probs, packed, sequence_sum).sum().backward()

    judged = given.mask
    if objective is Objective.COVARIANCE_PENALISED:
        judged = judged & ~corrections.tied(given, CONSTANTS)
    found = DERIVATIVES[objective](given, CONSTANTS)
    assert found[judged] == pytest.approx(log_probs.grad.numpy()[judged])
