"""SkyRL's FSDP engine, from its trainer's conversion of rollouts to what its optimizer sees.

Every rank plays the trainer of its own: it converts the same rollouts, normalises advantages, cuts
them into mini-batches and data-parallel chunks with SkyRL's code, and hands its chunk to SkyRL's
worker, whose model SkyRL's strategy wraps in FSDP2. Ours are four things only: a model that carries
the probe, a seam behind SkyRL's log-probabilities where the probe is added, a dispatch that calls
the worker where SkyRL would send to a Ray actor, and a hook on the optimizer that reads the
gradient.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from adapters import cuda_on_cpu
from adapters.contract import (
    Adapter,
    Combine,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Rank,
    Refused,
    Unsupported,
)
from adapters.imports import import_from, stand_in
from adapters.probe import PADDING_ID, ProbedBatch
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from reference.step import Step

LOSS_REDUCTIONS = {
    Mode.SAMPLE_MEAN: "sequence_mean",
    Mode.PROMPT_MEAN: "prompt_mean",
    Mode.TOKEN_MEAN: "token_mean",
    Mode.CONSTANT: "seq_mean_token_sum_norm",
}

PADDING_MICRO_BATCH_IDS = 100
"""SkyRL fills the micro-batches that only pad with random token ids below this."""


class SkyRLFsdpAdapter(Adapter):
    """Drives NovaSky-AI/SkyRL, the `skyrl` package, from 0.2.0 on."""

    name = "skyrl"
    package = "skyrl"
    distribution = "skyrl"
    tree = ("skyrl", "skyrl-gym")
    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows."""
        grids = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)]
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in grids
            for micro_batches in (1, 2, "tokens")
            for storage in ("bshd", "thd")
        ]

    def load(self, source: Path | None) -> None:
        """Import SkyRL and put the seam behind its log-probabilities."""
        _mend_dependencies()
        cuda_on_cpu.install()
        import_from("skyrl", [source, source / "skyrl-gym"] if source else [])
        # Both look for flash_attn and must not take our stand-in for the real one.
        _module("backends.skyrl_train.utils.torch_utils")
        importlib.import_module("transformers.modeling_utils")
        _stand_in_for_flash_attn()
        _module("backends.skyrl_train.distributed.dispatch").ray = SimpleNamespace(put=_itself)
        model_wrapper = _module("backends.skyrl_train.workers.model_wrapper")
        model_wrapper.logprobs_from_logits = _probed(model_wrapper.logprobs_from_logits)
        for name in ("train.trainer", "backends.skyrl_train.workers.fsdp.fsdp_worker"):
            _module(name)

    def describe(self) -> Description:
        """Modes are what the reduction function accepts."""
        stand_ins = ("flash_attn",) if "flash_attn" in sys.modules else ()
        return Description(
            modes=frozenset(mode for mode in Mode if _reduces(LOSS_REDUCTIONS[mode])),
            stand_ins=stand_ins,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one rollout."""
        with rank.framework():
            config = configure(job)
        batch = ProbedBatch(job.steps)
        if job.depth is Depth.REDUCER:
            return Observation(weights=_observe_reduction(config, job, batch, rank))
        worker = self.worker(config, job, batch.probe_size, rank)
        trainer = _trainer(config, _Dispatch(worker, job.layout.dp))
        with rank.framework():
            trainer.train_critic_and_policy(_training_input(trainer, batch))
        return Observation(
            weights=batch.weights_of_steps(worker.gradients),
            combine=Combine.REPLICATED if job.depth is Depth.STEP else Combine.MEAN,
        )

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, kept for all jobs that can share its model."""
        capacity = 1 << max(probe_size + 1, PADDING_MICRO_BATCH_IDS + 1).bit_length()
        key = (job.layout.cp, job.layout.format, job.depth, capacity)
        if key not in rank.cache:
            with rank.framework():
                rank.cache[key] = _build_worker(config, job, capacity, rank)
        worker = rank.cache[key]
        worker.cfg = config.trainer
        worker.gradients.clear()
        return worker


def configure(job: Job) -> Any:
    """SkyRL's own configuration for a job, passed through its own startup validation.

    Raises:
        Unsupported: this version lacks an option that the layout needs.
        Refused: SkyRL declines the configuration.
    """
    prompts, rollouts_per_prompt = _prompts_per_step(job.steps), _rollouts_per_prompt(job.steps)
    config = _module("train.config").SkyRLTrainConfig()
    trainer, algorithm = config.trainer, config.trainer.algorithm
    trainer.logger = "console"
    trainer.placement.colocate_all = False
    trainer.placement.policy_num_gpus_per_node = job.layout.world_size
    trainer.policy.sequence_parallel_size = job.layout.cp
    trainer.train_batch_size = prompts * len(job.steps)
    trainer.policy_mini_batch_size = prompts
    config.generator.n_samples_per_prompt = rollouts_per_prompt
    config.generator.step_wise_trajectories = any(
        step.size != prompts * rollouts_per_prompt for step in job.steps
    )
    algorithm.use_kl_loss = False
    algorithm.loss_reduction = LOSS_REDUCTIONS[job.aggregation.mode]
    algorithm.max_seq_len = _max_seq_len(job.aggregation)
    _configure_micro_batches(trainer, job, prompts * rollouts_per_prompt // job.layout.dp)
    _configure_gradients(trainer)
    try:
        _module("train.utils.utils").validate_cfg(config)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    return config


def _configure_micro_batches(trainer: Any, job: Job, per_rank: int) -> None:
    """``per_rank`` is SkyRL's own count: rollouts of a mini-batch on one data-parallel rank."""
    packing = "remove_microbatch_padding"
    setattr(
        trainer,
        packing if hasattr(trainer, packing) else "use_sample_packing",
        job.layout.format == "thd",
    )
    if isinstance(job.layout.micro_batches, int):
        trainer.micro_train_batch_size_per_gpu = max(per_rank // job.layout.micro_batches, 1)
    elif job.layout.micro_batches == "tokens" and hasattr(trainer, "max_tokens_per_microbatch"):
        trainer.micro_train_batch_size_per_gpu = per_rank
        trainer.max_tokens_per_microbatch = _token_budget(job)
    else:
        raise Unsupported(f"no micro-batches by {job.layout.micro_batches}")


def _configure_gradients(trainer: Any) -> None:
    """Full precision, no clipping, and an optimizer that leaves the probe at 0."""
    trainer.policy.fsdp_config.mixed_precision = SimpleNamespace(
        param_dtype="fp32", reduce_dtype="fp32", buffer_dtype="fp32"
    )
    trainer.policy.optimizer_config.lr = 0.0
    trainer.policy.optimizer_config.max_grad_norm = 0.0


def _prompts_per_step(steps: Sequence[Step]) -> int:
    counts = {len(np.unique(step.groups)) for step in steps}
    if len(counts) > 1:
        raise Unsupported(f"no mini-batches of different numbers of prompts: {sorted(counts)}")
    return counts.pop()


def _rollouts_per_prompt(steps: Sequence[Step]) -> int:
    counts = {
        len(np.unique(step.rollouts[step.groups == group]))
        for step in steps
        for group in np.unique(step.groups)
    }
    if len(counts) > 1:
        raise Unsupported(f"no prompts with different numbers of rollouts: {sorted(counts)}")
    return counts.pop()


def _token_budget(job: Job) -> int:
    """About a third of what one rank holds, so that ranks differ in how many they fill."""
    tokens = [int((step.prompt_lengths + step.response_lengths).sum()) for step in job.steps]
    return max(tokens) // (3 * job.layout.dp) + 1


def _max_seq_len(aggregation: Aggregation) -> int | None:
    if aggregation.divisor is None:
        return None
    if not float(aggregation.divisor).is_integer():
        raise Unsupported(f"max_seq_len is an integer, the divisor {aggregation.divisor!r} is none")
    return int(aggregation.divisor)


def _observe_reduction(
    config: Any, job: Job, batch: ProbedBatch, rank: Rank
) -> tuple[np.ndarray, ...]:
    """Reduce token losses of -advantage · probe: SkyRL scales the advantages and then sums."""
    trainer = _trainer(config, _Dispatch(None, job.layout.dp))
    with rank.framework():
        data = _training_input(trainer, batch)
        boundaries = [data.metadata["policy_mini_batch_boundaries"]]
        if "policy_prompt_boundaries" in data.metadata:
            boundaries.append(data.metadata["policy_prompt_boundaries"])
        advantages = trainer._normalize_advantages(data, *boundaries)["advantages"]
        probe = torch.zeros_like(advantages, requires_grad=True)
        _ppo_utils().reduce_loss(-advantages * probe, data["loss_mask"]).backward()
    assert probe.grad is not None
    gradient = np.zeros(batch.probe_size, np.float32)
    for row, ids in zip(probe.grad.numpy(), batch.responses, strict=False):
        gradient[ids] = row[len(row) - len(ids) :]
    return batch.split(batch.weights(gradient))


def _trainer(config: Any, dispatch: _Dispatch) -> Any:
    """SkyRL's `RayPPOTrainer` without the services that its constructor starts."""
    trainer_class = _module("train.trainer").RayPPOTrainer
    trainer = object.__new__(trainer_class)
    trainer.cfg = config
    trainer.tokenizer = SimpleNamespace(pad_token_id=PADDING_ID)
    trainer.dispatch = dispatch
    trainer.all_metrics, trainer.all_timings, trainer.global_step = {}, {}, 0
    return trainer


def _training_input(trainer: Any, batch: ProbedBatch) -> Any:
    """The batch as SkyRL's conversion lays it out, with the probe's advantages.

    Rows that SkyRL adds repeat the first one; so do their advantages, that a leak may show.
    """
    data = trainer.convert_to_training_input(
        {
            "prompt_token_ids": [ids.tolist() for ids in batch.prompts],
            "response_ids": [ids.tolist() for ids in batch.responses],
            "rewards": [[0.0] * len(ids) for ids in batch.responses],
            "loss_masks": [mask.astype(int).tolist() for mask in batch.masks],
        },
        [
            f"step{number}-group{group}"
            for number, step in enumerate(batch.steps)
            for group in step.groups
        ],
    )
    rows, width = data["loss_mask"].shape
    advantages = torch.zeros(rows, width)
    for row, values in enumerate(batch.advantages):
        advantages[row, width - len(values) :] = torch.from_numpy(values)
    advantages[len(batch.advantages) :] = advantages[0]
    data["advantages"] = advantages
    data["action_log_probs"] = torch.zeros(rows, width)
    return data


class _Dispatch:
    """Calls this rank's worker where SkyRL's `WorkerDispatch` sends to the actors of all ranks."""

    def __init__(self, worker: Any, dp_size: int) -> None:
        self._worker = worker
        self._dp_size = dp_size

    def get_lcm_dp_size(self) -> int:
        return self._dp_size

    def stage_data(self, model: str, data: Any, boundaries: Any) -> Any:
        mesh_dispatch = _module("backends.skyrl_train.distributed.dispatch").MeshDispatch
        return mesh_dispatch.stage_chunks(self._dp_size, data, boundaries)

    def forward_backward_from_staged(self, model: str, chunks: Any) -> Any:
        return self._worker.forward_backward(chunks[self._worker.mesh_rank.dp])

    def optim_step(self, model: str) -> Any:
        return self._worker.optim_step()

    def empty_cache(self) -> None:
        """The CPU caches nothing."""


def _build_worker(config: Any, job: Job, capacity: int, rank: Rank) -> Any:
    """SkyRL's FSDP worker with everything its `init_model` makes, around a policy of ours."""
    fsdp_worker = _module("backends.skyrl_train.workers.fsdp.fsdp_worker")
    worker = object.__new__(fsdp_worker.FSDPPolicyWorkerBase)
    worker.cfg, worker.record_memory = config.trainer, False
    worker.policy_loss_fn = _ppo_utils().PolicyLossRegistry.get(
        config.trainer.algorithm.policy_loss_type
    )
    worker._world_size, worker._rank = job.layout.world_size, rank.index
    worker.sequence_parallel_size = job.layout.cp
    worker.init_worker_process_group()
    if job.layout.cp > 1:
        ulysses = _module("backends.skyrl_train.distributed.ulysses")
        ulysses.set_ulysses_sequence_parallel_group(worker.device_mesh["sp"].get_group())
    policy = config.trainer.policy
    worker.strategy = fsdp_worker.FSDPStrategy(
        fsdp_config=policy.fsdp_config,
        optimizer_config=policy.optimizer_config,
        model_config=policy.model,
        fsdp_strategy=config.trainer.strategy,
        seed=config.trainer.seed,
        num_training_steps=1,
    )
    worker.strategy.setup_distributed()
    if job.depth is Depth.LOSS:
        worker.strategy._fsdp_init_model = lambda model, **_: model.model
    model = fsdp_worker.HFModelWrapper(
        _ProbedPolicy(capacity).to(rank.device),
        use_flash_attention_2=job.layout.format == "thd",
        sequence_parallel_size=job.layout.cp,
        **_packing(fsdp_worker.HFModelWrapper, job),
    )
    with cuda_on_cpu.redirected():
        prepared = worker.strategy.prepare((model, None, None))
    worker.model, worker.optimizer, worker.scheduler = prepared
    worker.gradients = []
    worker.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: worker.gradients.append(_take_gradient(optimizer))
    )
    return worker


def _packing(model_wrapper: type, job: Job) -> dict[str, bool]:
    known = inspect.signature(model_wrapper).parameters
    name = next(n for n in ("remove_microbatch_padding", "use_sample_packing") if n in known)
    return {name: job.layout.format == "thd"}


def _take_gradient(optimizer: torch.optim.Optimizer) -> NDArray[np.float32]:
    """The probe's whole gradient [capacity], as the optimizer is about to use it.

    The optimizer finds zeros: NaN, even at a learning rate of 0, would spoil the probe for good.
    """
    [probe] = optimizer.param_groups[0]["params"]
    whole = probe.grad.full_tensor() if isinstance(probe.grad, DTensor) else probe.grad
    gradient = whole.detach().cpu().numpy().copy()
    probe.grad.zero_()
    return gradient


class _ProbeLayer(nn.Module):
    """Looks the probe up; a module of its own because FSDP shards a model layer by layer."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(capacity))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.probe[token_ids]


class _ProbedPolicy(nn.Module):
    """A policy over one token, hence with log-probability exactly 0, that carries the probe.

    It stands where SkyRL expects a Hugging Face model. ``offered`` are the probe's entries for what
    the latest forward pass predicts, in the shape of its input; the seam adds them.
    """

    VOCABULARY = 1
    offered: ClassVar[torch.Tensor]
    _no_split_modules = (_ProbeLayer.__name__,)

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.layer = _ProbeLayer(capacity)

    def forward(
        self,
        token_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        # The probe is among the outputs because FSDP2 hooks its backward pass on to those.
        offered = self.layer(token_ids + 1)
        _ProbedPolicy.offered = offered
        logits = torch.zeros(*token_ids.shape, self.VOCABULARY, device=token_ids.device)
        return {"logits": logits, "probe": offered}


def _probed(log_probs_from_logits: Any) -> Any:
    def with_probe(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        labels = labels % _ProbedPolicy.VOCABULARY
        return log_probs_from_logits(logits, labels, **options) + _ProbedPolicy.offered

    return with_probe


def _module(path: str) -> ModuleType | Any:
    return importlib.import_module(f"skyrl.{path}")


def _ppo_utils() -> Any:
    return _module("backends.skyrl_train.utils.ppo_utils")


def _reduces(loss_reduction: str) -> bool:
    """Whether SkyRL's reduction knows a mode, found by asking it to reduce one token."""
    reduce = _ppo_utils().apply_loss_reduction_to_advantages_minibatch
    token = torch.ones(1, 1)
    arguments = {
        "advantages": token,
        "loss_mask": token,
        "loss_reduction": loss_reduction,
        "micro_batch_size": 1,
        "max_seq_len": 1,
        "prompt_boundaries": [(0, 1)],
    }
    known = inspect.signature(reduce).parameters
    try:
        reduce(**{name: value for name, value in arguments.items() if name in known})
    except ValueError:
        return False
    return True


def _itself(chunk: Any) -> Any:
    return chunk


def _mend_dependencies() -> None:
    """Names that SkyRL's releases expect of Python 3.12 and of the ray of their time."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    placement_group = importlib.import_module("ray.util.placement_group")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placement_group.PlacementGroupSchedulingStrategy = strategies.PlacementGroupSchedulingStrategy


def _stand_in_for_flash_attn() -> None:
    """flash_attn has no CPU build; transformers has the same packing functions in plain torch."""
    if not stand_in(["flash_attn"]):
        return
    packing = importlib.import_module("transformers.modeling_flash_attention_utils")
    bert_padding = importlib.import_module("flash_attn.bert_padding")
    bert_padding.unpad_input = packing._unpad_input
    bert_padding.pad_input = packing._pad_input
