"""The model that verl's Megatron engine trains, in place of Megatron-Bridge's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract import Depth, Layout, Rank
from adapters.engines import megatron_core
from adapters.toolkit.imports import stub
from adapters.verl import cpu
from adapters.verl.importing import module
from adapters.verl.model import SEAM, with_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENGINE = "workers.engine.megatron.transformer_impl"
BRIDGE = "models.mcore.bridge"
LOG_PROBS, ENTROPIES = "vocab_parallel_log_probs_from_logits", "vocab_parallel_entropy"


def put_the_probe_in() -> None:
    """Stub the code around Megatron's model, and add the probe to verl's functions of logits."""
    stub(["megatron.bridge"])
    utils: Any = importlib.import_module("megatron.bridge.training.utils.config_utils")
    utils.create_ddp_config = _ddp_config
    engine = module(ENGINE)
    engine.MegatronCheckpointManager = lambda **_: None
    setattr(engine, LOG_PROBS, with_probe(getattr(engine, LOG_PROBS)))
    setattr(engine, ENTROPIES, SEAM.around_entropies(getattr(engine, ENTROPIES)))
    if not torch.cuda.is_available():
        _let_the_engine_run_on_the_cpu(engine)


def _let_the_engine_run_on_the_cpu(engine: Any) -> None:
    """Register the engine's models for the CPU, and copy the token counts as a GPU transfer would.

    The count is a view of a batch's offsets, and ranks sum their counts in place.
    """
    cpu.register_engines(engine, "Megatron", "megatron")
    of_data = getattr(engine.MegatronEngine, "_routed_num_tokens", None)
    if of_data is None:  # in versions in which ranks do not share their counts
        return

    def copied(self: Any, data: Any) -> torch.Tensor:
        counted: torch.Tensor = of_data(self, data).clone()
        return counted

    engine.MegatronEngine._routed_num_tokens = copied


class Bridge:
    """Makes our model, as both Megatron-Bridge's bridge and its provider.

    ``policy`` is the data-parallel model, once the engine has requested it.
    """

    policy: megatron_core.Policy
    fp16 = bf16 = False  # no wrapper that casts inputs and outputs: our model casts its own

    def __init__(
        self, layout: Layout, capacity: int, rank: Rank, output: Callable[..., torch.Tensor]
    ) -> None:
        self._layout, self._capacity, self._rank = layout, capacity, rank
        self._output = output

    def from_hf_pretrained(self, path: str, **_: object) -> Bridge:
        """The bridge for a checkpoint, which is not read."""
        return self

    def to_megatron_provider(self, load_weights: bool) -> Bridge:
        """The provider, which is this object."""
        return self

    def apply_overrides_and_finalize(
        self, dtype: torch.dtype, overrides: Mapping[str, object]
    ) -> None:
        """Configure the model as the engine asks."""
        self.config = megatron_core.transformer_config(self._layout, dtype)
        for name, value in overrides.items():
            setattr(self.config, name, value)
        self.config.__post_init__()

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations are split over tensor-parallel ranks."""
        return bool(self.config.sequence_parallel)

    def provide_distributed_model(self, *, ddp_config: Any, **_: object) -> list[Any]:
        """This rank's chunks of the model in Megatron's data parallelism."""
        bare = megatron_core.probed_model(self.config, self._capacity, self._rank, self._output)
        self.policy = megatron_core.policy_of(bare, self._rank, Depth.STEP, ddp_config)
        return self.policy.chunks

    def register_pre_wrap_hook(self, hook: object) -> None:
        """Ignore the hook that adds a critic's head to a model: ours has one."""

    def load_hf_weights(self, model: list[Any], path: str, **_: object) -> None:
        """Leave the probe at 0."""


def found_bridge(role: str, layout: Layout, capacity: int, rank: Rank) -> Bridge:
    """The bridge of a role's model, which the engine that is made next finds."""
    head = megatron_core.values_head if role == "critic" else _logits
    module(BRIDGE).AutoBridge = bridge = Bridge(layout, capacity, rank, head)
    return bridge


def _ddp_config(
    *, use_distributed_optimizer: bool, overrides: Mapping[str, Any], **_: object
) -> Any:
    """Megatron's data-parallel configuration."""
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(
        **{"use_distributed_optimizer": use_distributed_optimizer, **overrides}
    )


def _logits(input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
    """The only token's logits, which the engine divides by the temperature in place."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    return (logit + megatron_core.vocabulary_offset()).repeat(*input_ids.shape, SEAM.VOCABULARY)
