"""The adapters of AReaL's engines: FSDP2 and Megatron."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.areal.driving import ArealAdapter
from adapters.areal.framework import FSDP2, MEGATRON
from adapters.areal.importing import module
from adapters.contract import Depth, Job, Observation, Rank
from adapters.contract.objective import OF_CRITIC
from adapters.engines.shells import OnMegatron

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from adapters.engines.megatron_core import Policy

MEGATRON_ENGINE = "engine.megatron_engine"

BRIDGES = ("mbridge", "megatron.bridge")
"""Packages that make Megatron models from checkpoints."""

UNUSED = (
    "areal.engine.megatron_utils.megatron_bridge_patches",
    "areal.engine.megatron_utils.fp8.kernels",
)
"""Two parts of AReaL that require triton: patches of Megatron-Bridge's models, and FP8 kernels."""


class ArealFsdpAdapter(ArealAdapter):
    """AReaL with FSDP2, its default."""

    engine = "fsdp2"
    dependencies = ("transformers",)
    engine_module = "engine.fsdp_engine"
    family = "FSDP"
    framework = FSDP2

    def make(self, config: Any, job: Job, rank: Rank, capacity: int) -> Any:
        """An engine around our model, whose optimizer records the gradient."""
        from adapters.areal.model import outputs
        from adapters.engines.numbered import values
        from adapters.toolkit.probe import HEADED, ForwardPasses, GradientReader, ProbedTransformer

        passes = ForwardPasses()
        model = partial(ProbedTransformer, capacity, passes)
        loaded: dict[str, Any] = {
            "AutoConfig": _loader(lambda: HEADED),
            "AutoModelForCausalLM": _loader(lambda: model(outputs)),
            "AutoModelForTokenClassification": _loader(lambda: model(values)),
            "load_hf_tokenizer": lambda _: None,
        }
        with mock.patch.multiple(module(self.engine_module), **loaded):
            engine = self.initialized(config)
        engine.gradients, engine.passes = GradientReader(engine.optimizer), passes
        return engine


class ArealMegatronAdapter(OnMegatron, ArealAdapter):
    """AReaL with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "transformers")
    engine_module = MEGATRON_ENGINE
    family = "Megatron"
    framework = MEGATRON

    def load(self, source: Path | None) -> None:
        """Import AReaL with its Megatron engine."""
        from adapters.toolkit.imports import stub

        stub([*BRIDGES, *UNUSED])
        super().load(source)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train on the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.join_grid(job.layout, rank)
        return super().observe(job, rank)

    def make(self, config: Any, job: Job, rank: Rank, capacity: int) -> Any:
        """An engine around our model, whose optimizer records the gradient."""
        from adapters.engines import megatron_core

        bridge = StubMbridge(job, capacity, rank)
        with _loading(bridge):
            engine = self.initialized(config)
        engine.passes = bridge.policy.passes
        engine.gradients = megatron_core.gradients_of_steps(engine.optimizer, bridge.policy)
        return engine


class StubMbridge:
    """A stub of mbridge that makes our model."""

    policy: Policy  # set when the engine requests its model

    def __init__(self, job: Job, capacity: int, rank: Rank) -> None:
        import torch

        from adapters.areal import model
        from adapters.engines import experts, megatron_core
        from adapters.toolkit.probe import HEADED

        self.config = megatron_core.transformer_config(
            job.layout, torch.float32, **experts.options(job)
        )
        self.TransformerConfigClass = type(self.config)
        # a copy, because AReaL sets some of its attributes
        self.hf_config = SimpleNamespace(**vars(HEADED))
        self._capacity, self._rank = capacity, rank
        has_critic = job.objective in OF_CRITIC
        self._output = megatron_core.values_head if has_critic else model.megatron_logits

    def set_extra_args(self, **options: object) -> None:
        """Set options of the model's configuration."""
        for name, value in options.items():
            setattr(self.config, name, value)

    def get_model(self, *, ddp_config: Mapping[str, Any], **_: object) -> list[Any]:
        """This rank's chunks of the model in Megatron's data parallelism."""
        from megatron.core.distributed import DistributedDataParallelConfig

        from adapters.engines import megatron_core

        of_model = self.config, self._capacity, self._rank, self._output
        config = DistributedDataParallelConfig(**ddp_config)
        self.policy = megatron_core.make_policy(*of_model, Depth.STEP, config)
        return self.policy.chunks


@contextmanager
def _loading(bridge: StubMbridge) -> Iterator[None]:
    """Let the engine that is made in the context use the bridge, and load no checkpoint."""
    from adapters.toolkit import cuda_on_cpu

    engines, registry = module(MEGATRON_ENGINE), module("models.mcore.registry")
    with (
        mock.patch.object(engines.mbridge, "AutoBridge", _loader(lambda: bridge)),
        mock.patch.multiple(
            engines,
            torch=cuda_on_cpu.torch_of_the_cpu(),
            load_hf_tokenizer=lambda _: None,
            patch_bridge_for_tree_training=lambda _: nullcontext(),
            load_weights_from_hf_with_mbridge_fast=lambda **_: None,
        ),
        mock.patch.multiple(
            registry,
            unwrap_to_gpt_model=lambda model: model,
            _replace_output_layer_with_value_head=lambda *_: None,
        ),
    ):
        yield


def _loader(make: Callable[[], object]) -> object:
    """A stub of a class such as `AutoModel` or `AutoBridge`, of transformers or mbridge."""
    return SimpleNamespace(from_pretrained=lambda *_, **__: make())
