"""Drives open-instruct's actors on this rank: data, `step` and the log of a training step."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from adapters.engines.deepspeed import (
    forget_engines,
    gradients_of_steps,
    number_from_zero,
    refusals_of_sizes,
)
from adapters.engines.pretrained import SEAM, PretrainedProbe, policy, table
from adapters.open_instruct.importing import actor_class, config_classes, module, of_class
from adapters.open_instruct.packing import Packing
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.calls import refusals
from adapters.toolkit.probe import probe_capacity
from adapters.toolkit.settings import gives_advantages
from adapters.toolkit.worlds import of_all_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Job, Rank
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Settings

TOKENIZER = SimpleNamespace(pad_token_id=0)
"""What a step reads of a tokenizer."""


class Training:
    """One run of the trainer on a job, and what was read from it."""

    def __init__(self, job: Job, batch: ProbedBatch, settings: Settings, rank: Rank) -> None:
        self._batch, self._rank = batch, rank
        trainer_options, data_options = config_classes()
        with refusals():
            self._args = trainer_options(**of_class(trainer_options, settings))
            self._of_data = data_options(**of_class(data_options, settings))
        self._data = Data(job, batch, self._of_data)
        number_from_zero()
        forget_engines()
        SEAM.start(batch)
        of_logits = module("model_utils")
        log_probs = SEAM.around_log_probs(of_logits.log_softmax_and_gather)
        with (
            cuda_on_cpu.redirected(),
            mock.patch.object(of_logits, "log_softmax_and_gather", log_probs),
        ):
            trainer, model = self._trainer(job)
            gradients = gradients_of_steps(trainer.model, model.layer.probe)
            self.logs = [self._log(trainer, step) for step in range(self._args.num_training_steps)]
        epochs, steps = self._args.num_epochs, len(self.logs)
        self.gradients = _of_last_epoch(gradients.drain(), epochs, steps)
        self.passes = _of_last_epoch(model.passes.drain(), epochs, steps)

    def _trainer(self, job: Job) -> tuple[Any, PretrainedProbe]:
        """The trainer of this rank, and its model."""
        home, args, capacity = module("grpo_fast"), self._args, probe_capacity(self._batch.probe_size)
        given = (self._batch.old_log_probs, self._batch.reference_log_probs)
        models = [policy(self._batch, log_probs, capacity) for log_probs in given]
        models[0].gradient_checkpointing_enable = lambda: None
        models[0].config._attn_implementation = "sdpa"
        dealt = self._data.prepared(job.layout.dp, args.per_device_train_batch_size)
        self._of_data.build_dataloader = lambda dp_rank, **_: [
            {"batch": of_ranks[dp_rank], "metrics": metrics} for of_ranks, metrics in dealt
        ]
        if args.num_epochs > 1:
            _let_first_epoch_be_old(models[0], [len(of_ranks[0]) for of_ranks, _ in dealt])
        trainer = actor_class("grpo_fast", "PolicyTrainerRayProcess")(
            job.layout.world_size,
            self._rank.index,
            0,
            "localhost",
            0,
            args,
            self._of_data,
            None,
            TOKENIZER,
        )
        source = SimpleNamespace(
            model_name_or_path="probe",
            model_revision=None,
            attn_implementation=module("model_utils").AttentionBackendName.torch,
        )
        in_float32 = {
            name: partial(_in_float32, getattr(home, name))
            for name in ("get_train_ds_config", "get_eval_ds_config")
        }
        loaded = mock.patch.object(AutoModelForCausalLM, "from_pretrained", side_effect=models)
        with loaded, mock.patch.multiple(home, **in_float32), refusals_of_sizes():
            trainer.from_pretrained(args, source, None, "", TOKENIZER)
        norm = trainer.model.get_global_grad_norm
        trainer.model.get_global_grad_norm = lambda: norm() or 0.0
        return trainer, models[0]

    def _log(self, trainer: Any, step: int) -> dict[str, float]:
        """What open-instruct prints of a training step, of all ranks."""
        home, log = module("grpo_fast"), dict[str, float]()
        of_ranks = of_all_ranks(trainer.step())
        actors = [
            SimpleNamespace(step=SimpleNamespace(remote=partial(of_ranks.__getitem__, index)))
            for index in range(len(of_ranks))
        ]
        replaced: dict[str, Any] = {
            "ray": mock.Mock(),
            "ray_get_with_progress": lambda answers, **_: (answers, None),
            "maybe_save_checkpoint": lambda *_: 0.0,
            "print_rich_single_line_metrics": log.update,
        }
        utilization = mock.patch.object(
            module("utils"), "calculate_utilization_metrics", lambda **_: {}
        )
        with mock.patch.multiple(home, **replaced), utilization:
            home.one_training_step(
                self._args,
                self._of_data,
                mock.Mock(),
                SimpleNamespace(models=actors),
                TOKENIZER,
                {},
                0,
                step + 1,
                1,
                0.0,
                [None],
                0.0,
                "",
                "",
                None,
                mock.Mock(),
            )
        return log


def _of_last_epoch(seen: Sequence[Any], epochs: int, batches: int) -> list[Any]:
    """The part of ``seen`` of each batch that belongs to the last time it was trained on."""
    parts = np.array_split(np.arange(len(seen)), batches)
    return [seen[index] for part in parts for index in part[len(part) - len(part) // epochs :]]


def _let_first_epoch_be_old(model: PretrainedProbe, batches: Sequence[int]) -> None:
    """Let the policy be the old one while it is trained on each batch of micro-batches first."""
    is_first = [first for size in batches for first in [True] * size + [False] * size]

    def add(*_: Any) -> None:
        if torch.is_grad_enabled() and is_first[len(model.passes) - 1]:
            assert SEAM.probe is not None
            SEAM.probe = SEAM.probe + model.given

    model.register_forward_hook(add)


def _in_float32(make: Any, *args: Any, **options: Any) -> Any:
    """DeepSpeed's configuration without bfloat16."""
    return make(*args, **{**options, "bf16": False})


