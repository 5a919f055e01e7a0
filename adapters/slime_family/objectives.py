"""What slime and miles can be made to train, how that is spelt, and where in them to look."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from adapters.contract import code_location
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT, Objective
from adapters.slime_family import rejection
from reference.aggregation import AuxiliaryAggregation, Conventions, DenominatorMask, SampleUnit

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from adapters.contract import CodeLocation

    Candidates = Mapping[CodeLocation, tuple[tuple[Any, str], ...]]

_ENTROPY = (f"--entropy-coef={ENTROPY_COEFFICIENT}",)
_KL = (
    "--use-kl-loss",
    f"--kl-loss-coef={KL_COEFFICIENT}",
    "--kl-loss-type=k1",
    f"--ref-load={os.curdir}",  # has to be there and is never loaded
)

SPELT: Mapping[Objective, tuple[str, ...]] = {
    Objective.REJECTION: ("--use-tis", f"--custom-tis-function-path={rejection.PATH}"),
    Objective.ENTROPY: _ENTROPY,
    Objective.KL: _KL,
    Objective.COMBINED: (*_ENTROPY, *_KL),
    Objective.DUAL_CLIP: ("--eps-clip-c=3.0",),
    Objective.GSPO: ("--advantage-estimator=gspo",),
    Objective.CISPO: ("--advantage-estimator=cispo",),
    Objective.SFT: ("--loss-type=sft_loss",),
}
"""Objectives by the options that choose them; the policy loss takes none, and a critic's loss is
chosen by its actor."""

MODES = "--loss-aggregation"

OBSERVE_ENTROPY = "--observe-training-entropy"
"""Newer versions of miles compute no entropy unless it is trained or asked for."""

CRITIC_ALONE = "--num-critic-only-steps=1"
"""Older versions have a critic wait for its actor's log-probabilities from then on."""


def objective_options(objective: Objective, parser: argparse.ArgumentParser) -> list[str]:
    """What is said of an objective on the command line."""
    observe = [OBSERVE_ENTROPY] if _offers(parser, OBSERVE_ENTROPY) else []
    alone = objective is Objective.VALUE and _offers(parser, CRITIC_ALONE)
    return [*observe, *([CRITIC_ALONE] if alone else []), *SPELT.get(objective, ())]


def offered(parser: argparse.ArgumentParser, losses: Any) -> frozenset[Objective]:
    """The objectives that a framework's options and the module of its losses offer.

    An option for dual clipping that the policy loss does not read offers nothing.
    """
    spelt = {
        objective
        for objective, options in SPELT.items()
        if all(_offers(parser, option) for option in options)
    }
    if not _reads(losses.policy_loss_function, "eps_clip_c"):
        spelt.discard(Objective.DUAL_CLIP)
    critic = {Objective.VALUE} if hasattr(losses, "value_loss_function") else set()
    return frozenset(spelt | critic | {Objective.POLICY, Objective.OFF_POLICY})


def conventions(
    parser: argparse.ArgumentParser, *, by_rollout: bool, whole_groups: bool = False
) -> Conventions:
    """What slime and miles document of what the modes leave open.

    Those that count the tokens of rollouts before a step is cut keep these denominators when tokens
    are rejected; others count what is left. Those that have an option for the four modes say of it
    that it is the policy loss's alone: all else is a mean over samples.
    """
    auxiliary = (
        AuxiliaryAggregation.SAMPLE_MEAN
        if _offers(parser, MODES)
        else AuxiliaryAggregation.WITH_TOKEN_MEAN
    )
    return Conventions(
        sample_unit=SampleUnit.ROLLOUT if by_rollout else SampleUnit.SAMPLE,
        denominator_mask=DenominatorMask.ORIGINAL if by_rollout else DenominatorMask.MODIFIED,
        entropy=auxiliary,
        kl=auxiliary,
        diagnostics=auxiliary,
        whole_groups=whole_groups,
    )


def places(candidates: Candidates) -> dict[CodeLocation, str]:
    """For each place the first of some functions, in a module by name, that this version has."""
    found = {place: _first(functions) for place, functions in candidates.items()}
    return {
        place: code_location(function) for place, function in found.items() if function is not None
    }


def _first(functions: tuple[tuple[Any, str], ...]) -> Callable[..., Any] | None:
    return next((found for home, name in functions if (found := getattr(home, name, None))), None)


def _offers(parser: argparse.ArgumentParser, option: str) -> bool:
    """Whether a parser knows an option, with the value it is given if it is one of a choice."""
    flag, given, value = option.partition("=")
    action = parser._option_string_actions.get(flag)
    if action is None:
        return False
    return not given or action.choices is None or value in action.choices


def _reads(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function mentions one of the arguments, as an attribute or as text."""
    code = function.__code__
    return argument in code.co_names or argument in code.co_consts
