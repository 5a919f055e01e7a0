"""Imports NeMo-RL's trainers and workers without its GPU packages, and configures them."""

from __future__ import annotations

import importlib
import importlib.util
import json
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.toolkit import imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adapters.contract.framework import Settings

module = imports.modules_of("nemo_rl")


def import_nemo_rl(source: Path | None) -> None:
    """Import the trainers, the policy and its worker, from a checkout if given."""
    _prepare()
    imports.import_from("nemo_rl", [source] if source else [])
    for path in ("algorithms.grpo", "algorithms.sft", "models.policy.lm_policy"):
        module(path)
    module("models.policy.workers.dtensor_policy_worker")


def configured(settings: Settings, *, sft: bool = False) -> Any:
    """A trainer's validated configuration, from one of NeMo-RL's examples and overrides.

    Settings of sections that the example does not have are left out. Raises `OverridesError` for an
    option that this version lacks.
    """
    from omegaconf import OmegaConf

    trainer, name = ("sft", "sft.yaml") if sft else ("grpo", "grpo_math_1B.yaml")
    base = example(name).copy()
    overrides = [
        f"{option}={json.dumps(value)}"
        for option, value in settings.items()
        if option.lstrip("+").split(".")[0] in base
    ]
    config = module("utils.config").parse_hydra_overrides(base, overrides)
    chosen: Any = OmegaConf.to_container(config, resolve=True)
    return module(f"algorithms.{trainer}").MasterConfig(**chosen)


def offers(settings: Settings) -> bool:
    """Whether this version's example has these options."""
    try:
        configured(settings)
    except module("utils.config").OverridesError:
        return False
    return True


def default(name: str) -> object:
    """The value of an option in the example that users start from; None if the example lacks it."""
    from omegaconf import OmegaConf

    return OmegaConf.select(example("grpo_math_1B.yaml"), name.lstrip("+"))


def option_names() -> Iterator[str]:
    """Yields the options of the loss, and the names of estimators of advantages."""
    kind = module("algorithms.loss").ClippedPGLossConfig
    options = getattr(kind, "model_fields", None) or kind.__annotations__
    yield from (f"loss_fn.{option}" for option in options)
    make = module("algorithms.grpo")._create_advantage_estimator
    for name in imports.choices_in(make, "adv_estimator_name"):
        yield f"grpo.adv_estimator.name={name}"


@cache
def example(name: str) -> Any:
    """One of NeMo-RL's example configurations, whose files are beside the package."""
    from pathlib import Path

    return loaded(Path(module("package_info").__file__).parents[1] / "examples" / "configs" / name)


def loaded(file: Path) -> Any:
    """The configuration of a file, merged with the files that it is based on."""
    configs = module("utils.config")
    configs.register_omegaconf_resolvers()
    return configs.load_config(file)


def initial_state(trainer: str) -> Any:
    """A trainer's initial state, made by a different function before August 2026."""
    home = module(f"algorithms.{trainer}")
    names = (f"_initial_{trainer}_save_state", f"_default_{trainer}_save_state")
    return next(getattr(home, name) for name in names if hasattr(home, name))()


def disable_binding() -> AbstractContextManager[object]:
    """Keep workers from binding processes to cores, which they do since July 2026."""
    if importlib.util.find_spec("nemo_rl.distributed.numa_utils") is None:
        return nullcontext()
    return mock.patch.object(module("distributed.numa_utils"), "bind_to_gpu_numa")


@cache
def _prepare() -> None:
    """Stub packages that no training step enters, and let CUDA code run on the CPU."""
    from adapters.toolkit import cuda_on_cpu

    # NeMo-RL requires Python 3.13: on older versions, pydantic rejects its TypedDicts.
    imports.add_names_of_newer_python("TypedDict")
    cuda_on_cpu.install()
    imports.stub_imports("adapters.nemo_rl")
