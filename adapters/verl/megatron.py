"""The adapter of verl's Megatron engine."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from adapters.contract import Depth, Job, Layout, Objective, Option, Rank, Settings, Unsupported
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.objective import FROM_REWARDS, WITH_REJECTION
from adapters.engines.shells import OnMegatron
from adapters.toolkit.calls import nothing
from adapters.toolkit.imports import stub
from adapters.toolkit.settings import samples_per_step
from adapters.verl.adapter import VerlAdapter, made_engine, new_worker
from adapters.verl.framework import MEGATRON
from adapters.verl.importing import module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import torch

    from adapters.engines.megatron_core import Policy

ENGINE = "workers.engine.megatron.transformer_impl"
BRIDGE = "models.mcore.bridge"
LOG_PROBS, ENTROPIES = "vocab_parallel_log_probs_from_logits", "vocab_parallel_entropy"

LOOKED_AT_ALONE = frozenset({*FROM_REWARDS, Objective.GEO_MEAN, Objective.SAPO, *WITH_REJECTION})
"""Objectives in which verl has mistakes other than its token counts."""


class VerlMegatronAdapter(OnMegatron, VerlAdapter):
    """verl with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")
    framework = MEGATRON

    def load(self, source: Path | None) -> None:
        """Import verl and its Megatron engine."""
        super().load(source)
        _put_the_probe_in()

    def settings(self, job: Job, dtype: str) -> Settings:
        """The options of a job; raises `Unsupported` where two mistakes would combine."""
        _require_counts(job)
        return super().settings(job, dtype)

    def worker(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """The worker of a role, in the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.enter_grid(layout, rank)
        return super().worker(role, config, layout, capacity, rank)

    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """A worker whose engine's optimizer records the gradient of each step."""
        from adapters.engines import megatron_core

        head = megatron_core.values_head if role == "critic" else _logits
        module(BRIDGE).AutoBridge = bridge = StubMegatronBridge(layout, capacity, rank, head)
        worker = new_worker(role, config, rank)
        with _parameters_of(rank.dtype):
            engine = made_engine(role, worker)
        engine.model_config.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
        worker.passes = bridge.policy.passes
        worker.gradients = megatron_core.gradients_of_steps(engine.optimizer, bridge.policy)
        return worker


def _require_counts(job: Job) -> None:
    """Raise `Unsupported` if rounded-down token counts would combine with another mistake.

    With ``per_token_loss``, Megatron divides by the counts of context-parallel ranks, which are
    rounded down to whole numbers: all weights are off by a known factor.
    """
    layout = job.layout
    if Option.PER_TOKEN_LOSS not in layout.options or layout.cp == 1:
        return
    if job.objective in LOOKED_AT_ALONE or samples_per_step(job) % layout.dp:
        raise Unsupported(
            "with per_token_loss, context-parallel ranks round counts down: run without the option"
        )


@contextmanager
def _parameters_of(dtype: str) -> Iterator[None]:
    """Make engines create parameters in a dtype, even if verl's validation does not allow it."""
    engine = module(ENGINE).MegatronEngine
    initialize = engine.initialize

    def initialize_in_dtype(self: Any) -> None:
        object.__setattr__(self.engine_config, "dtype", dtype)
        initialize(self)

    with patch.object(engine, "initialize", initialize_in_dtype):
        yield


def _put_the_probe_in() -> None:
    """Stub the code around Megatron's model, and add the probe to verl's functions of logits."""
    import torch

    from adapters.toolkit.probe import SEAM
    from adapters.verl.model import add_probe

    stub(["megatron.bridge"])
    utils: Any = importlib.import_module("megatron.bridge.training.utils.config_utils")
    utils.create_ddp_config = _ddp_config
    _stub_what_older_versions_use()
    engine = module(ENGINE)
    engine.MegatronCheckpointManager = lambda **_: None
    setattr(engine, LOG_PROBS, add_probe(getattr(engine, LOG_PROBS)))
    setattr(engine, ENTROPIES, SEAM.wrap_entropies(getattr(engine, ENTROPIES)))
    if not torch.cuda.is_available():
        _let_the_engine_run_on_the_cpu(engine)


def _stub_what_older_versions_use() -> None:
    """Stub a class of data-parallel configurations and a method, both used before 0.8.0."""
    from megatron.core.distributed import DistributedDataParallelConfig

    configurations: Any = importlib.import_module("megatron.bridge.training.config")
    configurations.DistributedDataParallelConfig = type(
        "Configuration", (DistributedDataParallelConfig,), {"finalize": lambda self: None}
    )
    mappings: Any = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    mappings.AutoMapping.register_module_type = lambda *_: None


def _let_the_engine_run_on_the_cpu(engine: Any) -> None:
    """Register the engine's models for the CPU, and copy the token counts as a GPU transfer would.

    The count is a view of a batch's offsets, so an in-place sum over ranks would change the
    offsets.
    """
    from adapters.verl import cpu

    cpu.register_engines(engine, "Megatron", "megatron")
    engine.set_random_seed = lambda seed: None
    of_data = getattr(engine.MegatronEngine, "_routed_num_tokens", None)
    if of_data is None:  # ranks of this version do not sum their counts
        return

    def copied(self: Any, data: Any) -> torch.Tensor:
        counted: torch.Tensor = of_data(self, data).clone()
        return counted

    engine.MegatronEngine._routed_num_tokens = copied


class StubMegatronBridge:
    """A stub of Megatron-Bridge's bridge and provider that makes a role's model."""

    policy: Policy  # set when the engine requests its model
    params_dtype: torch.dtype  # older versions set these attributes one by one
    fp16 = bf16 = False  # no wrapper casts inputs and outputs: our model does
    sequence_parallel = False  # whether activations are split over tensor-parallel ranks

    def __init__(
        self, layout: Layout, capacity: int, rank: Rank, output: Callable[..., torch.Tensor]
    ) -> None:
        self._layout, self._capacity, self._rank = layout, capacity, rank
        self._output = output

    def from_hf_pretrained(self, *_: object, **__: object) -> StubMegatronBridge:
        """The bridge for a checkpoint, which is not read; it is the provider too."""
        return self

    to_megatron_provider = from_hf_pretrained

    def apply_overrides_and_finalize(
        self, dtype: torch.dtype, overrides: Mapping[str, object]
    ) -> None:
        """Configure the model with the engine's values."""
        from adapters.engines import megatron_core

        self.config = megatron_core.transformer_config(self._layout, dtype)
        for name, value in overrides.items():
            setattr(self.config, name, value)
        self.config.__post_init__()

        self.sequence_parallel = self.config.sequence_parallel

    def finalize(self) -> None:
        """Configure the model by the attributes that the engine has set."""
        from megatron.core.transformer.transformer_config import TransformerConfig

        options = TransformerConfig.__dataclass_fields__.keys() & vars(self).keys()
        overrides = {name: getattr(self, name) for name in options}
        self.apply_overrides_and_finalize(self.params_dtype, overrides)

    def provide_distributed_model(self, *, ddp_config: Any, **_: object) -> list[Any]:
        """This rank's chunks of the model in Megatron's data parallelism."""
        from adapters.engines import megatron_core

        of_model = self.config, self._capacity, self._rank, self._output
        self.policy = megatron_core.make_policy(*of_model, Depth.STEP, ddp_config)
        return self.policy.chunks

    # A hook would add a critic's head to a model, but ours has one. The probe is left at 0.
    register_pre_wrap_hook = load_hf_weights = staticmethod(nothing)


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
    from adapters.engines import megatron_core
    from adapters.toolkit.probe import SEAM

    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    return (logit + megatron_core.vocabulary_offset()).repeat(*input_ids.shape, SEAM.VOCABULARY)
