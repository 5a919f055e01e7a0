"""Drives `GRPOTrainer` on this rank: `train()` takes rollouts to the last optimizer step."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from adapters.engines.accelerate import Watch
from adapters.engines.generations import Generated
from adapters.engines.pretrained import LONGEST, ProbeConfig, policy, tokenizer
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import found
from adapters.toolkit.probe import by_token_id, probe_capacity
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract.framework import Settings

TYPE = "probe"
"""The type of model and template."""

PREFIX = "rl-loss-ms-swift-"
"""The beginning of the names of temporary folders."""

OF_TEMPLATE = ("padding_free", "sequence_parallel_size")
"""Options that ms-swift's command line gives its template."""


@dataclass(eq=False)
class Rollouts(Generated):
    """Stands in for the inference engine, and returns a batch's samples generation by generation.

    ``together`` is the number of ranks that share what the schedule has for one.
    """

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
        active, reason = self.generated_mask(sample), ("stop", "length")[self.is_truncated(sample)]
        prompt, response = batch.prompts[sample].tolist(), batch.responses[sample].tolist()
        text = " ".join(map(str, response))
        said = protocol.ChatMessage("assistant", text)
        choice = protocol.ChatCompletionResponseChoice(0, said, reason)
        usage = protocol.UsageInfo(0, 0, 0)
        return protocol.RolloutOutput(
            response=protocol.ChatCompletionResponse(TYPE, [choice], usage),
            messages=[*prompts(" ".join(map(str, prompt))), {"role": "assistant", "content": text}],
            response_token_ids=[response],
            response_loss_mask=[active.tolist()],
            rollout_logprobs=[batch.rollout_log_probs[sample][active > 0].tolist()],
        )

    def give_advantages(self, grpo_batch: Any, ids: torch.Tensor, *, is_packed: bool) -> None:
        """Set given advantages of tokens, whose ids are in the frame of the loss: [rows, width].

        Ids of packed rows are one row, which the loss cuts.
        """
        if gives_advantages(self.job):
            of_tokens = by_token_id(self.batch, self.batch.advantages)
            grpo_batch.advantages = of_tokens[in_rows(ids[0], grpo_batch) if is_packed else ids]


class Training:
    """One run of `GRPOTrainer` and what was read from it."""

    def __init__(self, rollouts: Rollouts, settings: Settings) -> None:
        self.rollouts, self.watch = rollouts, Watch()
        others = {**settings}
        of_template = {name: others.pop(name) for name in OF_TEMPLATE}
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            with refusals():
                config = found("swift.rlhf_trainers:GRPOConfig")(output_dir=folder, **others)
            made = template(rollouts.capacity, folder, **of_template)
            self._trainer(config, made).train()
        self.gradients, self.logs = self.watch.gradients(), self.watch.logs

    def _trainer(self, config: Any, of_template: Any) -> Any:
        """The trainer with the case's models and samples."""
        from datasets import Dataset

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
        trainer = self._trainer_class()(
            model=models[0],
            ref_model=models[1] if config.beta else None,
            args=config,
            template=of_template,
            train_dataset=Dataset.from_list(rows(generated * self.rollouts.schedule.generations)),
            reward_funcs=[self.rollouts.rewards],
        )
        self.watch.follow(trainer)
        trainer.engine = self.rollouts
        self.passes = models[0].passes
        return trainer

    def _trainer_class(self) -> Any:
        """A subclass of ms-swift's trainer that sets given advantages."""
        give = self.rollouts.give_advantages

        class WithAdvantages(found("swift.rlhf_trainers:GRPOTrainer")):  # type: ignore[misc] # loaded when run
            def _postprocess_batch(self, samples: Any, encoded: list[dict[str, Any]]) -> None:
                super()._postprocess_batch(samples, encoded)
                for one in encoded:
                    grpo_batch, ids = one["grpo_batch"], one["model_inputs"]["input_ids"]
                    ids = ids[:, -grpo_batch.logits_to_keep :]
                    give(grpo_batch, ids, is_packed=self.template.padding_free)

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
