"""The reference's formulas of objectives: derivatives of losses, estimators of advantages.

Formulas need numpy. They are separate from `objective` so that reports can be read without numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract.objective import ADVANTAGE_CONSTANTS, OF_VALUES, Objective
from reference import advantages
from reference.aggregation import EstimatorConventions, Penalties, TokenSet
from reference.losses import corrections, policy_losses

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from reference.advantages import Estimator, Rollouts
    from reference.aggregation import Conventions
    from reference.losses.constants import AdvantageConstants

    Values = NDArray[np.float64]

DERIVATIVES = {
    Objective.OFF_POLICY: policy_losses.ppo,
    Objective.REJECTION_OFF_POLICY: policy_losses.ppo,
    Objective.DUAL_CLIP: policy_losses.dual_clip,
    Objective.GSPO: policy_losses.gspo,
    Objective.CISPO: policy_losses.cispo,
    Objective.SAPO: policy_losses.sapo,
    # All new log-probabilities are 0, so all covariances are 0 and none clips a token.
    # `COVARIANCE_CLIPPED` has non-zero covariances.
    Objective.CLIP_COV: policy_losses.ppo,
    Objective.KL_COV: policy_losses.kl_cov,
    Objective.GEO_MEAN: policy_losses.geo_mean,
    Objective.GPG: policy_losses.gpg,
    Objective.DRO: policy_losses.dro,
    Objective.TIS_TOKEN: corrections.tis_token,
    Objective.TIS_SEQUENCE: corrections.tis_sequence,
    Objective.SEQUENCE_MASKED: corrections.sequence_masked,
    Objective.COVARIANCE_CLIPPED: corrections.covariance_clipped,
    Objective.COVARIANCE_PENALISED: corrections.covariance_penalised,
    Objective.DPPO_TV: policy_losses.dppo_tv,
    Objective.DPPO_KL: policy_losses.dppo_kl,
    Objective.IMPORTANCE_SAMPLING: policy_losses.importance_sampling,
    Objective.ROLLOUT_IS: policy_losses.rollout_is,
    Objective.REINFORCE_NORMALISED: corrections.reinforce_normalised,
    Objective.TIS_NORMALISED: corrections.tis_normalised,
    Objective.TIS_BOUNDED: corrections.tis_bounded,
    Objective.ICEPOP: corrections.icepop,
    Objective.SEQUENCE_ICEPOP: corrections.sequence_icepop,
    Objective.PRODUCT_MASKED: corrections.product_masked,
    Objective.OUTLIER_MASKED: corrections.outlier_masked,
    Objective.OPSM: corrections.opsm,
    Objective.M2PO: corrections.m2po,
}
"""The derivative of each off-policy loss with respect to a token's log-probability."""


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
