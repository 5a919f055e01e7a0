"""The mistakes that no prediction of weights is about: they are read off, or found by judges."""

from __future__ import annotations

from adapters.contract import CodeLocation
from conformance.explain.catalogue.mistake import Kind, known

ASSUMED = "which the framework does not document"

known(
    {
        "other_divisor": "another constant divisor is used",
        "samples_miscounted": "the wrong number of samples is counted",
        "prompts_miscounted": "the wrong number of prompts is counted",
        "tokens_miscounted": "the wrong number of tokens is counted",
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
        "loss_scaled": "gradients are read before the loss scale is divided out",
    },
    rank=16,
    kind=Kind.RESCALED,
)
known(
    {
        "inactive_tokens_weigh": "masked tokens have a weight",
        "not_finite": "numbers are NaN or infinite",
        "step_skipped": "an optimizer step with a NaN or infinite gradient is skipped",
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
        "sample_unit_sample": f"samples of one rollout are counted separately, {ASSUMED}",
        "sample_unit_rollout": f"samples of one rollout are counted as one, {ASSUMED}",
        "empty_units_counted": f"samples and prompts without active tokens are counted, {ASSUMED}",
        "empty_units_excluded": (
            f"samples and prompts without active tokens are not counted, {ASSUMED}"
        ),
        "denominator_mask_modified": f"denominators do not count rejected tokens, {ASSUMED}",
        "denominator_mask_original": f"denominators count rejected tokens, {ASSUMED}",
        "several_divisors": "tokens of one step are divided by different numbers",
        "tokens_missing": "active tokens weigh nothing",
        "reducer_ignored": "a custom reducer is not used",
        "reducer_rescaled": "the result of a custom reducer is rescaled",
        "never_made": "a batch that the framework's own code never makes crashes",
        "option_ignored": "an option is accepted and changes nothing",
        "not_logged": "a number that this version logs for other steps is missing",
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
        "refused_by_an_assert": "bad input is refused only by an assert, which python -O removes",
        "refused_what_it_supports": "good input is refused",
        "not_the_same": "two ways to configure the same give different weights",
        "configuration_ignored": "the adapter declares a setting and does not pass it on",
    },
    rank=19,
    kind=Kind.RULE,
)
