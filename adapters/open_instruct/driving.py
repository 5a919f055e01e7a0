"""Drives open-instruct's actors on this rank: data, `step` and the log of a training step."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from adapters.engines.deepspeed import forget_engines, gradients_of_steps, refusals_of_sizes
from adapters.engines.pretrained import policy, table
from adapters.open_instruct.importing import actor_classes, config_classes, module
from adapters.open_instruct.packing import packing_of
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.calls import refusals
from adapters.toolkit.probe import SEAM, probe_capacity
from adapters.toolkit.settings import field_settings, gives_advantages
from adapters.toolkit.worlds import all_gather

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch

TOKENIZER = SimpleNamespace(pad_token_id=0)
"""A tokenizer with the only attribute that a step reads."""


class OpenInstructTraining:
    """One run of the trainer on a job, with its gradients, forward passes and logs."""

    def __init__(self, job: Job, batch: ProbedBatch, settings: Settings, rank: Rank) -> None:
        self._batch, kinds = batch, config_classes()
        with refusals():
            self._args, self._of_data = (kind(**field_settings(kind, settings)) for kind in kinds)
        self._given = {"args": self._args, "streaming_config": self._of_data}
        forget_engines()
        SEAM.start(batch)
        self.gradients: list[Any] = []
        self.passes: list[Any] = []
        self.logs: list[dict[str, float]] = []
        with cuda_on_cpu.redirected():
            self._train(Data(job, batch, self._of_data).prepared(), rank)

    def _train(self, prepared: list[Any], rank: Rank) -> None:
        """Train on each generation, and keep records of its last epoch."""
        self._of_data.build_dataloader = lambda dp_rank, **_: [
            {"batch": of_ranks[dp_rank], "metrics": metrics} for of_ranks, metrics in prepared
        ]
        place = {"world_size": rank.world_size, "rank": rank.index, "local_rank": 0}
        address = {"master_addr": "localhost", "master_port": 0}
        trainer = _call(actor_classes()[0], tokenizer=TOKENIZER, **self._given, **place, **address)
        model = self._load(trainer)
        gradients = gradients_of_steps(trainer.model, model.layer.probe)
        for of_ranks, _ in prepared:
            self._micro_batches = len(of_ranks[0])
            self.logs.append(self._log(all_gather(trainer.step())))
            for kept, seen in ((self.gradients, gradients), (self.passes, model.passes)):
                of_all_epochs = seen.drain()
                kept += of_all_epochs[-(len(of_all_epochs) // self._args.num_epochs) :]

    def _load(self, trainer: Any) -> Any:
        """Load the models into the trainer; returns the policy."""
        home, capacity = module("grpo_fast"), probe_capacity(self._batch.probe_size)
        # Until May 2026 these configurations were variables of the script.
        home.streaming_config, home.vllm_config = self._of_data, mock.Mock()
        given = (self._batch.old_log_probs, self._batch.reference_log_probs)
        models = [policy(self._batch, log_probs, capacity) for log_probs in given]
        trained: Any = models[0]
        trained.gradient_checkpointing_enable = lambda: None
        trained.config._attn_implementation = "sdpa"
        if self._args.num_epochs > 1:
            trained.register_forward_hook(self._be_old_at_first)
        names = getattr(module("model_utils"), "AttentionBackendName", None)
        attention = names.torch if names else "sdpa"  # "sdpa" before April 2026
        source = SimpleNamespace(
            model_name_or_path="probe", model_revision=None, attn_implementation=attention
        )
        in_float32: dict[str, Any] = {
            name: partial(_float32_config, getattr(home, name))
            for name in ("get_train_ds_config", "get_eval_ds_config")
        }
        loaded = mock.patch.object(AutoModelForCausalLM, "from_pretrained", side_effect=models)
        with loaded, mock.patch.multiple(home, **in_float32), refusals_of_sizes():
            trainer.from_pretrained(self._args, source, None, "", TOKENIZER)
        norm = trainer.model.get_global_grad_norm
        trainer.model.get_global_grad_norm = lambda: norm() or 0.0
        return trained

    def _be_old_at_first(self, model: Any, *_: Any) -> None:
        """Let the policy have the old policy's log-probabilities in the first epoch."""
        if torch.is_grad_enabled() and len(model.passes) <= self._micro_batches:
            assert SEAM.probe is not None
            SEAM.probe = SEAM.probe + model.given

    def _log(self, of_ranks: list[Any]) -> dict[str, float]:
        """The log that open-instruct prints for a step, from the results of all ranks' actors."""
        log: dict[str, float] = {}
        replaced: dict[str, Any] = {
            "ray": mock.Mock(),
            "ray_get_with_progress": lambda *_, **__: (of_ranks, None),
            "maybe_save_checkpoint": lambda *_: 0.0,
            "print_rich_single_line_metrics": log.update,
        }
        home, use = module("grpo_fast"), "calculate_utilization_metrics"
        no_use = mock.patch.object(module("utils"), use, return_value={})
        with mock.patch.multiple(home, **replaced), no_use:
            _call(home.one_training_step, **self._given)
        return log


