"""A job as SkyRL's configuration spells it, whatever the engine."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract import Job, Refused, Unsupported
from adapters.sizes import prompts_per_step, rollouts_per_prompt, token_budget
from adapters.skyrl.importing import module, ppo_utils
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOSS_REDUCTIONS = {
    Mode.SAMPLE_MEAN: "sequence_mean",
    Mode.PROMPT_MEAN: "prompt_mean",
    Mode.TOKEN_MEAN: "token_mean",
    Mode.CONSTANT: "seq_mean_token_sum_norm",
}

PACKING = ("remove_microbatch_padding", "use_sample_packing")
"""What SkyRL's versions call the packing of samples into one row, latest first."""


def modes() -> frozenset[Mode]:
    """The modes that SkyRL's reduction knows."""
    return frozenset(mode for mode in Mode if _reduces(LOSS_REDUCTIONS[mode]))


def scales_advantages() -> bool:
    """Whether SkyRL reduces by scaling advantages before the loss, which a trainer does."""
    return hasattr(ppo_utils(), "apply_loss_reduction_to_advantages_minibatch")


def configure(job: Job, configure_engine: Callable[[Any, Job], None]) -> Any:
    """SkyRL's own configuration for a job, passed through its own startup validation.

    ``configure_engine`` sets in the trainer's section what the engine has besides.

    Raises:
        Unsupported: this version lacks an option that the layout needs.
        Refused: SkyRL declines the configuration.
    """
    prompts, per_prompt = prompts_per_step(job.steps), rollouts_per_prompt(job.steps)
    config = module("train.config").SkyRLTrainConfig()
    trainer, algorithm = config.trainer, config.trainer.algorithm
    trainer.logger = "console"
    trainer.placement.colocate_all = False
    trainer.placement.policy_num_gpus_per_node = job.layout.world_size
    trainer.train_batch_size = prompts * len(job.steps)
    trainer.policy_mini_batch_size = prompts
    config.generator.n_samples_per_prompt = per_prompt
    config.generator.step_wise_trajectories = any(
        step.size != prompts * per_prompt for step in job.steps
    )
    algorithm.use_kl_loss = False
    algorithm.loss_reduction = LOSS_REDUCTIONS[job.aggregation.mode]
    algorithm.max_seq_len = _max_seq_len(job.aggregation)
    _configure_micro_batches(trainer, job, prompts * per_prompt // job.layout.dp)
    configure_engine(trainer, job)
    with refusals():
        module("train.utils.utils").validate_cfg(config)
    return config


@contextmanager
def refusals() -> Iterator[None]:
    """Inside, a SkyRL that objects declines the job.

    Raises:
        Refused: with SkyRL's words.
    """
    try:
        yield
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def _configure_micro_batches(trainer: Any, job: Job, per_rank: int) -> None:
    """``per_rank`` is SkyRL's own count: rollouts of a mini-batch on one data-parallel rank."""
    packing = next(name for name in PACKING if hasattr(trainer, name))
    setattr(trainer, packing, job.layout.format == "thd")
    if isinstance(job.layout.micro_batches, int):
        trainer.micro_train_batch_size_per_gpu = max(per_rank // job.layout.micro_batches, 1)
    elif job.layout.micro_batches == "tokens" and hasattr(trainer, "max_tokens_per_microbatch"):
        trainer.micro_train_batch_size_per_gpu = per_rank
        trainer.max_tokens_per_microbatch = token_budget(job.steps, job.layout.dp)
    else:
        raise Unsupported(f"no micro-batches by {job.layout.micro_batches}")


def _max_seq_len(aggregation: Aggregation) -> int | None:
    if aggregation.divisor is None:
        return None
    if not float(aggregation.divisor).is_integer():
        raise Unsupported(f"max_seq_len is an integer, the divisor {aggregation.divisor!r} is none")
    return int(aggregation.divisor)


def _reduces(loss_reduction: str) -> bool:
    """Whether SkyRL's reduction knows a mode, found by asking it to reduce one token.

    It scales advantages; in versions before 0.2.0, losses.
    """
    utils = ppo_utils()
    reduce = utils.reduce_loss
    if scales_advantages():
        reduce = utils.apply_loss_reduction_to_advantages_minibatch
    token = torch.ones(1, 1)
    arguments = {
        "advantages": token,
        "loss": token,
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
