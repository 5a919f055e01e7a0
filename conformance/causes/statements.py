"""Each known mistake in words, the more common ones first."""

from __future__ import annotations

from conformance.diagnosis.catalogue.wordings import OF_FACTORS, OF_RESCALING

SIZES = {
    "cp": "cp, the number of context-parallel ranks",
    "dp": "dp, the number of data-parallel ranks",
    "dp_cp": "dp · cp, the number of data- and context-parallel ranks",
    "pp": "pp, the number of pipeline stages",
    "micro_batches": "the number of a rank's micro-batches",
    "group_size": "the number of samples of a prompt",
    "samples": "the number of samples",
    "prompts": "the number of prompts",
    "divisor": "the constant divisor",
}

PARTS = {
    "rank": "data-parallel rank",
    "micro_batch": "micro-batch",
    "micro_batch_or_padding": "micro-batch, those of padding included",
    "micro_batch_of_all_ranks": "micro-batch over all data-parallel ranks",
    "cp_slice": "context-parallel slice",
    "cp_slice_of_a_micro_batch": "context-parallel slice of a micro-batch",
}

ASSUMED = "which no document of the framework says"

STATEMENTS = {
    **{f"multiplied_by_{size}": f"multiplied once too often by {SIZES[size]}" for size in SIZES},
    **{f"divided_by_{size}": f"divided once too often by {SIZES[size]}" for size in SIZES},
    "not_divided": "token losses are added up and not divided",
    "samples_not_averaged": "sums of samples are divided by the constant divisor alone",
    "empty_samples_counted": "a sample without active tokens is counted as one token",
    "rejection_left_out": "rejected tokens are trained on and counted",
    "original_mask_counted": "denominators count the mask before rejection sampling",
    "modified_mask_counted": "denominators count the mask after rejection sampling",
    "weights_of_sample_mean": "reduced by sample_mean",
    "weights_of_prompt_mean": "reduced by prompt_mean",
    "weights_of_token_mean": "reduced by token_mean",
    "weights_of_token_mean_counting_empty_samples": (
        "reduced by token_mean, with a sample without active tokens counted as one token"
    ),
    "filling_rows_counted": (
        "rows that fill a step up to a multiple of the ranks are counted as samples"
    ),
    "padding_micro_batches_averaged": "micro-batches of padding count as 0 in a mean",
    "dummy_rows_averaged": "rows of padding count as 0 in a mean",
    "repeated_rows_averaged": "samples that are repeated to fill up ranks count as 0 in a mean",
    **{
        f"denominators_per_{part}": f"denominators are counted in each {words}, and means averaged"
        for part, words in PARTS.items()
    },
    "denominators_per_micro_batch_by_samples": (
        "denominators are counted in each micro-batch, and means weighted by samples"
    ),
    "shares_averaged_by_tokens": (
        "what micro-batches have of a loss is averaged by their tokens, and not added up"
    ),
    "shares_of_all_ranks_averaged": (
        "the shares of micro-batches are averaged over all ranks, and not added up"
    ),
    **{
        f"tokens_counted_per_{part}": f"tokens are counted in each {words}, and units in the step"
        for part, words in PARTS.items()
    },
    **{
        f"units_counted_per_{part}": f"prompts are counted in each {words}, and tokens in the step"
        for part, words in PARTS.items()
    },
    "micro_batch_means_added_up": (
        "the mean of each micro-batch is taken, and means are added up and not averaged"
    ),
    "not_reduced_over_dp": "the share of one data-parallel rank stands for all",
    "not_reduced_over_cp": "the share of one context-parallel rank stands for all",
    "not_reduced_over_ranks": "the share of one rank stands for all",
    "reduced_before_the_last_micro_batch": (
        "gradients are reduced before the last micro-batch has added its own"
    ),
    "micro_batches_carried_over": (
        "a step begins with micro-batches that the batch before left, and lacks its own last ones"
    ),
    "micro_batches_lost": "whole micro-batches are lost",
    "samples_lost": "samples are lost",
    "tokens_lost": "tokens are lost",
    "samples_repeated": "samples are repeated to fill up a batch, and weigh twice as much",
    "term_without_gradient": "the term has no gradient",
    "term_left_out": "the term is left out",
    "nothing_reported": "0 is logged",
    "nothing_reported_by_some_ranks": "some ranks log 0, and others the right number",
    "counted_over_batch": "what is counted is that of all steps of a batch together",
    "mean_of_the_batch_counted": "what is counted is the mean over all steps of a batch",
    "counted_of_the_step_before": "what is counted is that of the step before",
    "masked_tokens_counted": "masked tokens are counted",
    "prompt_tokens_counted": "tokens of prompts are counted",
    "padding_counted": "padding up to the longest response or sequence is counted",
    "tokens_per_sample_miscounted": "a token or two of every sample are not counted, or too many",
    "runs_counted_as_prompts": "runs of adjacent samples are taken for prompts",
    "prompts_by_group_size": "prompts are taken to be samples divided by the size of a group",
    "sample_units_counted": "samples are the units, and empty ones count",
    "sample_units_excluded": "samples are the units, and empty ones do not count",
    "rollout_units_counted": "rollouts are the units, and empty ones count",
    "rollout_units_excluded": "rollouts are the units, and empty ones do not count",
    **{
        f"{what}_counted_as_units": f"{what} are counted in the place of the mode's units"
        for what in ("samples", "rollouts", "prompts", "tokens")
    },
    "counted_in_bfloat16": "tokens are counted in bfloat16",
    "counted_in_float16": "tokens are counted in float16",
    "counted_in_float32": "tokens are added up in float32",
    "integer_division": "tokens per sample or rank are cut to a whole number",
    "shares_of_ranks_clamped": "a data-parallel rank's share of the step's tokens is set to 1 where"
    " it is less",
    "cp_shares_rounded_down": "of a micro-batch's tokens, context-parallel ranks count equal shares"
    " that are cut to a whole number",
    "padded_width_as_divisor": "the divisor is the width of a micro-batch's rows",
    "count_off_by_one": "one token or unit too many or too few is counted",
    "other_divisor": "the constant divisor is another one",
    "samples_miscounted": "another number of samples is counted",
    "prompts_miscounted": "another number of prompts is counted",
    "tokens_miscounted": "another number of tokens is counted",
    **OF_FACTORS,
    **OF_RESCALING,
    "inactive_tokens_weigh": "tokens that the mask excludes have a weight",
    "not_finite": "numbers are NaN or infinite",
    "step_skipped": "an optimizer step is skipped whose gradient is NaN or infinite",
    "tokens_not_held": "active tokens are on no rank",
    "forward_passes_not_recorded": "the adapter records no forward passes",
    "group_on_several_ranks": "a prompt group is on several data-parallel ranks",
    "depends_on_cut": "a term depends on how a step is cut",
    "mean_of_means": "means of parts of a step are averaged, and not pooled over it",
    "sample_unit_sample": f"several samples of a rollout count once each, {ASSUMED}",
    "sample_unit_rollout": f"several samples of a rollout count once together, {ASSUMED}",
    "empty_units_counted": f"samples and prompts without active tokens count, {ASSUMED}",
    "empty_units_excluded": f"samples and prompts without active tokens do not count, {ASSUMED}",
    "denominator_mask_modified": f"rejected tokens do not count in denominators, {ASSUMED}",
    "denominator_mask_original": f"rejected tokens count in denominators, {ASSUMED}",
    "several_divisors": "tokens of one step are divided by several numbers",
    "tokens_missing": "active tokens weigh nothing",
    "reducer_ignored": "a custom reducer is not used",
    "reducer_rescaled": "what a custom reducer returns is multiplied or divided besides",
    "never_made": "a batch crashes that the framework's own code never makes",
    "option_ignored": "an option is accepted and changes nothing",
    "not_logged": "a number is missing that this version logs of other steps",
    "unexplained": "no known mistake explains it",
}
"""What each mistake does, as the end of a sentence; the more common ones come first."""

