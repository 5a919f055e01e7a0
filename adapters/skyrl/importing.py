"""Imports SkyRL on a machine without its GPU packages, and configures it."""

from __future__ import annotations

import importlib
from dataclasses import fields, is_dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import Refused, Settings, Unsupported
from adapters.contract.framework import nested
from adapters.toolkit import imports
from adapters.toolkit.calls import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


module = imports.modules_of("skyrl")

PACKING = ("remove_microbatch_padding", "use_sample_packing")
"""Names of the option to pack samples into one row, latest version first."""


class PaddingMicroBatches:
    """Counts padding micro-batches, which SkyRL adds so that all ranks have equally many."""

    made = 0

    def drain(self) -> int:
        """Return the number of micro-batches made since the last call."""
        made, self.made = self.made, 0
        return made


PADDING_MICRO_BATCHES = PaddingMicroBatches()
"""The counter of this process, which trains one job at a time."""


def import_skyrl(source: Path | None) -> None:
    """Import the modules of every engine and replace the dispatch's Ray object store."""
    from adapters.toolkit import cuda_on_cpu

    _patch_dependencies()
    read_options_once()
    cuda_on_cpu.install()
    imports.import_from("skyrl", [source, source / "skyrl-gym"] if source else [])
    # Both modules look for flash_attn when they are imported, and must not find our stub.
    module("backends.skyrl_train.utils.torch_utils")
    importlib.import_module("transformers.modeling_utils")
    _stub_flash_attn()
    object_store = SimpleNamespace(put=lambda chunk: chunk)
    module("backends.skyrl_train.distributed.dispatch").ray = object_store
    module("train.trainer")
    _count_padding_micro_batches()


def configured(settings: Settings) -> Any:
    """SkyRL's validated configuration, from settings as on its command line.

    Raises `Unsupported` for an option that this version lacks, and `Refused` for settings that its
    validation declines.
    """
    paths = {_path(name): value for name, value in settings.items()}
    for path in paths:
        if not _has(path):
            raise Unsupported(f"no {path}")
    typed = [f"{path}={'null' if value is None else value}" for path, value in paths.items()]
    with refusals(TypeError):
        config = module("train.config").SkyRLTrainConfig.from_cli_overrides(typed)
        module("train.utils.utils").validate_cfg(config)
    return config


def offers(always: Settings, settings: Settings) -> bool:
    """Whether this version has these options and values."""
    constant = {name: one for name, one in {**always, **settings}.items() if not callable(one)}
    try:
        configured({"max_seq_len": 1, **constant})  # one mode requires max_seq_len
    except (Refused, Unsupported):
        return False
    return True


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    return imports.member(_defaults(), _path(name))


def option_names() -> Iterator[str]:
    """Yields the options of the algorithm and of its sections, and the choices of some options."""
    yield from dict(options_of(module("train.config").AlgorithmConfig()))
    losses, validate = ppo_utils(), module("train.utils.utils").validate_cfg
    choices = {
        "loss_reduction": imports.choices_in(validate, "loss_reduction"),
        "policy_loss_type": losses.PolicyLossRegistry.list_available(),
        "advantage_estimator": losses.AdvantageEstimatorRegistry.list_available(),
    }
    for name, known in choices.items():
        yield from (f"{name}={choice}" for choice in known)


def options_of(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a configuration and its sections, by dotted names."""
    for one in fields(section):
        value, name = getattr(section, one.name), f"{path}{one.name}"
        if is_dataclass(value):
            yield from options_of(value, f"{name}.")
        else:
            yield name, value


def _path(name: str) -> str:
    """An option's path in the configuration of this version."""
    paths = [f"trainer.{each}" for each in PACKING]
    if name in paths:
        return next(filter(_has, paths))
    return name if name.startswith(("trainer.", "generator.")) else f"trainer.algorithm.{name}"


def _has(path: str) -> bool:
    """Whether this version has an option; True for all options of a section that is None."""
    section = _defaults()
    for name in path.split("."):
        if section is None:
            return True
        if not hasattr(section, name):
            return False
        section = getattr(section, name)
    return True


@cache
def _defaults() -> Any:
    return module("train.config").SkyRLTrainConfig()


@cache
def _count_padding_micro_batches() -> None:
    """Count padding micro-batches in `PADDING_MICRO_BATCHES`; older versions make none."""
    utils = module("backends.skyrl_train.workers.worker_utils")
    iterator = getattr(utils, "TokenBasedBatchIterator", None)
    if iterator is None:
        return
    make = iterator._create_padding_microbatch

    def counted(batches: Any) -> Any:
        PADDING_MICRO_BATCHES.made += 1
        return make(batches)

    iterator._create_padding_microbatch = counted


def ppo_utils() -> Any:
    """Import the module of SkyRL's losses and reduction."""
    return module("backends.skyrl_train.utils.ppo_utils")


def _patch_dependencies() -> None:
    """Add names of Python 3.12 and of an older ray that SkyRL's releases import."""
    imports.add_names_of_newer_python("TypedDict")  # pydantic rejects older TypedDicts
    placement_group: Any = importlib.import_module("ray.util.placement_group")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placement_group.PlacementGroupSchedulingStrategy = strategies.PlacementGroupSchedulingStrategy


def read_options_once() -> None:
    """Replace `OmegaConf.from_cli` by a function that parses each option's text once per process.

    OmegaConf's own function makes a YAML loader and walks the configuration for every option, which
    takes a third of the time of a step on one rank. The replacement makes the same configuration.
    """
    conf: Any = importlib.import_module("omegaconf").OmegaConf

    @cache
    def value_of(text: str) -> Any:
        return conf.from_dotlist([f"value={text}"]).value

    def from_cli(typed: list[str]) -> Any:
        words = (option.partition("=") for option in typed)
        return conf.create(nested({path: value_of(text) for path, _, text in words}))

    conf.from_cli = from_cli


def _stub_flash_attn() -> None:
    """Stub flash_attn, which has no CPU build, with the packing functions of transformers."""
    if not imports.stub_missing(["flash_attn"]):
        return
    packing = importlib.import_module("transformers.modeling_flash_attention_utils")
    bert_padding: Any = importlib.import_module("flash_attn.bert_padding")
    bert_padding.unpad_input = packing._unpad_input
    bert_padding.pad_input = packing._pad_input
