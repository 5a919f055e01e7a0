"""The `GRPOConfig` of a job, made as in a user's script.

The settings of a job's `Configuration` are typed on the command line or in a configuration file,
which TRL's parser reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract.configuration import DEFAULT_CONFIGURATION, Setting
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import yaml
from adapters.trl.importing import module

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.configuration import Settings

TYPED = {
    Setting.MODE: "loss_type",
    Setting.DIVISOR: "max_completion_length",
    Setting.ENTROPY: "entropy_coef",
    Setting.KL: "beta",
}
"""TRL's names for the settings of a configuration."""


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