@dataclass(frozen=True, eq=False)
class Data:
    """Makes each rank's micro-batches of given samples by open-instruct's own loop."""

    job: Job
    batch: ProbedBatch
    options: Any

    def prepared(self, ranks: int, rows: int) -> list[tuple[list[Any], dict[str, Any]]]:
        """Each generation's micro-batches of all ranks, and its numbers."""
        home, generations = module("data_loader"), Packing.of(self.job).generations
        actor = object.__new__(actor_class("data_loader", "DataPreparationActor"))
        vars(actor).update(
            config=self.options,
            num_training_steps=len(generations),
            per_device_train_batch_size=rows,
            dp_world_size=ranks,
            global_batch_size=1,
            iter_dataloader=Prompts(),
            prepared_data={},
            metrics={},
            training_step=0,
            _last_consumed_step=0,
            tokenizer=TOKENIZER,
            tool_names=[],
            rubric_manager=None,
            lock=mock.MagicMock(),
            **dict.fromkeys(UNREAD),
        )
        replaced: dict[str, Any] = {
            "add_prompt_to_generator": lambda *_, **__: None,
            "accumulate_inference_batches": self._generated(iter(generations)),
            "prepare_collated_data_for_workers": self._with_advantages(
                home.prepare_collated_data_for_workers
            ),
        }
        in_order = mock.patch.object(np.random, "permutation", np.arange)
        with mock.patch.multiple(home, **replaced), in_order:
            actor._data_preparation_loop()
        return [(actor.prepared_data[step], actor.metrics[step]) for step in actor.metrics]

    def _with_advantages(self, collate: Any) -> Any:
        """open-instruct's function with the advantages of tokens, unless it compares rewards."""
        batch, of_tokens = self.batch, None
        if gives_advantages(self.job):
            of_tokens = table(batch, batch.advantages, probe_capacity(batch.probe_size))

        def collate_given(packed: Any, *args: Any, **options: Any) -> Any:
            if of_tokens is not None:
                packed.advantages = [of_tokens[ids] for ids in packed.query_responses]
            return collate(packed, *args, **options)

        return collate_given

    def _generated(self, generations: Iterator[list[int]]) -> Any:
        """A function that returns generation after generation, as it would those of an engine."""
        types, batch = module("data_types"), self.batch

        def generated(*_: Any, **__: Any) -> Any:
            samples = next(generations)
            size = len(samples)
            responses, prompts = (
                [ids[one].tolist() for one in samples] for ids in (batch.responses, batch.prompts)
            )
            request = types.RequestInfo(
                [0] * size, [0] * size, [""] * size, [""] * size, [0.0] * size, [False] * size
            )
            result = types.GenerationResult(
                responses=responses,
                finish_reasons=["stop"] * size,
                masks=[batch.original_masks[one].astype(int).tolist() for one in samples],
                request_info=request,
                index=None,
                prompt_id=None,
                token_statistics=types.TokenStatistics(1, 1, 1.0),
                logprobs=[batch.rollout_log_probs[one].tolist() for one in samples],
            )
            of_samples = module("model_utils").Batch(
                queries=prompts,
                ground_truths=[[]] * size,
                datasets=[""] * size,
                raw_queries=None,
                decoded_responses=None,
                indices=None,
                scores=[float(batch.rewards[one]) for one in samples],
            )
            statistics = module("data_loader").BatchStatistics(
                prompt_lengths=[len(ids) for ids in prompts],
                response_lengths=[len(ids) for ids in responses],
                **dict.fromkeys(COUNTS, 0),
                percent_solved_hist=np.zeros(1),
                per_group_generation_times=np.ones(1),
            )
            return result, of_samples, {}, statistics

        return generated


COUNTS = (
    *("filtered_prompts", "filtered_prompts_zero", "filtered_prompts_solved"),
    *("filtered_prompts_nonzero", "filtered_prompts_pct", "percent_solved_mean"),
    *("no_resampled_prompts", "total_prompts"),
)
UNREAD = (
    *("inference_results_Q", "param_prompt_Q", "generation_config", "model_dims", "dataset"),
    *("actor_manager", "verbose", "base_env_config", "ground_truth_overrides"),
)
"""Numbers of a generation, and parts of the loop, which no step depends on."""


class Prompts:
    """The loop's prompts, which are given to no generator."""

    _epoch = 0

    def __next__(self) -> None:
        """No prompt."""
