"""The derivatives of policy losses, by hand and against torch's gradients of the losses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.contract.formulas import DERIVATIVES
from adapters.contract.objective import CONSTANTS, OFF_POLICY, Objective
from adapters.native.losses import POLICY_LOSSES, ppo
from adapters.native.packing import Packed
from reference import policy_losses
from reference.policy_losses import PolicyTokens


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
        log_ratios=np.array(log_ratios),
        rollout_log_ratios=np.array(rollout or [0.0] * size),
        mask=np.array(mask or [1] * size, bool),
        sequence=np.array(sequence or [0] * size),
    )


def test_clipped_tokens_have_no_gradient() -> None:
    """Ratios are clipped to 0.8 and 1.3125 where that makes the loss larger."""
    given = tokens(0.0, 0.5, -0.5, 0.5, -0.5, advantages=[2.0, 2.0, 2.0, -1.0, -1.0])

    assert policy_losses.ppo(given, CONSTANTS).tolist() == pytest.approx(
        [-2.0, 0.0, -2 * math.exp(-0.5), math.exp(0.5), 0.0]
    )


def test_dual_clip_bounds_negative_advantages() -> None:
    given = tokens(1.25, 1.0, 1.25, advantages=[-1.0, -1.0, 1.0])

    assert policy_losses.dual_clip(given, CONSTANTS).tolist() == pytest.approx([0.0, math.e, 0.0])


def test_sequence_shares_the_mean_of_its_active_log_ratios() -> None:
    """Means of 0.1 and -0.1: the masked third token has no part in the first."""
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
    """Log-ratios of 0.5 and -0.5: the first is clipped to 0.3125; their mean is -0.09375."""
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
    assert policy_losses.tis_token(given, CONSTANTS).tolist() == pytest.approx(of_tokens)
    assert policy_losses.tis_sequence(given, CONSTANTS).tolist() == pytest.approx(
        [-math.exp(0.5)] * 4
    )
    higher = replace(given, rollout_log_ratios=given.rollout_log_ratios + 1)
    assert policy_losses.tis_sequence(higher, CONSTANTS).tolist() == [-2.0] * 4


def test_sequences_out_of_bounds_have_no_loss_and_others_the_ratios_of_tokens() -> None:
    """Means are 0, 0.25 and -0.5; ratios of 0.7 to 1.25 are kept, e^-0.357 to e^0.223."""
    rollout = [0.5, -0.5, 9.0, 0.0, 0.5, -0.5]
    given = tokens(*[0.0] * 6, rollout=rollout, mask=[1, 1, 0, 1, 1, 1])
    given = replace(given, sequence=np.array([0, 0, 0, 1, 1, 2]))

    assert policy_losses.sequence_masked(given, CONSTANTS).tolist() == pytest.approx(
        [-math.exp(0.5), -math.exp(-0.5), -math.exp(9), 0, 0, 0]
    )


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
        log_ratios=several(FAR_FROM_BOUNDS),
        rollout_log_ratios=several(FAR_FROM_BOUNDS),
        mask=several(st.sampled_from([0, 1, 1])).astype(bool),
        sequence=np.repeat(np.arange(len(lengths)), lengths),
    )


@pytest.mark.parametrize("objective", OFF_POLICY)
@settings(max_examples=25)
@given(given=random_tokens())
def test_derivatives_are_those_of_the_losses(objective: Objective, given: PolicyTokens) -> None:
    """torch differentiates losses in float64, at new log-probabilities of 0."""
    none = torch.zeros(0)
    packed = Packed(
        ids=none,
        advantages=torch.from_numpy(given.advantages),
        old_log_probs=torch.from_numpy(-given.log_ratios),
        reference_log_probs=none,
        rollout_log_probs=torch.from_numpy(-given.log_ratios - given.rollout_log_ratios),
        old_values=none,
        mask=torch.from_numpy(given.mask),
        original_mask=none,
        denominators=none,
        auxiliary_denominators=none,
        original_denominators=none,
        sequence=torch.from_numpy(given.sequence),
    )
    log_probs = torch.zeros(len(given.mask), dtype=torch.float64, requires_grad=True)

    def of_sequence(values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.from_numpy(given.summed(values.numpy()))

    loss = POLICY_LOSSES.get(objective, ppo)
    loss(log_probs, packed, of_sequence).sum().backward()

    assert DERIVATIVES[objective](given, CONSTANTS) == pytest.approx(log_probs.grad.numpy())