BROKEN_RULES = {
    "accepted": "bad input is accepted",
    "fails_later": "bad input passes startup validation, and the run fails later",
    "refused_by_an_assert": "an assert alone refuses bad input, and python -O removes it",
    "refused_without_naming": "bad input is refused by an error that does not name it",
    "refused_what_it_supports": "good input is refused",
    "not_the_same": "two ways to configure the same give different weights",
    "configuration_ignored": "the adapter does not pass a setting on that it declares",
}

"""What a framework does against a rule about configurations, logs and group boundaries."""

MISCOUNTED = frozenset(
    {"other_divisor", "samples_miscounted", "prompts_miscounted", "tokens_miscounted"}
)
"""Mistakes that name a factor of all weights which no known mistake or pair of them explains."""

INFERRED = MISCOUNTED | frozenset(
    {
        "not_finite",
        "step_skipped",
        "inactive_tokens_weigh",
        "samples_lost",
        "samples_repeated",
        "micro_batches_lost",
        "tokens_lost",
        "nothing_reported_by_some_ranks",
        "values_of_other_samples",
        "reduced_before_the_last_micro_batch",
    }
)
"""Mistakes that are read off the weights, which no catalogue can predict."""

OF_LOGGED_NUMBERS = frozenset({"shares_of_all_ranks_averaged", "mean_of_means"})
"""Mistakes that only a number which ranks add up can have, and no gradient."""

_ORDER = {name: place for place, name in enumerate(STATEMENTS)}


def commonness(mistake: str) -> int:
    """A sort key, the most common mistakes first."""
    return _ORDER[mistake]
