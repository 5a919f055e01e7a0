"""Each wrong derivative in words; without numpy, as reports are shown without it."""

from __future__ import annotations

OF_DERIVATIVES = {
    "ratios_left_out": "ratios of new to old policy are taken for 1",
    "ratios_inverted": "ratios are those of the old to the new policy",
    "clipping_left_out": "tokens whose loss is clipped have a gradient",
    "clipped_on_both_sides": "tokens are clipped whatever the sign of their advantage",
    "clipped_tokens_left_out": "tokens whose ratio is clipped have no gradient",
    "clip_bounds_swapped": "the clipping bounds are swapped",
    "one_clip_bound": "one clipping bound is taken for both",
    "dual_clip_left_out": "losses of negative advantages have no bound",
    "ratios_of_tokens": "ratios of tokens stand for those of sequences",
    "ratios_of_sequences": "ratios of sequences stand for those of tokens",
    "ratios_multiplied": "the ratio of a sequence is a product and not a mean",
    "masked_tokens_in_ratios": "ratios of sequences have a part of masked tokens",
    "ratios_per_cp_slice": "ratios of sequences are those of context-parallel slices",
    "temperatures_swapped": "the temperatures of positive and negative advantages are swapped",
    "one_temperature": "one temperature is taken for both signs of the advantage",
    "penalty_not_divided": "the penalty on log-ratios is added up and not divided",
    "penalty_left_out": "the penalty on log-ratios has no gradient",
    "penalty_of_one_sign": "the penalty on log-ratios has the same sign for all of them",
    "correction_left_out": "the ratio of old to rollout policy is taken for 1",
    "correction_inverted": "the correction is by the ratio of the rollout to the old policy",
    "correction_not_truncated": "the ratio of old to rollout policy is not truncated",
    "correction_averaged": "the correction of a sequence is a mean and not a product",
    "correction_of_tokens": "corrections of tokens stand for those of sequences",
    "correction_of_sequences": "corrections of sequences stand for those of tokens",
    "correction_by_the_new_policy": "the correction is by the ratio of the new to rollout policy",
}
"""Each mistake in words, as the end of a sentence; the more common ones first."""
