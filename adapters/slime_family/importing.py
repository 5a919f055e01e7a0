"""Imports slime and miles on a machine without their servers, and types a job's options."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import tempfile
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adapters.contract import Framework, Job, Settings, Unsupported
from adapters.contract.tables import RecordFile
from adapters.slime_family.framework import CONFIG_FILE, IN_FILE_TOO_LATE, OPTIONAL, TABLES
from adapters.toolkit.imports import stub, stub_imports, stub_missing
from adapters.toolkit.settings import CommandLine, word, yaml

if TYPE_CHECKING:
    from collections.abc import Iterator


SWITCHES = (
    *("align-grad-reduce", "align-param-gather", "calculate-per-token-loss", "manual-gc"),
    *("ddp-average-in-collective", "use-distributed-optimizer"),
    *("overlap-grad-reduce", "overlap-param-gather", "sequence-parallel"),
)
"""Flags of Megatron that slime and miles read."""

MODEL = RecordFile(TABLES).variant("model").always
"""Megatron's arguments of a model, by their names after parsing."""


def install(package: str, *, megatron: bool) -> None:
    """Prepare this process for importing a framework, with or without its Megatron engine."""
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    kernels = [f"{package}.backends.megatron_utils.kernels", f"{package}.utils.fp8_kernel"]
    stub_imports("adapters.slime_family")
    stub_missing([f"{package}_plugins"])
    if megatron:
        stub(kernels)  # modules, by version, that contain only GPU kernels


def home(package: str, *paths: str) -> Any:
    """The first of these modules that exists; modules have moved between versions."""
    newer = (path for path in paths[:-1] if _exists(f"{package}.{path}"))
    return importlib.import_module(f"{package}.{next(newer, paths[-1])}")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package of the module is missing
        return False


def drop_server_options(package: str) -> None:
    """Remove sglang's options from a framework's parser; no train step reads them."""
    for path in ("utils.arguments", "backends.sglang_utils.arguments"):
        module = importlib.import_module(f"{package}.{path}")
        for options in (getattr(module, name, None) for name in ("RouterArgs", "ServerArgs")):
            if options is not None:
                options.add_cli_args = staticmethod(lambda *args, **kwargs: None)


def base_parser() -> argparse.ArgumentParser:
    """A parser with options and defaults of `megatron.training`, which no distribution contains."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, conflict_handler="resolve", exit_on_error=False
    )
    for flag in SWITCHES:
        parser.add_argument(f"--{flag}", action="store_true")
    for name in ("context", "expert-model", "pipeline-model", "tensor-model"):
        parser.add_argument(f"--{name}-parallel-size", type=int, default=1)
    # Megatron's validation stores this option under another name.
    parser.add_argument(
        "--num-virtual-stages-per-pipeline-rank",
        type=int,
        dest="virtual_pipeline_model_parallel_size",
    )
    for name in ("num-layers", "num-experts", "moe-router-topk"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--decoder-seq-length", type=int)
    parser.set_defaults(**MODEL)
    return parser


def has(parser: argparse.ArgumentParser, settings: Settings) -> bool:
    """Whether a parser has all options and, for options with choices, allows the words."""
    return all(name in OPTIONAL or _takes(parser, name, one) for name, one in settings.items())


def _takes(parser: argparse.ArgumentParser, name: str, value: object) -> bool:
    action = parser._option_string_actions.get(name)
    if action is None:
        return False
    is_word = isinstance(value, str) and value != ""
    return not is_word or action.choices is None or value in action.choices


def option_names(parser: argparse.ArgumentParser, provider: Any) -> Iterator[str]:
    """Yields the options that the provider's function of algorithms adds, and their choices."""
    code = ast.parse(textwrap.dedent(inspect.getsource(provider)))
    for function in ast.walk(code):
        if isinstance(function, ast.FunctionDef) and function.name == "add_algo_arguments":
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            added = [call for call in calls if getattr(call.func, "attr", "") == "add_argument"]
            names = (ast.literal_eval(call.args[0]) for call in added)
            yield from CommandLine.read(parser).names_and_choices(names)


@contextmanager
def typed(record: Framework, job: Job, parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """Yield a job's command line; its configuration file is kept while the context is open.

    ``record`` is the version's record. Raises `Unsupported` for a job that the record does not
    cover.
    """
    _require(record, job, parser)
    settings, in_file = record.settings(job), job.configuration.in_file
    in_file_too = {name for one in in_file for name in record.configurations[one].settings}
    late = [name for name in settings if name in in_file_too and name not in IN_FILE_TOO_LATE]
    words = [
        word(name, value)
        for name, value in settings.items()
        if name not in late and (name not in OPTIONAL or _takes(parser, name, value))
    ]
    if not late:
        yield words
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.writelines(_line(name, settings[name]) for name in late)
        file.flush()
        yield [*words, f"{CONFIG_FILE}={file.name}"]


def _require(record: Framework, job: Job, parser: argparse.ArgumentParser) -> None:
    """Raise `Unsupported` if a version's record lacks a setting or fault that a job names."""
    configuration = job.configuration
    lacking = [
        *({job.objective} - record.objectives.keys()),
        *({*job.layout.options} - record.layout.keys()),
        *((configuration.settings | configuration.in_file) - record.configurations.keys()),
    ]
    if lacking:
        raise Unsupported(f"no option {', '.join(sorted(lacking))}")
    if job.layout.format == "bshd" and not has(parser, record.layout["bshd"]):
        raise Unsupported("no format bshd")


def _line(name: str, value: object) -> str:
    """An option as a line of YAML, whose value has a type."""
    text = "true" if value is True else str(value)
    return f"{name.removeprefix('--').replace('-', '_')}: {yaml(text)}\n"
