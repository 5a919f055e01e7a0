"""SkyRL's FSDP workers, with models that hold the probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract import Depth, Job, Rank, Settings
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.skyrl.driving import capacity
from adapters.skyrl.importing import PACKING, module, ppo_utils
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.calls import call_supported
from adapters.toolkit.probe import (
    SEAM,
    ForwardPasses,
    GradientReader,
    PretrainedBase,
    ProbedModel,
    freeze_identity_head,
)
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    import torch


MODEL_WRAPPER = "backends.skyrl_train.workers.model_wrapper"
WORKER = "backends.skyrl_train.workers.fsdp.fsdp_worker"
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # SkyRL's names of dtypes


def add_seams() -> None:
    """Add the probe where SkyRL's model wrapper computes log-probabilities and entropies."""
    wrapper = module(MODEL_WRAPPER)
    wrapper.logprobs_from_logits = SEAM.wrap_log_probs(wrapper.logprobs_from_logits)
    entropies = SEAM.wrap_entropies(wrapper.chunked_entropy_from_logits)
    wrapper.chunked_entropy_from_logits = entropies
    module(WORKER)


def precision(dtype: str) -> Settings:
    """The dtype of parameters in computations; gradients are reduced in float32."""
    return {
        f"trainer.{model}.fsdp_config.mixed_precision.param_dtype": PRECISIONS[dtype]
        for model in MODELS
    }


def worker(model: str, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
    """A worker from the rank's cache, made if missing, with the configuration of this job."""
    size = capacity(probe_size)

    def make() -> Any:
        with rank.framework():
            made = _worker(model, config, job, rank.index)
            made.passes = ForwardPasses()
            _prepare(made, MODELS[model](job, size, made.passes, rank.device), job)
        return made

    key = (model, job.layout.cp, job.layout.format, job.depth, size)
    found = cached(rank, key, make)
    found.cfg = config.trainer
    SEAM.start(ProbedBatch.of(job))
    found._micro_batches_accumulated = 0  # critics and older versions divide by this count
    losses, algorithm = ppo_utils(), config.trainer.algorithm
    found.policy_loss_fn = losses.PolicyLossRegistry.get(algorithm.policy_loss_type)
    found.critic_loss_fn = losses.ppo_critic_loss
    return found


def _worker(model: str, config: Any, job: Job, index: int) -> Any:
    """A worker with its process groups and strategy, without a model."""
    fsdp_worker, section = module(WORKER), getattr(config.trainer, model)
    worker = object.__new__(getattr(fsdp_worker, f"FSDP{model.capitalize()}WorkerBase"))
    worker.cfg, worker.record_memory = config.trainer, False
    worker._world_size, worker._rank = job.layout.world_size, index
    worker.sequence_parallel_size = job.layout.cp
    worker.init_worker_process_group()
    if job.layout.cp > 1:
        ulysses = module("backends.skyrl_train.distributed.ulysses")
        ulysses.set_ulysses_sequence_parallel_group(worker.device_mesh["sp"].get_group())
    worker.strategy = fsdp_worker.FSDPStrategy(
        fsdp_config=section.fsdp_config,
        optimizer_config=section.optimizer_config,
        fsdp_strategy=config.trainer.strategy,
        seed=config.trainer.seed,
        num_training_steps=1,
        **({"model_config": section.model} if model == "policy" else {}),
    )
    worker.strategy.setup_distributed()
    return worker


def _prepare(worker: Any, model: Any, job: Job) -> None:
    """Set up our model as a worker's `init_model` does, and read gradients at optimizer steps."""
    if job.depth is Depth.LOSS:
        worker.strategy._fsdp_init_model = lambda model, **_: getattr(model, "model", model)
    with cuda_on_cpu.redirected():
        prepared = worker.strategy.prepare((model, None, None))
    worker.model, worker.optimizer, worker.scheduler = prepared
    worker.gradients = GradientReader(worker.optimizer)


def _policy_model(job: Job, size: int, passes: ForwardPasses, device: str) -> Any:
    """Our policy in SkyRL's wrapper."""
    packs = job.layout.format == "thd"
    return call_supported(
        module(WORKER).HFModelWrapper,
        ProbedModel(size, passes, _logits).to(device),
        use_flash_attention_2=packs,
        sequence_parallel_size=job.layout.cp,
        **dict.fromkeys(PACKING, packs),
    )


def _critic_model(job: Job, size: int, passes: ForwardPasses, device: str) -> Any:
    """SkyRL's critic on our transformer, with a value head that is the identity."""
    critic_class = call_supported(
        module(MODEL_WRAPPER)._get_critic_model,
        PretrainedBase,
        lambda config: ProbedModel(size, passes, _hidden_states),
        sequence_parallel_size=job.layout.cp,
        **dict.fromkeys(PACKING, job.layout.format == "thd"),
    )
    transformer = SimpleNamespace(hidden_size=1, _attn_implementation="flash_attention_2")
    critic = critic_class(transformer).to(device)
    freeze_identity_head(getattr(critic, critic.value_head_prefix))
    return critic


MODELS = {"policy": _policy_model, "critic": _critic_model}


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> dict[str, torch.Tensor]:
    """The only token's logits, and the probe: FSDP2 attaches backward hooks to all outputs."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    return {"logits": probe.new_zeros(*input_ids.shape, SEAM.VOCABULARY), "probe": probe}


def _hidden_states(input_ids: torch.Tensor, probe: torch.Tensor) -> dict[str, torch.Tensor]:
    """Hidden states: the probe's entries of the next tokens."""
    return {"last_hidden_state": probe[input_ids + 1].unsqueeze(-1)}
