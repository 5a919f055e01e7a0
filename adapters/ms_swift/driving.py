"""Drives `GRPOTrainer` on this rank: `train()` takes rollouts to the last optimizer step."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from adapters.contract import Option
from adapters.engines.accelerate import Watch
from adapters.engines.pretrained import LONGEST, SEAM, ProbeConfig, policy, tokenizer
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import found
from adapters.toolkit.probe import by_token_id, probe_capacity
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Job
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Settings
    from adapters.engines.generations import Schedule

TYPE = "probe"
"""The type of model and template."""

OF_TEMPLATE = ("padding_free", "sequence_parallel_size")
"""Options that ms-swift's command line gives its template."""


FUNCTIONS = ("grpo_trainer", "selective_log_softmax", "entropy_from_logits")
"""The module that computes log-probabilities and entropies of logits, and its functions."""


@contextmanager
def replaced(package: str, code: str, log_probs: str, entropies: str) -> Iterator[str]:
    """Put the probe into functions of a package, and let vLLM be new; returns a folder."""
    of_logits = found(f"{package}.{code}")
    functions: dict[str, Any] = {
        log_probs: SEAM.around_log_probs(getattr(of_logits, log_probs)),
        entropies: SEAM.around_entropies(getattr(of_logits, entropies)),
    }
    is_new: dict[str, Any] = {"check_vllm_version_ge": lambda version: True}
    with (
        tempfile.TemporaryDirectory(prefix="rl-loss-ms-swift-") as folder,
        mock.patch.multiple(of_logits, **functions),
        mock.patch.multiple(found(f"{package}.rollout_mixin"), **is_new),
    ):
        yield folder


@dataclass
class Rollouts:
    """Stands in for the inference engine, and returns a batch's samples generation by generation.

    ``together`` is the number of ranks that share what the schedule has for one.
    """

    batch: ProbedBatch
    job: Job
    schedule: Schedule
    rank: int
    together: int = 1
    max_model_len: int = LONGEST
    generated: Iterator[int] = field(default_factory=count)
    samples: list[int] = field(default_factory=list)
    """Those of the latest generation on this rank."""

    @property
    def capacity(self) -> int:
        """The size of the probe, which is that of the model's vocabulary."""
        return probe_capacity(self.batch.probe_size + 2)

    def infer(self, requests: list[Any], *_: Any, **__: Any) -> list[Any]:
        """The outputs of an engine for as many requests as this rank has samples."""
        group, place = divmod(self.rank, self.together)
        of_group = self.schedule.samples(next(self.generated), group)
        size = len(of_group) // self.together
        self.samples = of_group[place * size : (place + 1) * size]
        if size != len(requests):
            raise RuntimeError(f"{size} samples for {len(requests)} requests")
        return [self._output(sample) for sample in self.samples]

    def rewards(self, completions: list[str], **_: Any) -> list[float]:
        """A user's reward function, which returns the rewards of the latest generation."""
        return [float(self.batch.rewards[sample]) for sample in self.samples]

    def _output(self, sample: int) -> Any:
        batch, protocol = self.batch, found("swift.infer_engine.protocol")
        mask = batch.original_masks[sample]
        is_truncated = Option.MASKED_TRUNCATION in self.job.layout.options and not mask.any()
        active = mask | is_truncated
        prompt, response = batch.prompts[sample].tolist(), batch.responses[sample].tolist()
        text = " ".join(map(str, response))
        choice = protocol.ChatCompletionResponseChoice(
            0, protocol.ChatMessage("assistant", text), "length" if is_truncated else "stop"
        )
        usage = protocol.UsageInfo(0, 0, 0)
        return protocol.RolloutOutput(
            response=protocol.ChatCompletionResponse(TYPE, [choice], usage),
            messages=[*prompts(" ".join(map(str, prompt))), {"role": "assistant", "content": text}],
            response_token_ids=[response],
            response_loss_mask=[active.astype(int).tolist()],
            rollout_logprobs=[batch.rollout_log_probs[sample][active].tolist()],
        )