def _call(function: Any, **given: Any) -> Any:
    """Call a function, with mocks for arguments that affect neither gradients nor logs."""
    unread = dict.fromkeys(inspect.signature(function).parameters, mock.MagicMock())
    return function(**{name: given.get(name, one) for name, one in unread.items()})


def _float32_config(make: Any, *args: Any, **options: Any) -> Any:
    """DeepSpeed's configuration without bfloat16."""
    return make(*args, **{**options, "bf16": False})


@dataclass(frozen=True, eq=False)
class Data:
    """Makes each rank's micro-batches from given samples, by open-instruct's own loop."""

    job: Job
    batch: ProbedBatch
    options: Any

    def prepared(self) -> list[tuple[list[Any], dict[str, Any]]]:
        """Each generation's micro-batches of all ranks, with its metrics."""
        home, packing = module("data_loader"), packing_of(self.job)
        actor = mock.MagicMock(
            config=self.options,
            num_training_steps=len(packing.generations),
            per_device_train_batch_size=packing.rows,
            dp_world_size=self.job.layout.dp,
            global_batch_size=1,
            prepared_data={},
            metrics={},
            training_step=0,
            _last_consumed_step=0,
            tokenizer=TOKENIZER,
            tool_names=[],
            rubric_manager=None,
            shutdown_requested=False,
        )
        collate = partial(self._collated, home.prepare_collated_data_for_workers)
        replaced: dict[str, Any] = {
            "add_prompt_to_generator": lambda *_, **__: None,
            "accumulate_inference_batches": partial(self._generated, iter(packing.generations)),
            "prepare_collated_data_for_workers": collate,
        }
        in_order = mock.patch.object(np.random, "permutation", np.arange)
        with mock.patch.multiple(home, **replaced), in_order:
            actor_classes()[1]._data_preparation_loop(actor)
        return [(actor.prepared_data[step], actor.metrics[step]) for step in actor.metrics]

    def _collated(self, collate: Any, packed: Any, *args: Any, **options: Any) -> Any:
        """open-instruct's micro-batches, with given advantages if there are any."""
        if gives_advantages(self.job):
            capacity = probe_capacity(self.batch.probe_size)
            of_tokens = table(self.batch, self.batch.advantages, capacity)
            packed.advantages = [of_tokens[ids] for ids in packed.query_responses]
        return collate(packed, *args, **options)

    def _generated(self, generations: Iterator[list[int]], *_: Any, **__: Any) -> Any:
        """The next generation, in the form in which engines return generations."""
        batch, samples, types = self.batch, next(generations), module("data_types")
        responses, prompts, log_probs = (
            [values[one].tolist() for one in samples]
            for values in (batch.responses, batch.prompts, batch.rollout_log_probs)
        )
        result = types.GenerationResult(
            responses=responses,
            finish_reasons=["stop"] * len(samples),
            masks=[batch.original_masks[one].astype(int).tolist() for one in samples],
            request_info=types.RequestInfo([], [], [], [], [], []),
            index=None,
            prompt_id=None,
            token_statistics=types.TokenStatistics(1, 1, 1.0),
            logprobs=log_probs,
        )
        scores = [float(batch.rewards[one]) for one in samples]
        none: list[Any] = [[]] * len(samples)
        of_samples = module("model_utils").Batch(prompts, none, none, None, None, None, scores)
        kind = module("data_loader").BatchStatistics
        return result, of_samples, {}, kind(**dict.fromkeys(kind.__dataclass_fields__, np.ones(1)))
