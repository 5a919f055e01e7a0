"""A job as the configuration of `AsyncGRPOTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.objective import CONSTANTS
from adapters.trl.configuration import settings_of_run

if TYPE_CHECKING:
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule


def settings(schedule: Schedule) -> Settings:
    """The settings for a job."""
    return {
        **settings_of_run(schedule),
        "epsilon": CONSTANTS.clip_low,
        "epsilon_high": CONSTANTS.clip_high,
        "token_budget": 0,
        "max_staleness": schedule.optimizer_steps + 1,
    }