class Training:
    """One run of `GRPOTrainer` and what was read from it."""

    def __init__(self, job: Job, rollouts: Rollouts, settings: Settings) -> None:
        self.rollouts, self.watch = rollouts, Watch()
        of_template = {name: settings[name] for name in OF_TEMPLATE}
        others = {name: one for name, one in settings.items() if name not in of_template}
        with replaced("swift.rlhf_trainers", *FUNCTIONS) as folder:
            with refusals():
                config = found("swift.rlhf_trainers:GRPOConfig")(output_dir=folder, **others)
            made = template(rollouts.capacity, folder, **of_template)
            self._trainer(job, config, made).train()
        self.gradients, self.logs = self.watch.gradients(), self.watch.logs

    def _trainer(self, job: Job, config: Any, of_template: Any) -> Any:
        """The trainer with the case's models and samples."""
        from datasets import Dataset
        from transformers import PrinterCallback

        batch = self.rollouts.batch
        models = [
            policy(batch, log_probs, self.rollouts.capacity)
            for log_probs in (batch.old_log_probs, batch.reference_log_probs)
        ]
        for model in models:
            processor: Any = of_template.processor
            model.model_meta, model.model_info = processor.model_meta, processor.model_info
            model.model_dir = processor.model_info.model_dir
        share_sequences(of_template, models)
        generated = config.generation_batch_size // config.num_generations
        trainer = self._trainer_class(job)(
            model=models[0],
            ref_model=models[1] if config.beta else None,
            args=config,
            template=of_template,
            train_dataset=Dataset.from_list(rows(generated * self.rollouts.schedule.generations)),
            reward_funcs=[self.rollouts.rewards],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self.watch)
        trainer.engine, self.watch.trainer = self.rollouts, trainer
        self.passes = models[0].passes
        return trainer

    def _trainer_class(self, job: Job) -> Any:
        """ms-swift's trainer, or a subclass that sets given advantages, [rows, width]."""
        trainer = found("swift.rlhf_trainers:GRPOTrainer")
        if not gives_advantages(job):
            return trainer
        of_tokens = by_token_id(self.rollouts.batch, self.rollouts.batch.advantages)

        class WithAdvantages(trainer):  # type: ignore[misc,valid-type] # loaded when run
            def _postprocess_batch(self, samples: Any, encoded: list[dict[str, Any]]) -> None:
                super()._postprocess_batch(samples, encoded)
                for micro_batch in encoded:
                    grpo_batch = micro_batch["grpo_batch"]
                    ids = micro_batch["model_inputs"]["input_ids"][:, -grpo_batch.logits_to_keep :]
                    if self.template.padding_free:
                        ids = in_rows(ids[0], grpo_batch)
                    grpo_batch.advantages = of_tokens[ids]

        return WithAdvantages


def template(capacity: int, folder: str, **options: Any) -> Any:
    """ms-swift's own template, of a type that adds nothing to the text."""
    code = found("swift.template")
    registered = code.TemplateMeta(TYPE, prefix=[], prompt=["{{QUERY}} "], chat_sep=[], suffix=[])
    code.register_template(registered, exist_ok=True)
    processor = tokenizer(capacity)
    processor.model_meta = found("swift.model:ModelMeta")(TYPE, [], template=TYPE)
    of_model = {"torch_dtype": torch.float32, "task_type": "causal_lm", "config": ProbeConfig()}
    processor.model_info = found("swift.model.model_meta:ModelInfo")(
        TYPE, folder, max_model_len=LONGEST, quant_method=None, quant_bits=None, **of_model
    )
    made = code.get_template(processor, template_type=TYPE, **options)
    made.set_mode("train")
    return made


def prompts(text: str) -> list[dict[str, str]]:
    """The messages of a conversation before an answer."""
    return [{"role": "user", "content": text}]


def rows(number: int) -> list[dict[str, Any]]:
    """Rows of a dataset, whose prompts are replaced by those of samples."""
    return [{"messages": prompts(str(row))} for row in range(number)]


def in_rows(ids: torch.Tensor, grpo_batch: Any) -> torch.Tensor:
    """Packed ids in the frame of the loss, which aligns rows to the right: [rows, width]."""
    number, width = grpo_batch.completion_mask.shape
    aligned = ids.new_zeros(number, width)
    for row, part in enumerate(ids.split(grpo_batch.seq_lengths.tolist())):
        aligned[row, width - len(part) :] = part
    return aligned


def share_sequences(of_template: Any, models: list[Any]) -> None:
    """Let ranks share the sequences of models if the template does, as ms-swift's command does."""
    shared = found("swift.sequence_parallel:sequence_parallel")
    size, free = of_template.sequence_parallel_size, of_template.padding_free
    shared.world_size = None
    for model in models if size > 1 else ():
        shared.prepare(size, model, of_template.processor, padding_free=free)


def forget_sequences() -> None:
    """Forget the process groups of ranks that share sequences, whose world is about to end."""
    kind = found("swift.sequence_parallel.sequence_parallel:SequenceParallel")
    kind._global_inited = False
    vars(found("swift.sequence_parallel:sequence_parallel")).update(vars(kind()))
