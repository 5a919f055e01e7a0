"""The objectives, conventions and rules that a version of slime or miles offers or states.

A version states a rule of configurations or logs if its own code enforces it, recognised by the
identifiers in that code, or if an option's documentation says so.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapters.contract import Assumed, Documented, code_location
from adapters.contract.objective import Objective
from adapters.slime_family import command_line
from adapters.slime_family.command_line import DIVISOR, MODE, OLDER_DIVISOR, PER_TOKEN, offers
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    EstimatorConventions,
    SampleUnit,
    TokenSet,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from adapters.contract.description import Convention


@dataclass(frozen=True)
class Trace:
    """A regular expression that matches the code of versions that state these rules."""

    rules: tuple[str, ...]
    code: str


POSITIVE = ("divisor_zero", "divisor_negative", "divisor_nan")
FINITE = ("divisor_infinite", "divisor_bool", "divisor_text")
CONFLICTS = ("divisor_of_another_mode", "per_token_with_another_mode")
TERMS = ("entropy_per_sample", "divergence_per_sample")
BOUNDARIES = ("boundary_gap", "boundary_overlap", "boundary_short")
# Rules of settings that may also be in a configuration file.
IN_FILE = ("divisor_missing", *POSITIVE, *FINITE, *CONFLICTS, *TERMS, "batch_of_partial_groups")

TRACES = (
    Trace(POSITIVE, r"(loss_aggregation|pg_loss)_divisor"),
    Trace(("divisor_missing", "divisor_by_default", *CONFLICTS), r"\bloss_aggregation_divisor"),
    Trace(FINITE, r"isfinite\(divisor\)"),
    Trace(TERMS, r"args\.entropy_coef != 0"),
    Trace(("batch_of_partial_groups",), r"global_batch_size % args\.n_samples_per_prompt"),
    Trace(("correction_across_the_step",), r"custom_tis_path is not None"),
    Trace(
        ("mode_in_file", *(f"{rule}_in_file" for rule in IN_FILE)), r"\"loss_aggregation\" in data"
    ),
    Trace(("groups_missing",), r"group_index is None|None in prompt_group_indices"),
    Trace(("group_incomplete",), r"partial_groups"),
    Trace(("denominators_dropped",), r"prompt_mask_sums is None"),
    Trace(BOUNDARIES, r"isclose\(float\(prompt_mask_sums"),
    Trace(("log_well_formed",), r"losses_reduced"),
    Trace(("log_well_formed_normalizers",), r"\"normalizers\" in log_dict"),
    Trace(("log_different_keys", "log_key_order"), r"\[\"keys\"\] != keys"),
)
"""Searched for in the functions that an adapter names."""

HELP = {
    "default_mode": (MODE, PER_TOKEN),
    "legacy_flag": (PER_TOKEN,),
    "custom_reducer": (command_line.REDUCER,),
}
"""Rules by the options whose documentation states them."""

TYPED = {"divisor_bool": float, "divisor_text": float}
"""Rules that the type of the divisor's option states."""


def stated(parser: argparse.ArgumentParser, functions: Iterable[Any]) -> dict[str, str]:
    """Each rule that a version states, with its place.

    ``functions`` may enforce rules, in the order of their calls; None for each missing one.
    """
    found = dict(_documented(parser))
    for function in filter(None, functions):
        code = inspect.getsource(function)
        kept = (rule for trace in TRACES if re.search(trace.code, code) for rule in trace.rules)
        for rule in kept:
            found.setdefault(rule, code_location(function))
    return found


def _documented(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for rule, options in HELP.items():
        for option in _known(parser, options):
            yield rule, f"the documentation of {option}"
    for divisor in _known(parser, (DIVISOR, OLDER_DIVISOR)):
        for rule, typed in TYPED.items():
            if parser._option_string_actions[divisor].type is typed:
                yield rule, f"the type of {divisor}"


def _known(parser: argparse.ArgumentParser, options: tuple[str, ...]) -> list[str]:
    """The first of these options that a version has, in a list; empty if it has none."""
    return [option for option in options if offers(parser, option)][:1]


def offered(parser: argparse.ArgumentParser, losses: Any) -> frozenset[Objective]:
    """The objectives that a version's options offer and its loss functions use."""
    chosen = {
        objective
        for objective, options in command_line.OBJECTIVES.items()
        if all(offers(parser, option) for option in options)
    }
    code = losses.policy_loss_function.__code__
    if "eps_clip_c" not in code.co_names + code.co_consts:  # an attribute, or its name as text
        chosen.discard(Objective.DUAL_CLIP)
    critic = {Objective.VALUE} if hasattr(losses, "value_loss_function") else set()
    return frozenset(chosen | critic | {Objective.POLICY, Objective.OFF_POLICY})


def conventions(
    parser: argparse.ArgumentParser, estimators: Any, sample_unit: Convention
) -> dict[str, Convention]:
    """What the modes of slime and miles leave open.

    Versions that count the tokens of rollouts before a step is cut keep these denominators when
    tokens are rejected. The option for the four modes is documented to apply only to the policy
    loss: everything else is a mean over samples. The module ``estimators`` has the functions that
    compute advantages; None if there is none.
    """
    by_rollout = sample_unit.value is SampleUnit.ROLLOUT
    mask = {"denominator_mask": Assumed(DenominatorMask.ORIGINAL)} if by_rollout else {}
    auxiliary: Convention = (
        Documented(AuxiliaryAggregation.SAMPLE_MEAN, f"the documentation of {MODE}")
        if offers(parser, MODE)
        else Assumed(AuxiliaryAggregation.WITH_TOKEN_MEAN)
    )
    return {
        "sample_unit": sample_unit,
        **mask,
        **dict.fromkeys(("entropy", "kl", "diagnostics"), auxiliary),
        "of_returns": _of_returns(getattr(estimators, "get_reinforce_plus_plus_returns", None)),
        "of_values": _of_values(getattr(estimators, "get_advantages_and_returns_batch", None)),
    }


def _of_returns(function: Any) -> Convention:
    """Newer versions of slime mask the divergence; all put the reward at the last active token."""
    masks = function is None or "masked_kl" in function.__code__.co_varnames
    return Assumed(EstimatorConventions(penalised=TokenSet.ACTIVE if masks else TokenSet.RESPONSE))


def _of_values(function: Any) -> Convention:
    """Newer versions of miles test that GAE passes only through trainable tokens."""
    masks = function is not None and "loss_masks" in inspect.signature(function).parameters
    tokens = TokenSet.ACTIVE if masks else TokenSet.RESPONSE
    found = EstimatorConventions(transitions=tokens, penalised=tokens, rewarded=tokens)
    where = "tests/fast/backends/training_utils/test_ppo_gae_masks.py"
    return Documented(found, where) if masks else Assumed(found)
