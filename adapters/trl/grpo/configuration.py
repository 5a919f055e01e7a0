"""A job as the configuration of `GRPOTrainer`, made as a user's script makes it.

The settings of a job's `Configuration` are typed on the command line or in a configuration file,
which TRL's parser reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract import Unsupported
from adapters.contract.job import DEFAULT_CONFIGURATION, Setting
from adapters.contract.objective import CONSTANTS
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import yaml
from adapters.trl.configuration import ONE, settings_of_generations
from adapters.trl.grpo.objectives import (
    BONUS,
    LOSS_TYPES,
    OF_OBJECTIVES,
    OWN_LOSS_TYPES,
    PENALTY,
    has_loss_type,
)
from adapters.trl.importing import module

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule

TYPED = {
    Setting.MODE: "loss_type",
    Setting.DIVISOR: "max_completion_length",
    Setting.ENTROPY: "entropy_coef",
    Setting.KL: "beta",
}
"""TRL's names for the settings of a configuration."""


def settings(job: Job, schedule: Schedule) -> Settings:
    """The settings for a job; raises `Unsupported`."""
    return {
        **settings_of_generations(job, schedule),
        **_loss(job),
        **_terms(job),
        **OF_OBJECTIVES.get(job.objective, {}),
    }


def _loss(job: Job) -> Settings:
    """The settings of the loss."""
    chosen: Settings = {"epsilon": CONSTANTS.clip_low, "epsilon_high": CONSTANTS.clip_high}
    if job.configuration.says_mode:
        chosen["loss_type"] = _loss_type(job)
    divisor = _divisor(job)
    return chosen if divisor in (None, "") else chosen | {"max_completion_length": divisor}


def _terms(job: Job) -> Settings:
    """The settings of terms that a configuration adds to the loss."""
    return {
        **(BONUS if job.configuration.entropy else {}),
        **(PENALTY if job.configuration.kl else {}),
    }


def _loss_type(job: Job) -> str:
    mode = job.aggregation.mode
    if job.objective in OWN_LOSS_TYPES:
        own_mode, name = OWN_LOSS_TYPES[job.objective]
        if mode is not own_mode:
            raise Unsupported(f"loss_type={name} is only {own_mode}")
        return name
    name = "luspo" if job.aggregation.divisor == ONE else LOSS_TYPES[mode]
    if not has_loss_type(name):
        raise Unsupported(f"no loss_type={name}")
    return name


def _divisor(job: Job) -> int | str | None:
    """The divisor as typed, else that of the mode; None if the mode needs none."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    divisor = job.aggregation.divisor
    if divisor is None or divisor == ONE:
        return None
    if not divisor.is_integer():
        raise Unsupported(f"max_completion_length is a number of tokens, but L is {divisor:g}")
    return int(divisor)


def configured(job: Job, chosen: Settings, folder: str) -> Any:
    """TRL's validated configuration, with a folder for output; raises `Refused`."""
    chosen = {"output_dir": folder, **chosen}
    with refusals():
        if job.configuration == DEFAULT_CONFIGURATION:
            return module("trainer.grpo_config").GRPOConfig(**chosen)
        return _parsed(job, chosen, Path(folder) / "config.yaml")


def _parsed(job: Job, chosen: Settings, file: Path) -> Any:
    """The configuration from TRL's parser, with defaults for everything that is not typed."""
    typed = {
        setting: (name, str(chosen.pop(name))) for setting, name in TYPED.items() if name in chosen
    }
    in_file = {typed[setting] for setting in job.configuration.in_file if setting in typed}
    file.write_text("".join(f"{name}: {yaml(text)}\n" for name, text in in_file) or "{}\n", "utf-8")
    parser = module("scripts.utils").TrlParser(module("trainer.grpo_config").GRPOConfig)
    parser.set_defaults(**chosen)
    options = [f"--{name}={text}" for name, text in typed.values() if (name, text) not in in_file]
    [config] = parser.parse_args_and_config(["--config", str(file), *options])
    return config
