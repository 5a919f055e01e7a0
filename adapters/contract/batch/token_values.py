"""The values of tokens and samples in a probed batch: tables, cycled by token id or by sample.

All values are exact in float32. Advantages are signed powers of two, so dividing by them is exact.
"""

from __future__ import annotations

import numpy as np

from adapters.contract.objective import OF_TEACHER, Objective

# Advantages, cycled over the tokens of a batch: every sample has several signs and sizes.
ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.0, 0.5, -2.0, -4.0])

LOG_RATIOS = np.array([0.0, 0.5, -0.5, 1.25, 0.25, -0.25])
"""Log-ratios of new to old policy for off-policy losses, cycled over tokens. For advantages of
either sign, some tokens are clipped, and others would be if the other bound were applied."""

FALLS = np.array([-1.0, 0.5, 0.0, -0.25, -0.75, -1.0, 0.25, 0.25])
"""Log-ratios of new to old policy for `OPSM`: some means over sequences are far below 0."""

ROLLOUT_LOG_RATIOS = np.array([0.25, -0.5, 1.0, 0.0, -0.75])
"""Log-ratios of old to rollout policy for `OF_ROLLOUT_RATIOS`: some token ratios and some products
over sequences are truncated, and some means over sequences are out of bounds."""

PRODUCTS = np.array([0.25, -0.25, 0.5, 0.0, -0.375])
"""Log-ratios of old to rollout policy for masks by products: some products over sequences are out
of bounds."""

OUTLIERS = np.array([4.0, -0.5, 0.0, -0.25, 0.5, -0.75, 0.125, -0.125, -3.0, 0.25, -0.5])
"""Log-ratios of old to rollout policy for `OUTLIER_MASKED`: few ratios are outliers, some large and
some small."""

MOMENTS = np.where(np.arange(512) % 2, 1.0, -1.0) * (np.arange(512) * 77 % 512) / 256
"""Log-ratios of old to rollout policy for `M2PO`: all absolute values differ, so that squares can
be ordered."""

LOG_PROBS = -0.75 - (np.arange(128) * 45 % 128) / 32
"""Log-probabilities of the new policy for `OF_LOG_PROBS`; for other objectives they are 0. All
differ, so that covariances can be ordered. All are low enough that log-probabilities of the old
policy are below 0, too."""

NO_LOG_PROBS = np.zeros(1)

ENTROPIES = np.array([0.5, 2.0, 1.0, 0.25])

DIVERGENCES = np.array([1.0, 0.25, 0.5, 2.0, 4.0, 0.125])
"""Divergences from the reference policy, cycled over tokens like the entropies. Every divergence
is positive, so that only the mask can exclude a token from a metric."""

REJECTED_LOG_PROB = -4.0
"""Log-ratio of rollout policy to old policy at tokens that must be rejected; 0 at other tokens."""

LOAD_BALANCING, Z_LOSS = "load_balancing", "z_loss"
"""The auxiliary losses of a mixture-of-experts router."""

REWARDS = np.array([1.0, -0.5, 2.25, 0.25, -1.5, 0.75, 3.0, -0.25, 1.75, -2.0, 0.5])
"""Rewards, cycled over the samples of a batch: no two samples of a prompt have the same reward."""

VALUES = np.array([0.5, -1.0, 1.5, 0.25, -0.75])
"""A critic's values, cycled over tokens."""

OLD_VALUES = np.array([0.5, -0.5, 0.125, -0.625, 0.375, 0.21875])
"""A critic's values before training, cycled over tokens; new values are 0. Some exceed the clipping
bound of values, and one is between this bound and the lower clipping bound of ratios. All are so
small that the sign of a return alone decides whether its loss is clipped, even if the return is
halved."""

WITHOUT_POLICY_LOSS = (
    Objective.ENTROPY,
    Objective.KL,
    Objective.ADAPTIVE_KL,
    Objective.ROUTER,
    *OF_TEACHER,
)
"""Objectives without a policy loss: a single auxiliary term, router losses, or a loss from a
teacher."""

PADDING_VALUE = 2.0
"""A critic's value at padding tokens, which a framework must not read."""

OWN_LOG_RATIOS = {
    Objective.SEQUENCE_ICEPOP: PRODUCTS,
    Objective.PRODUCT_MASKED: PRODUCTS,
    Objective.OUTLIER_MASKED: OUTLIERS,
    Objective.M2PO: MOMENTS,
}
"""Log-ratios of old to rollout policy for objectives that do not use `ROLLOUT_LOG_RATIOS`."""

LARGEST = 16.0
"""An upper bound of all numbers computed from a token's values: an advantage of 4 times a ratio of
exp(1.25) is less."""

NEW_NAME = 1 << 40
"""The first number, above all token ids, that names a token which only a changed step has. Each
such token has its own values and an advantage of 0."""
