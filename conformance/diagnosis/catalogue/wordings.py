"""Wrong derivatives and advantages in words, apart from numpy, which readers do not need."""

from __future__ import annotations

OF_DERIVATIVES = {
    "ratios_left_out": "ratios of new to old policy are taken for 1",
    "ratios_inverted": "ratios are those of the old to the new policy",
    "ratios_put_in": "losses are multiplied by ratios of new to old policy, and clipped",
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
    "penalty_inverted": "the penalty on log-ratios has the wrong sign",
    "penalty_of_one_sign": "the penalty on log-ratios has the same sign for all of them",
    "correction_left_out": "the ratio of old to rollout policy is taken for 1",
    "correction_inverted": "the correction is by the ratio of the rollout to the old policy",
    "correction_not_truncated": "the ratio of old to rollout policy is not truncated",
    "correction_averaged": "the correction of a sequence is a mean and not a product",
    "correction_of_tokens": "corrections of tokens stand for those of sequences",
    "correction_of_sequences": "corrections of sequences stand for those of tokens",
    "sequences_kept": "sequences are kept whose ratio to the rollout policy is out of bounds",
    "tokens_dropped": "tokens are dropped by their own ratio, and not by that of the sequence",
    "kept_tokens_not_corrected": "tokens of sequences that are kept are not multiplied by ratios",
    "correction_by_the_new_policy": "the correction is by the ratio of the new to rollout policy",
}
"""Each mistake in words, as the end of a sentence; the more common ones first."""

PARTS_OF_A_BATCH = {
    "step": "optimizer step",
    "dp_rank": "data-parallel rank",
    "cp_slice": "context-parallel slice",
    "rank": "rank",
}

OF_ADVANTAGES = {
    "groups_merged": "rewards are compared with those of all prompts",
    "groups_per_dp_rank": "rewards are compared within what a rank has of a prompt's samples",
    "baseline_left_out": "the mean of the prompt's rewards is not subtracted",
    "own_reward_in_baseline": "the baseline has a part of the sample's own reward",
    "std_left_out": "rewards are not divided by their standard deviation",
    "std_of_the_batch": "rewards are divided by the standard deviation of all prompts",
    "biased_std": "the standard deviation of a group has the divisor n",
    "divergence_left_out": "rewards have no penalty on the divergence",
    "divergence_added": "the divergence is rewarded and not penalised",
    "divergence_of_other_tokens": "the divergence of other tokens is penalised",
    "discount_left_out": "later rewards are not discounted",
    "reward_at_another_token": "the reward is at another token",
    "slices_apart": "returns end with the slice of a context-parallel rank",
    "reward_off_the_path_lost": "the reward of a sample is lost where its last token is skipped",
    "other_transitions": "other tokens have a part in advantages",
    "trace_left_out": "advantages of later tokens are not multiplied by lambda",
    "values_left_out": "the critic's values are taken for 0",
    "padding_bootstrapped": "advantages have a part of the critic's values of padding",
    "values_of_other_samples": "advantages are of the critic's values of other samples",
    "not_whitened": "advantages are not whitened",
    "whitening_keeps_the_mean": "the mean is not subtracted from advantages that are whitened",
    "whitening_keeps_the_variance": "the mean is subtracted from advantages, and that is all",
    "whitened_by_other_tokens": "mean and variance of advantages are those of other tokens",
    "biased_variance": "the variance of advantages has another divisor",
    "padding_whitened": "the mean of advantages counts padding",
    **{
        f"whitened_per_{name}": f"advantages are whitened in each {words} alone"
        for name, words in PARTS_OF_A_BATCH.items()
    },
}
"""Each mistake in words, as the end of a sentence; the more common ones first."""

OF_RESCALING = {
    "gradients_clipped": "gradients are clipped before the optimizer reads them",
    "gradient_values_clipped": "gradients are clipped value by value before the optimizer reads"
    " them",
    "loss_scaled": "gradients are read while the loss scale is still in them",
}
"""What a trainer may do to right gradients, in words, as the end of a sentence."""

OF_FACTORS = OF_DERIVATIVES | OF_ADVANTAGES
"""All mistakes in what the weights of a policy loss are multiplied by."""
