"""Imports OpenRLHF on a machine without its GPU packages, and reads its command line."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from argparse import Action, ArgumentParser
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from adapters.contract.tables import read_rows
from adapters.openrlhf.framework import KIND, LEVEL, LOSS_AGG_MODE
from adapters.toolkit import worlds
from adapters.toolkit.calls import nothing, refusals
from adapters.toolkit.imports import import_from, modules_of, provide, stub_imports
from adapters.toolkit.settings import CommandLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import CodeType

    from adapters.contract.framework import Settings

module = modules_of("openrlhf")

SCRIPT = "cli.train_ppo_ray"

SECTIONS = ("--actor.", "--algo.", "--critic.", "--ds.", "--train.")
"""Sections with options that a step may depend on."""

OF_OPTIMIZERS = {"adam", "muon"}
"""Sections of optimizers, within `SECTIONS`."""

OLDER_KINDS = {
    ("token", "mask"): "icepop",
    ("token", "clip"): "tis",
    ("seq", "mask"): "seq-mask-tis",
}
"""The value of the one option that chose a correction before 0.11.2, by level and mode."""

[OLDER_NAMES] = read_rows("adapters.openrlhf", "older_names")
"""Names of options before 0.10.2, unless the older name is just the end of the newer one."""


def import_openrlhf(source: Path | None) -> None:
    """Import the trainer with its actors."""
    import torch

    from adapters.engines import deepspeed
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    cuda_on_cpu.number_the_device()
    deepspeed.import_deepspeed()
    _replace_gpu_packages()
    import_from("openrlhf", [source] if source else [])
    # Compiling takes longer than any step.
    with mock.patch.object(torch, "compile", lambda function: function):
        module("models")


def parsed(settings: Settings) -> Any:
    """OpenRLHF's arguments, as its own script parses and validates them.

    Raises `Refused` if the script declines the arguments.
    """
    received: list[Any] = []
    with refusals():
        _run_script(received.append, *_words(_version_settings(settings)))
    [args] = received
    # The parser accepts only the two 16-bit dtypes.
    setattr(*_place(args, "--ds.param_dtype"), "fp32")
    return args


def values(words: Iterable[str]) -> dict[str, Any]:
    """All options as OpenRLHF's own script parses and validates words of its command line."""
    received: list[Any] = []
    _run_script(received.append, *words)
    return {
        name: value(received[0], name) for name, one in _options().items() if one.dest != "help"
    }


def defaults() -> dict[str, Any]:
    """The defaults of all options."""
    return {name: one.default for name, one in _options().items()}


def value(args: Any, option: str) -> Any:
    """The value of an option in the arguments."""
    return getattr(*_place(args, option))


def _place(args: Any, option: str) -> tuple[Any, str]:
    """The section of the arguments that has an option, and the option's name in it."""
    *sections, name = _options()[_named(option)].dest.split(".")
    return reduce(getattr, sections, args), name


def knows(option: str) -> bool:
    """Whether the command line of this version has an option."""
    return _named(option) in _options()


def offers(settings: Settings) -> bool:
    """Whether the command line of this version has these options, with these choices."""
    options, chosen = _options(), _version_settings(settings)
    return all(
        name in options and value in (options[name].choices or (value,))
        for name, value in chosen.items()
    )


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    return CommandLine(_options()).default(_named(name))


def option_names() -> Iterator[str]:
    """Yields the options that a gradient may depend on, and their choices.

    Options of optimizers are left out, because no gradient depends on them.
    """
    yield from CommandLine(_options()).names_and_choices(
        name
        for name in _options()
        if name.startswith(SECTIONS) and not OF_OPTIMIZERS & {*name.split(".")}
    )


def _version_settings(settings: Settings) -> dict[str, Any]:
    """Settings by their names in this version.

    Before 0.11.2 the only mode was `token-mean`, and other options chose a correction. Before
    0.10.2 options had no sections.
    """
    chosen = dict(settings)
    if not knows(LOSS_AGG_MODE) and chosen.get(LOSS_AGG_MODE) == "token-mean":
        del chosen[LOSS_AGG_MODE]
    if not knows(LEVEL) and LEVEL in chosen:
        kind = OLDER_KINDS[chosen.pop(LEVEL), chosen.pop(KIND)]
        chosen["--algo.advantage.is_correction_enable"] = True
        chosen["--algo.advantage.is_correction_type"] = kind
    return {_named(name): one for name, one in chosen.items()}


def _named(option: str) -> str:
    """An option's name in this version; the name itself if the version lacks the option."""
    words = option.lstrip("-").split(".")
    endings = ("--" + "_".join(words[start:]) for start in range(len(words)))
    names = (option, OLDER_NAMES.get(option, option), *endings)
    known = (name for name in names if name in _options())
    return next(known, option)


def _words(settings: Settings) -> Iterator[str]:
    """Yields the words of a command line: none for a switch's value, several for a list's."""
    for name, value in settings.items():
        yield name
        if value is not True:
            yield from map(str, value if isinstance(value, (list, tuple)) else [value])


@cache
def _options() -> Mapping[str, Action]:
    """The options of the script's parser."""
    found: dict[str, Action] = {}

    def keep(parser: ArgumentParser) -> NoReturn:
        found.update(parser._option_string_actions)
        raise SystemExit

    try:
        with mock.patch.object(ArgumentParser, "parse_args", keep):
            _run_script(nothing)
    except SystemExit:
        return found
    raise LookupError(f"{SCRIPT} parses no arguments")


def _run_script(train: Callable[[Any], None], *words: str) -> None:
    """Run the script with its training function replaced."""
    with mock.patch.object(sys, "argv", [SCRIPT, *words]):
        exec(_script(), {"__name__": "__main__", "train": train})


@cache
def _script() -> CodeType:
    """The script's code without its training function."""
    script = module(SCRIPT)
    tree = ast.parse(inspect.getsource(script))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name == "train")
    ]
    return compile(tree, script.__file__, "exec")


@cache
def _replace_gpu_packages() -> None:
    # These packages look for flash_attn when they are imported, and must not find our stub.
    for name in ("transformers.modeling_utils", "peft"):
        importlib.import_module(name)
    stub_imports("adapters.openrlhf")
    if importlib.util.find_spec("flash_attn") is None:
        _provide_flash_attn()


def _provide_flash_attn() -> None:
    """Provide the functions of flash_attn that OpenRLHF imports: packing, and a collective."""
    import torch
    from einops import rearrange
    from torch.distributed.nn import functional

    def all_gather(part: torch.Tensor, group: Any) -> torch.Tensor:
        """The parts of all ranks, concatenated; gradients are summed over ranks."""
        return torch.cat(functional.all_gather(part.contiguous(), group))

    worlds.sum_gradients_of_all_gather()
    packing: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    provide("flash_attn")
    provide(
        "flash_attn.bert_padding",
        index_first_axis=lambda values, indices: values[indices],
        pad_input=packing._pad_input,
        rearrange=rearrange,
        unpad_input=packing._unpad_input,
    )
    provide("flash_attn.utils")
    provide("flash_attn.utils.distributed", all_gather=all_gather)
