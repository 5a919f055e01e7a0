"""What a version of prime-rl has, found in its code.

Before August 2026 a trainer served several runs of orchestrators, and before July a sample had one
advantage and one component of the loss.
"""

from __future__ import annotations

import math
from typing import Any, get_args

from adapters.prime_rl.importing import module


def transport(name: str) -> Any:
    """A module of the transport of rollouts, which August 2026 has moved."""
    try:
        return module(f"transports.rollouts.{name}")
    except ModuleNotFoundError:
        return module(f"transport.{name}")


def has_streams() -> bool:
    """Whether samples have advantages and weights of tokens."""
    return "advantages" in transport("types").TrainingSample.__struct_fields__


def has_trust_region_of_probabilities() -> bool:
    """Whether there is the loss `ipo`."""
    return hasattr(module("configs.trainer"), "IPOLossConfig")


def serves_several_runs() -> bool:
    """Whether the trainer finds out of which runs samples are."""
    return hasattr(module("trainer.rl.train"), "setup_multi_run_manager")


def no_clipping() -> float | None:
    """The largest norm of a gradient that is not clipped; before April 2026 there had to be one."""
    largest = module("configs.trainer").AdamWConfig.model_fields["max_norm"]
    return None if type(None) in get_args(largest.annotation) else math.inf


def supported(config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Those settings that a class of configurations has."""
    return {name: value for name, value in settings.items() if name in config.model_fields}
