"""The reference's estimators of advantages for objectives, and their inputs from a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import ADVANTAGE_CONSTANTS, OF_VALUES, Objective
from reference import advantages
from reference.advantages import Rollouts
from reference.aggregation import EstimatorConventions, Penalties, TokenSet

if TYPE_CHECKING:
    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.advantages import Estimator
    from reference.aggregation import Conventions
    from reference.arrays import Values
    from reference.losses.constants import AdvantageConstants


@dataclass(frozen=True, kw_only=True)
class AdvantageEstimator:
    """An estimator of advantages, and whether its results are whitened."""

    raw: Estimator
    whitens: bool = False
    constants: AdvantageConstants = ADVANTAGE_CONSTANTS

    def __call__(self, rollouts: Rollouts, conventions: EstimatorConventions) -> Values:
        """The advantages of the tokens of a batch: [tokens]."""
        raw = self.raw(rollouts, self.constants, conventions)
        return advantages.whitened(raw, rollouts, conventions) if self.whitens else raw


WITHOUT_PENALTY = replace(ADVANTAGE_CONSTANTS, penalty=0.0)

ESTIMATORS = {
    Objective.GROUP_NORMALISED: AdvantageEstimator(raw=advantages.group_normalised),
    Objective.GROUP_CENTRED: AdvantageEstimator(raw=advantages.group_centred),
    Objective.OVERLONG: AdvantageEstimator(raw=advantages.group_centred),
    Objective.COMPLETE: AdvantageEstimator(raw=advantages.group_centred),
    Objective.WEIGHTED: AdvantageEstimator(raw=advantages.group_centred),
    Objective.MEAN_NORMALISED: AdvantageEstimator(raw=advantages.mean_normalised),
    Objective.LEAVE_ONE_OUT: AdvantageEstimator(raw=advantages.leave_one_out),
    Objective.OTHERS_NORMALISED: AdvantageEstimator(raw=advantages.others_normalised),
    Objective.GROUP_WHITENED: AdvantageEstimator(raw=advantages.group_normalised, whitens=True),
    Objective.REINFORCE_PP: AdvantageEstimator(raw=advantages.discounted_returns, whitens=True),
    Objective.REINFORCE_PP_BASELINE: AdvantageEstimator(
        raw=advantages.penalised_centred, whitens=True
    ),
    Objective.DISTILLED: AdvantageEstimator(raw=advantages.penalised_centred),
    Objective.GAE: AdvantageEstimator(raw=advantages.gae, whitens=True, constants=WITHOUT_PENALTY),
    Objective.PENALISED_GAE: AdvantageEstimator(raw=advantages.gae, whitens=True),
}
"""The estimator of each objective whose advantages the framework computes."""


def estimator_conventions(objective: Objective, conventions: Conventions) -> EstimatorConventions:
    """The conventions that an estimator of advantages depends on."""
    if objective in OF_VALUES:
        declared = conventions.of_values
    elif objective is Objective.REINFORCE_PP:
        declared = conventions.of_returns
    else:
        declared = conventions.of_groups
    usual = declared or EstimatorConventions()
    if objective is Objective.DISTILLED:  # a penalty per token, without a reference policy
        usual = replace(usual, penalties=Penalties.TOKEN, penalised=TokenSet.ACTIVE)
    return replace(
        usual,
        compared=conventions.compared or usual.compared,
        rejected=conventions.rejected_rewards or usual.rejected,
        lone=conventions.lone_reward or usual.lone,
        missing=conventions.missing_rewards or usual.missing,
        deviation=conventions.deviation or usual.deviation,
    )


def rollouts_of(batch: ProbedBatch) -> Rollouts:
    """The inputs of advantages, for the tokens of all steps, flat."""
    is_distilled = batch.objective is Objective.DISTILLED
    penalising = batch.teacher_log_probs if is_distilled else batch.reference_log_probs
    masks = zip(batch.original_masks, batch.masks, strict=True)
    return Rollouts(
        rewards=_shaped_rewards(batch),
        groups=batch.groups,
        trajectories=batch.trajectories,
        rejected=np.array([bool(before.any() and not after.any()) for before, after in masks]),
        sample=batch.sample,
        mask=np.concatenate(batch.masks),
        values=np.concatenate(batch.values),
        divergences=-np.concatenate(penalising),
    )


def _shaped_rewards(batch: ProbedBatch) -> Values:
    """Each sample's reward after shaping, from which advantages are computed."""
    if batch.objective is not Objective.OVERLONG:
        return batch.rewards
    lengths = np.array([len(ids) for ids in batch.responses])
    limit = 1 + int(lengths.max())  # above the length of every response
    return batch.rewards - advantages.overlong_penalties(lengths, limit, ADVANTAGE_CONSTANTS)
