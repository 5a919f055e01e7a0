"""The derivatives of off-policy losses by a token's log-probability.

They need numpy, and are separate from `objective` so that reports can be read without numpy.
"""

from __future__ import annotations

from adapters.contract.objective import Objective
from reference.losses import corrections, policy_losses

DERIVATIVES = {
    Objective.OFF_POLICY: policy_losses.ppo,
    Objective.REJECTION_OFF_POLICY: policy_losses.ppo,
    Objective.DUAL_CLIP: policy_losses.dual_clip,
    Objective.GSPO: policy_losses.gspo,
    Objective.CISPO: policy_losses.cispo,
    Objective.SAPO: policy_losses.sapo,
    # All new log-probabilities are 0, so all covariances are 0 and no token is clipped.
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
