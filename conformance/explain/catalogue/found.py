"""The mistakes that no prediction of weights is about: they are read off, or found by judges."""

from __future__ import annotations

from adapters.contract import CodeLocation
from conformance.explain.catalogue.mistake import Kind, known

ASSUMED = "which no document of the framework says"

known(
    {
        "other_divisor": "the constant divisor is another one",
        "samples_miscounted": "another number of samples is counted",
        "prompts_miscounted": "another number of prompts is counted",
        "tokens_miscounted": "another number of tokens is counted",
    },
    rank=13,
    kind=Kind.COUNT,
)
known(
    {
        "gradients_clipped": "gradients are clipped before the optimizer reads them",
        "gradient_values_clipped": (
            "gradients are clipped value by value before the optimizer reads them"
        ),
        "loss_scaled": "gradients are read while the loss scale is still in them",
    },
    rank=16,
    kind=Kind.RESCALED,
)
known(
    {
        "inactive_tokens_weigh": "tokens that the mask excludes have a weight",
        "not_finite": "numbers are NaN or infinite",
        "step_skipped": "an optimizer step is skipped whose gradient is NaN or infinite",
    },
    rank=17,
    kind=Kind.READ_OFF,
)
known(
    {
        "tokens_not_held": "active tokens are on no rank",
        "forward_passes_not_recorded": "the adapter records no forward passes",
        "group_on_several_ranks": "a prompt group is on several data-parallel ranks",
        "depends_on_cut": "a term depends on how a step is cut",
        "sample_unit_sample": f"several samples of a rollout count once each, {ASSUMED}",
        "sample_unit_rollout": f"several samples of a rollout count once together, {ASSUMED}",
        "empty_units_counted": f"samples and prompts without active tokens count, {ASSUMED}",
        "empty_units_excluded": (
            f"samples and prompts without active tokens do not count, {ASSUMED}"
        ),
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
    },
    rank=18,
    kind=Kind.FOUND,
)
known(
    {
        "accepted": "bad input is accepted",
        "fails_later": "bad input passes startup validation, and the run fails later",
        "refused_without_naming": "bad input is refused by an error that does not name it",
    },
    rank=19,
    kind=Kind.RULE,
    at=CodeLocation.ARGUMENTS,
)
known(
    {
        "refused_by_an_assert": "an assert alone refuses bad input, and python -O removes it",
        "refused_what_it_supports": "good input is refused",
        "not_the_same": "two ways to configure the same give different weights",
        "configuration_ignored": "the adapter does not pass a setting on that it declares",
    },
    rank=19,
    kind=Kind.RULE,
)
