"""Imports RLinf's actor on a machine without GPUs, and configures it.

RLinf has no schema of its options: its code reads them from the configuration where they are used.
The options of a version are therefore the names that its code reads.
"""

from __future__ import annotations

import ast
import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.framework import nested
from adapters.contract.tables import RecordFile, read_rows
from adapters.toolkit import imports
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import KnownOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from adapters.contract.framework import Settings

module = imports.modules_of("rlinf")

ACTOR = "workers.actor.fsdp_actor_worker"
MANAGER = "hybrid_engines.fsdp.fsdp_model_manager"
STRATEGIES = ("hybrid_engines.fsdp.strategy.fsdp", "hybrid_engines.fsdp.strategy.fsdp2")

EMBODIED = "workers.actor.embodied_fsdp_actor_worker"
"""The module of the embodied actor's class; until August 2026, the class was in `ACTOR`."""

READERS = (ACTOR, MANAGER, *STRATEGIES, "runners.reasoning_runner", "config")
"""Modules that read the options of training a language model."""

[SECTIONS] = read_rows("adapters.rlinf", "sections")
"""Sections whose options may change a loss or a gradient, by the last part of their names."""

[REGISTRIES] = read_rows("adapters.rlinf", "registries")
"""Options whose values are registered, with their registries."""

IN_EXAMPLES = RecordFile("adapters.rlinf").variant("examples").always
"""Values that RLinf's examples give to options without a default."""


def import_rlinf(source: Path | None) -> None:
    """Import RLinf's actor and its strategies, from the folder of a checkout if given."""
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    # Import this before classes are renamed, because it recreates the module transformers.
    importlib.import_module("transformers.processing_utils")
    imports.name_classes_as_before()  # required by RLinf 0.3.0
    imports.stub_missing(("torchvision",))
    imports.import_from("rlinf", [source] if source else [])
    for path in (ACTOR, *STRATEGIES):
        module(path)
    _let_a_cpu_do()
    from adapters.engines.numbered import SEAM

    log_probs, entropies = (f"compute_{kind}_from_logits" for kind in ("logprobs", "entropy"))
    home = module(ACTOR)
    SEAM.put_into(home, log_probs, entropies if hasattr(home, entropies) else None)


def home_of_embodied() -> Any:
    """The module of the embodied actor."""
    return module(EMBODIED if _has(EMBODIED) else ACTOR)


def _has(path: str) -> bool:
    """Whether this version has a module."""
    return find_spec(f"rlinf.{path}") is not None


def configured(settings: Settings) -> Any:
    """RLinf's configuration from settings; raises `Refused` if RLinf declines it."""
    from omegaconf import OmegaConf

    with refusals():
        return validated(OmegaConf.create(nested(settings)), settings["cluster.num_nodes"])


def validated(config: Any, ranks: int) -> Any:
    """A configuration as RLinf validates it for a number of ranks."""
    home, placement = module("config"), mock.MagicMock()
    placement.return_value.get_world_size.return_value = ranks
    stubs = {"Cluster": mock.MagicMock(), "HybridComponentPlacement": placement}
    with mock.patch.multiple(home, create=True, **stubs):
        return home.validate_cfg(config)


@cache
def options() -> KnownOptions:
    """The options that RLinf's code reads, by innermost section and name."""
    registry = module("algorithms.registry")
    modes = imports.choices_in(module("utils.utils"), "loss_agg")
    choices = {name: {*getattr(registry, one)} for name, one in REGISTRIES.items()} | {
        "algorithm.loss_agg_func": modes or imports.choices_in(module(ACTOR), "loss_agg_func"),
        "algorithm.kl_penalty_type": imports.choices_in(
            module("algorithms.utils").kl_penalty, "kl_penalty"
        ),
    }
    return KnownOptions(_defaults(), choices)


def option_names() -> Iterator[str]:
    """Yields the options that training reads, and their choices."""
    for section, name in (option.split(".") for option in options().defaults):
        if section in SECTIONS:
            yield f"{SECTIONS[section]}.{name}"
    yield from options().options_and_choices(())


def default(name: str) -> object:
    """The default value of an option, or its value in RLinf's examples."""
    return IN_EXAMPLES.get(name, options().defaults.get(".".join(name.split(".")[-2:])))


def _defaults() -> Mapping[str, object]:
    """The default of each option that RLinf's code reads; None for an option without default."""
    found: dict[str, object] = {}
    for path in filter(_has, (*READERS, EMBODIED)):
        # Unlike an import, find_spec loads no other engine.
        file = Path(str(getattr(find_spec(f"rlinf.{path}"), "origin", None)))
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            for section, name, value in _read_by(node):
                found[f"{section}.{name}"] = found.get(f"{section}.{name}") or value
    return found


def _read_by(node: ast.AST) -> Iterator[tuple[str, str, object]]:
    """Yields the section, name and default of an option that an expression reads."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="get", value=ast.Attribute(attr=section)),
            args=[ast.Constant(value=name), *given],
        ):
            values = [one.value for one in given if isinstance(one, ast.Constant)]
            yield section, str(name), next(iter(values), None)
        case ast.Attribute(attr=name, value=ast.Attribute(attr=section)) if name != "get":
            yield section, name, None


@cache
def _let_a_cpu_do() -> None:
    """Let the CPU serve as the accelerator of RLinf's workers."""
    from adapters.toolkit import cuda_on_cpu

    worker = module("scheduler").Worker
    answers: dict[str, Any] = {
        "is_available": True,
        "current_device": "cpu",
        **dict.fromkeys(("set_device", "synchronize", "ipc_collect", "empty_cache")),
    }
    platform = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
    worker.torch_platform, worker.torch_device_type = SimpleNamespace(**platform), "cpu"
    # Older versions use a GPU by its number, and a kernel that exists only for GPUs.
    module("utils.distributed").torch = cuda_on_cpu.torch_of_the_cpu()
    module("utils.utils").logprobs_from_logits_flash_attn = _log_softmax


def _log_softmax(logits: Any, labels: Any, **_: bool) -> Any:
    """The log-probabilities of labels, as flash-attention's kernel defines them."""
    return logits.float().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
