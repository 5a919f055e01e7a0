"""NeMo-RL's policy worker on this rank, and the policy that distributes batches to the workers."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from transformers.modeling_outputs import CausalLMOutput

from adapters.nemo_rl.importing import disable_binding, module
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import (
    HEADED,
    ForwardPasses,
    GradientReader,
    ProbedTransformer,
    logits_head,
)
from adapters.toolkit.worlds import all_gather, cached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adapters.contract import Rank

TOKENIZER = SimpleNamespace(pad_token_id=0, eos_token_id=0, pad_token="<pad>", eos_token="<pad>")
"""The attributes of a tokenizer that NeMo-RL reads: the ids of padding and of the end of text."""


class StubWorkerGroup:
    """A stub of Ray's worker group: all ranks call their own workers at the same time."""

    def __init__(self, worker: Any, rank: Rank) -> None:
        self._worker, self._rank = worker, rank

    def run_all_workers_sharded_data(
        self, method: str, *, data: Sequence[Any], common_kwargs: Mapping[str, Any], **_: object
    ) -> list[Any]:
        """The result of each data-parallel rank, from its first context-parallel rank."""
        share = data[self._worker.dp_mesh.get_local_rank()]
        with allow_cpu():
            result = getattr(self._worker, method)(share, **common_kwargs)
        return all_gather(result)[:: self._worker.cp_size]

    def get_all_worker_results(self, results: list[Any]) -> list[Any]:
        """The results, which are complete already."""
        return results

    def shutdown(self, **_: object) -> bool:
        """Do nothing: there is no process to end."""
        return True


def made_worker(config: Any, capacity: int, rank: Rank) -> Any:
    """NeMo-RL's worker for a configuration; the jobs of a world share matching workers."""
    of_engine, packing = config["dtensor_cfg"], config["sequence_packing"]
    sizes = of_engine["context_parallel_size"], of_engine.get("dp_replicate_size")
    key = "nemo_rl", *sizes, packing["enabled"], capacity
    worker = cached(rank, key, lambda: _constructed(config, capacity))
    worker.cfg = config
    return worker


def made_policy(config: Any, worker: Any, rank: Rank) -> Any:
    """NeMo-RL's policy, whose constructor reads sharding and micro-batches from a configuration."""
    policies = module("models.policy.lm_policy")
    replaced: dict[str, Any] = {
        "RayQueue": lambda: None,
        "RayWorkerBuilder": lambda *_, **__: None,
        "RayWorkerGroup": lambda *_, **__: StubWorkerGroup(worker, rank),
        "get_default_hf_config": _has_no_layers,
    }
    cluster = SimpleNamespace(world_size=lambda: rank.world_size, _sorted_bundle_indices=None)
    with mock.patch.multiple(policies, **replaced):
        return policies.Policy(cluster, config, TOKENIZER, init_reference_model=False)


@contextmanager
def allow_cpu() -> Iterator[None]:
    """Let a worker run on the CPU where there is no GPU."""
    if torch.cuda.is_available():
        yield
        return
    cuda: dict[str, Any] = {"get_device_name": lambda *_: "cpu", "empty_cache": lambda: None}
    ranges: dict[str, Any] = {"range_push": lambda _: None, "range_pop": lambda: None}
    with (
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.multiple(torch.cuda.nvtx, **ranges),
        cuda_on_cpu.redirected(),
    ):
        yield


def _constructed(config: Any, capacity: int) -> Any:
    """A worker whose constructor has made the meshes, the sharded model and the optimizer."""
    passes = ForwardPasses()
    model = model_class(capacity, passes)
    construct = _second if config["dtensor_cfg"]["_v2"] else _first
    with disable_binding(), mock.patch.object(dist, "init_process_group"), allow_cpu():
        worker = construct(config, model)
    worker.gradients, worker.passes = GradientReader(worker.optimizer), passes
    return worker


def _first(config: Any, model: Any) -> Any:
    """Construct the first version of the worker, which shards a model itself."""
    home = module("models.policy.workers.dtensor_policy_worker")
    with mock.patch.multiple(home, ray=RAY, **_loading(model)):
        return home.DTensorPolicyWorkerImpl(config, TOKENIZER, init_reference_model=False)


def _second(config: Any, model: Any) -> Any:
    """Construct the second version, for which Automodel makes meshes and models."""
    home = module("models.policy.workers.dtensor_policy_worker_v2")
    loading = {**_loading(model), "get_tokenizer": lambda *_, **__: TOKENIZER}
    with (
        mock.patch.multiple(home, ray=RAY, AutomodelCheckpointManager=mock.DEFAULT),
        mock.patch.multiple(module("models.automodel.setup"), **loading),
    ):
        return home.DTensorPolicyWorkerV2Impl(config, init_reference_model=False)


RAY = SimpleNamespace(get_gpu_ids=lambda: [0])


def _loading(model: Any) -> dict[str, Any]:
    """Stubs of the functions by which a worker loads a checkpoint's configuration and model."""
    config = SimpleNamespace(model_type="probe", architectures=["Probe"], torch_dtype=torch.float32)
    return {
        "AutoConfig": SimpleNamespace(from_pretrained=lambda *_, **__: config),
        "resolve_model_class": lambda _: model,
    }


def _has_no_layers(_: object) -> Any:
    """A stub of the configuration lookup by which floating-point operations are counted."""
    raise ValueError("the probe has no operations to count")


def _outputs(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    logits: Any = logits_head(input_ids, probe)["logits"]
    return CausalLMOutput(logits=logits)


def model_class(capacity: int, passes: ForwardPasses) -> Any:
    """A stub of the class that NeMo-RL looks up for a model type.

    For the second worker, Automodel shards the model while loading it.
    """

    def from_config(*_: object, **__: object) -> ProbedTransformer:
        config = SimpleNamespace(**vars(HEADED), pad_token_id=TOKENIZER.pad_token_id)
        return ProbedTransformer(capacity, passes, _outputs, config)

    def from_pretrained(
        *_: object, device_mesh: Any = None, distributed_config: Any = None, **__: object
    ) -> ProbedTransformer:
        policy = from_config()
        if device_mesh is None:
            return policy
        fsdp2 = importlib.import_module("nemo_automodel.components.distributed.fsdp2")
        return fsdp2.FSDP2Manager(distributed_config, device_mesh).parallelize(policy)

    return SimpleNamespace(from_pretrained=from_pretrained, from_config=from_config)
