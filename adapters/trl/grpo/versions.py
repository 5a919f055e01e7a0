"""What a version of TRL's `GRPOTrainer` supports, found in its code and its configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import Objective
from adapters.trl.grpo.objectives import LOSS_TYPES, OF_OBJECTIVES, OWN_LOSS_TYPES
from adapters.trl.importing import module
from reference.aggregation import DivergenceEstimator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reference.aggregation import Mode

CORRECTION = "use_bias_correction_kl"
"""The setting that multiplies the divergence by the ratio."""


def modes() -> frozenset[Mode]:
    """The modes whose loss types the loss implements."""
    return frozenset(mode for mode, name in LOSS_TYPES.items() if has_loss_type(name))


def default_mode() -> Mode:
    """The mode of the default loss type."""
    return {name: mode for mode, name in LOSS_TYPES.items()}[_defaults()["loss_type"]]


def has_loss_type(name: str) -> bool:
    """Whether the loss implements a loss type."""
    return name in _texts(_loss().__code__.co_consts)


def objectives() -> frozenset[Objective]:
    """The objectives whose settings and loss types exist.

    In versions before 1.10 the entropy bonus depends on the loss type.
    """
    found = {
        objective
        for objective, settings in OF_OBJECTIVES.items()
        if settings.keys() <= _defaults().keys()
        if objective not in OWN_LOSS_TYPES or has_loss_type(OWN_LOSS_TYPES[objective][1])
    }
    if "accumulation_factor" not in _loss().__code__.co_varnames:
        found -= {Objective.ENTROPY, Objective.COMBINED}
    return frozenset({Objective.POLICY, Objective.OFF_POLICY, *found})


def kl_estimator() -> DivergenceEstimator:
    """The default estimator of the divergence in the loss."""
    corrected = _defaults().get(CORRECTION)
    return DivergenceEstimator.K3_BY_RATIO if corrected else DivergenceEstimator.K3


def _loss() -> Any:
    return module("trainer.grpo_trainer").GRPOTrainer._compute_loss


def _defaults() -> dict[str, Any]:
    """The defaults of TRL's configuration, by name."""
    return {one.name: one.default for one in fields(module("trainer.grpo_config").GRPOConfig)}


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    """Yield the strings among a function's constants, where lists and sets are tuples."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(tuple(constant))
