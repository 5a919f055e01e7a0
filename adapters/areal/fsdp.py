"""The adapter of AReaL's FSDP2 engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.areal.driving import ArealAdapter
from adapters.areal.framework import FSDP2
from adapters.areal.importing import module
from adapters.engines.shells import ON_FOUR, cuts

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Job, Layout, Rank
    from adapters.contract.framework import Settings


class ArealFsdpAdapter(ArealAdapter):
    """AReaL with FSDP2, its default."""

    engine = "fsdp2"
    dependencies = ("transformers",)
    engine_module = "engine.fsdp_engine"
    family = "FSDP"
    framework = FSDP2

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks and Ulysses of 2; AReaL packs rows (thd)."""
        return cuts(ON_FOUR, "thd")

    def make(self, settings: Settings, job: Job, rank: Rank, capacity: int) -> Any:
        """An engine around our model, whose optimizer tells the gradient."""
        from adapters.areal.model import critic, policy
        from adapters.toolkit.probe import HEADED, ForwardPasses, GradientReader

        passes = ForwardPasses()
        loaded: dict[str, Any] = {
            "AutoConfig": _loader(lambda: HEADED),
            "AutoModelForCausalLM": _loader(lambda: policy(capacity, passes)),
            "AutoModelForTokenClassification": _loader(lambda: critic(capacity, passes)),
            "load_hf_tokenizer": lambda _: None,
        }
        with mock.patch.multiple(module(self.engine_module), **loaded):
            engine = self.initialized(settings)
        engine.gradients, engine.passes = GradientReader(engine.optimizer), passes
        return engine


def _loader(make: Callable[[], object]) -> object:
    """Stands for an automatic class of transformers."""
    return SimpleNamespace(from_pretrained=lambda **_: make())
