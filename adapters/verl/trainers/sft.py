"""verl's trainer for supervised fine-tuning, run on every rank: its own `fit`, one batch per step.

Each rank has the part of a step's samples that verl's sampler would give it. The engine is the
actor's engine, with this trainer's loss.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from adapters.contract.batch.sequences import PADDING_ID
from adapters.toolkit.settings import samples_per_step
from adapters.verl.importing import module

if TYPE_CHECKING:
    from adapters.contract import Job, Metric
    from adapters.contract.batch.probed_batch import ProbedBatch

TRAINER = "trainer.sft_trainer"


def train(
    config: Any, workers: dict[str, Any], batch: ProbedBatch, job: Job
) -> dict[Metric, tuple[float, ...]]:
    """Train all steps of a batch; the trainer's log is not read."""
    client = workers["actor"].actor
    client.set_loss_fn(partial(module("workers.utils.losses").sft_loss, config=None))
    trainer = object.__new__(module(TRAINER).SFTTrainer)
    vars(trainer).update(
        config=_configuration(config),
        training_client=client,
        engine=client.engine,
        model_config=SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PADDING_ID)),
        device_name=module("utils.device").get_device_name(),
        rank=dist.get_rank(),
        resume_global_step=0,
        total_training_steps=len(job.steps),
        steps_per_epoch=len(job.steps),
        global_batch_size=samples_per_step(job),
        test_freq=-1,
        save_freq=-1,
        start_profile_step=-1,
        end_profile_step=-1,
        train_sampler=SimpleNamespace(set_epoch=lambda epoch: None),
        train_dataloader=_batches(batch, job, client.engine),
        val_dataloader=None,
        ckpt_handler=SimpleNamespace(save_checkpoint=lambda step: None),
    )
    trainer.fit()
    return {}


def _configuration(config: Any) -> Any:
    """The configuration values that the trainer's `fit` reads."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    return OmegaConf.create(
        {
            "model": {"use_remove_padding": model.use_remove_padding},
            "data": {
                "use_dynamic_bsz": actor.use_dynamic_bsz,
                "max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu,
                "micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu,
                "pad_mode": "no_padding",
            },
            "trainer": {
                "total_epochs": 1,
                "project_name": "conformance",
                "experiment_name": "conformance",
                "logger": [],
            },
        }
    )


def _batches(batch: ProbedBatch, job: Job, engine: Any) -> list[dict[str, Any]]:
    """The samples of each step on this rank, batched as verl's collator batches its dataset."""
    collate = module("utils.dataset.dataset_utils").SFTTensorCollator("no_padding")
    sizes = np.cumsum([0, *(step.size for step in job.steps)])
    rank, ranks = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    return [
        collate([_sample(batch, index) for index in range(first + rank, end, ranks)])
        for first, end in pairwise(sizes)
    ]


def _sample(batch: ProbedBatch, index: int) -> dict[str, torch.Tensor]:
    """A sample in the form of verl's dataset, whose mask has entries for the prompt too."""
    of_prompt = np.zeros(len(batch.prompts[index]), np.int64)
    mask = np.concatenate([of_prompt, batch.masks[index].astype(np.int64)])
    ids = torch.from_numpy(batch.sequences[index])
    return {
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "loss_mask": torch.from_numpy(mask),
    }
