"""Rules of configurations and logs that a loaded version of slime or miles states itself.

A rule is stated where the version's own code has what keeps it, found by the identifiers of that
code, or where an option is documented to do nothing else.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapters.contract import code_location
from adapters.slime_family.startup import (
    DIVISOR_OPTION,
    MODE_OPTION,
    OLDER_DIVISOR_OPTION,
    PER_TOKEN_OPTION,
    REDUCER_OPTION,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Trace:
    """What there is in the code of versions that state some rules: a regular expression."""

    rules: tuple[str, ...]
    code: str


POSITIVE = ("divisor_zero", "divisor_negative", "divisor_nan")
FINITE = ("divisor_infinite", "divisor_bool", "divisor_text")
CONFLICTS = ("divisor_of_another_mode", "per_token_with_another_mode")
TERMS = ("entropy_per_sample", "divergence_per_sample")
BOUNDARIES = ("boundary_gap", "boundary_overlap", "boundary_short")

IN_FILE = tuple(
    f"{rule}_in_file"
    for rule in (
        "divisor_missing",
        *POSITIVE,
        *FINITE,
        *CONFLICTS,
        *TERMS,
        "batch_of_partial_groups",
    )
)

TRACES = (
    Trace(POSITIVE, r"(loss_aggregation|pg_loss)_divisor"),
    Trace(("divisor_missing", *CONFLICTS), r"\bloss_aggregation_divisor"),
    Trace(FINITE, r"isfinite\(divisor\)"),
    Trace(TERMS, r"args\.entropy_coef != 0"),
    Trace(("batch_of_partial_groups",), r"global_batch_size % args\.n_samples_per_prompt"),
    Trace(("correction_across_the_step",), r"custom_tis_path is not None"),
    Trace(("mode_in_file", *IN_FILE), r"\"loss_aggregation\" in data"),
    Trace(("groups_missing",), r"group_index is None|None in prompt_group_indices"),
    Trace(("group_incomplete",), r"partial_groups"),
    Trace(("denominators_dropped",), r"prompt_mask_sums is None"),
    Trace(BOUNDARIES, r"isclose\(float\(prompt_mask_sums"),
    Trace(("log_well_formed",), r"losses_reduced"),
    Trace(("log_well_formed_normalizers",), r"\"normalizers\" in log_dict"),
    Trace(("log_different_keys", "log_key_order"), r"\[\"keys\"\] != keys"),
)
"""By what keeps them, in the functions that an adapter names."""

HELP = {
    "default_mode": (MODE_OPTION, PER_TOKEN_OPTION),
    "legacy_flag": (PER_TOKEN_OPTION,),
    "custom_reducer": (REDUCER_OPTION,),
}
"""By the options that are documented to do just that, where there is one of them."""

TYPED = {"divisor_bool": float, "divisor_text": float}
"""By the type of the divisor's option: what is typed and is no such number is no argument."""


def stated(parser: argparse.ArgumentParser, functions: Iterable[Any]) -> dict[str, str]:
    """Each rule that a version states, with where it does.

    ``functions`` are those of the version that may keep rules, in the order in which they do; None
    for each that it has not.
    """
    found = dict(_documented(parser))
    for function in functions:
        for rule in _kept_by(function) if function is not None else ():
            found.setdefault(rule, code_location(function))
    return found


def _kept_by(function: Any) -> Iterator[str]:
    code = inspect.getsource(function)
    for trace in TRACES:
        if re.search(trace.code, code):
            yield from trace.rules


def _documented(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    actions = parser._option_string_actions
    for rule, options in HELP.items():
        option = _first(parser, options)
        if option is not None:
            yield rule, f"the documentation of {option}"
    divisor = _first(parser, (DIVISOR_OPTION, OLDER_DIVISOR_OPTION))
    for rule, typed in TYPED.items():
        if divisor is not None and actions[divisor].type is typed:
            yield rule, f"the type of {divisor}"


def _first(parser: argparse.ArgumentParser, options: Sequence[str]) -> str | None:
    """The first of some options that a version has, as it is typed."""
    typed = (f"--{option}" for option in options)
    return next((option for option in typed if option in parser._option_string_actions), None)
