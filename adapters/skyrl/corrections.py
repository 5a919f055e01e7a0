"""Corrections and selections of SkyRL's policy losses, as users type them.

Options are below `trainer.algorithm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.objective import CONSTANTS, Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.framework import Settings

CORRECTION = "off_policy_correction"
TYPE_OF_CORRECTION = f"{CORRECTION}.tis_ratio_type"
CLIPPED = {"eps_clip_low": CONSTANTS.clip_low, "eps_clip_high": CONSTANTS.clip_high}
MASKED = {
    f"{CORRECTION}.token_mask_is_threshold_low": 0.5,
    f"{CORRECTION}.token_mask_is_threshold_high": 2.0,
}

OBJECTIVES: Mapping[Objective, Settings] = {
    Objective.TIS_TOKEN: {
        **CLIPPED,
        TYPE_OF_CORRECTION: "token",
        f"{CORRECTION}.token_tis_ratio_clip_high": CONSTANTS.truncation,
    },
    Objective.TIS_SEQUENCE: {
        **CLIPPED,
        TYPE_OF_CORRECTION: "sequence",
        f"{CORRECTION}.sequence_tis_ratio_clip_high": CONSTANTS.truncation,
    },
    Objective.COVARIANCE_CLIPPED: {
        **CLIPPED,
        "policy_loss_type": "clip_cov",
        "clip_cov.clip_ratio": 1.0,  # else tokens are drawn at random
        "clip_cov.clip_cov_lb": CONSTANTS.covariance_low,
        "clip_cov.clip_cov_ub": CONSTANTS.covariance_high,
    },
    Objective.COVARIANCE_PENALISED: {
        "policy_loss_type": "kl_cov",
        "kl_cov.kl_cov_frac": CONSTANTS.covariance_fraction,
        "kl_cov.ppo_kl_coef": CONSTANTS.kl_penalty,
    },
    Objective.DPPO_TV: {
        "policy_loss_type": "dppo",
        "dppo.dppo_type": "binary_tv",
        "dppo.delta_low": CONSTANTS.variation_low,
        "dppo.delta_high": CONSTANTS.variation_high,
    },
    Objective.DPPO_KL: {
        "policy_loss_type": "dppo",
        "dppo.dppo_type": "binary_kl",
        "dppo.delta_low": CONSTANTS.divergence_low,
        "dppo.delta_high": CONSTANTS.divergence_high,
    },
    Objective.IMPORTANCE_SAMPLING: {"policy_loss_type": "importance_sampling"},
    Objective.ROLLOUT_IS: {**CLIPPED, "policy_loss_type": "rollout_is"},
    # The bound on a token's ratio is one that none reaches.
    Objective.SEQUENCE_MASKED: {
        **CLIPPED,
        TYPE_OF_CORRECTION: "token",
        f"{CORRECTION}.token_tis_ratio_clip_high": 1e6,
        f"{CORRECTION}.sequence_mask_metric": "geometric",
        f"{CORRECTION}.geo_mask_low": CONSTANTS.kept_low,
        f"{CORRECTION}.geo_mask_high": CONSTANTS.kept_high,
    },
    Objective.PRODUCT_MASKED: {
        **CLIPPED,
        f"{CORRECTION}.sequence_mask_metric": "product",
        f"{CORRECTION}.product_mask_low": CONSTANTS.kept_low,
        f"{CORRECTION}.product_mask_high": CONSTANTS.kept_high,
    },
    Objective.OUTLIER_MASKED: {
        **CLIPPED,
        f"{CORRECTION}.outlier_token_is_threshold_low": CONSTANTS.outlier_low,
        f"{CORRECTION}.outlier_token_is_threshold_high": CONSTANTS.outlier_high,
    },
}
