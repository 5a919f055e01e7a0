"""Drives `GRPOTrainer` on this rank: `train()` runs from rollouts to the last optimizer step."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from adapters.engines.accelerate import Watch
from adapters.engines.generations import Generated
from adapters.engines.pretrained import LONGEST, ProbeConfig, policy, tokenizer
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import found
from adapters.toolkit.probe import probe_capacity, token_table
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract.framework import Settings

TYPE = "probe"  # type name of model and template
PREFIX = "rl-loss-ms-swift-"  # prefix of temporary folders' names


@dataclass(eq=False)
class MsSwiftRollouts(Generated):
    """A stub of the inference engine that returns a batch's samples, generation by generation.

    ``together`` is the number of ranks that share one rank of the schedule.
    """

    together: int = 1
    max_model_len: int = LONGEST
    generated: Iterator[int] = field(default_factory=count)
    samples: list[int] = field(default_factory=list)
    """The samples of the latest generation on this rank."""

    @property
    def capacity(self) -> int:
        """The size of the probe, which is also the size of the model's vocabulary."""
        return probe_capacity(self.batch.probe_size + 2)

    def infer(self, requests: list[Any], *_: Any, **__: Any) -> list[Any]:
        """The engine's outputs, one for each request: the rank's samples of the next generation."""
        group, place = divmod(self.rank, self.together)
        of_group = self.schedule.samples(next(self.generated), group)
        size = len(of_group) // self.together
        self.samples = of_group[place * size : (place + 1) * size]
        return [self._output(sample) for sample, _ in zip(self.samples, requests, strict=True)]

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
        return protocol.RolloutOutput(
            response=protocol.ChatCompletionResponse(TYPE, [choice], protocol.UsageInfo(0, 0, 0)),
            messages=[*prompts(" ".join(map(str, prompt))), {"role": "assistant", "content": text}],
            response_token_ids=[response],
            response_loss_mask=[active.tolist()],
            rollout_logprobs=[batch.rollout_log_probs[sample][active > 0].tolist()],
        )

    def trainer_class(self, path: str) -> Any:
        """A subclass of a trainer that sets given advantages, aligned with the tensors of its loss.

        The loss has the last tokens of each row; on Megatron-Core it has all tokens, shifted left
        by one. Packed rows are aligned to the right.
        """
        rollouts, batch = self, self.batch

        class SwiftTrainerWithAdvantages(found(path)):  # type: ignore[misc] # loaded when run
            def _generate_and_score_completions(self, inputs: Any) -> list[dict[str, Any]]:
                made: list[dict[str, Any]] = super()._generate_and_score_completions(inputs)
                for one in made if gives_advantages(rollouts.job) else ():
                    of_loss, ids = one["grpo_batch"], one.get("model_inputs", one)["input_ids"]
                    kept = of_loss.logits_to_keep
                    ids = ids.roll(-1, -1) if kept is None else ids[:, -kept:]
                    if self.template.padding_free:
                        parts = ids[0].split(of_loss.seq_lengths.tolist())
                        width = of_loss.completion_mask.shape[1]
                        ids = torch.stack([pad(part, (width - len(part), 0)) for part in parts])
                    of_loss.advantages = token_table(batch, batch.advantages)[ids]
                return made

        return SwiftTrainerWithAdvantages


class MsSwiftTraining:
    """One run of `GRPOTrainer`, with its gradients and logs."""

    def __init__(self, rollouts: MsSwiftRollouts, settings: Settings) -> None:
        self.rollouts, self.watch = rollouts, Watch()
        others = {**settings}
        options = {name: others.pop(name) for name in ("padding_free", "sequence_parallel_size")}
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            with refusals():
                config = found("swift.rlhf_trainers:GRPOConfig")(output_dir=folder, **others)
            made = template(rollouts.capacity, folder, **options)
            self._trainer(config, made).train()
        self.gradients, self.logs = self.watch.gradients(), self.watch.logs

    def _trainer(self, config: Any, of_template: Any) -> Any:
        """The trainer with the case's models and samples."""
        from datasets import Dataset

        trained, reference = self._models(of_template)
        generated = config.generation_batch_size // config.num_generations
        trainer = self.rollouts.trainer_class("swift.rlhf_trainers:GRPOTrainer")(
            model=trained,
            ref_model=reference if config.beta else None,
            args=config,
            template=of_template,
            train_dataset=Dataset.from_list(rows(generated * self.rollouts.schedule.generations)),
            reward_funcs=[self.rollouts.rewards],
        )
        self.watch.follow(trainer)
        trainer.engine, self.passes = self.rollouts, trained.passes
        return trainer

    def _models(self, of_template: Any) -> list[Any]:
        """Policy and reference policy; with sequence parallelism if the template has it."""
        batch, processor = self.rollouts.batch, of_template.processor
        size, info = of_template.sequence_parallel_size, processor.model_info
        shared = found("swift.sequence_parallel:sequence_parallel")
        shared.world_size = None
        models: list[Any] = []
        for log_probs in (batch.old_log_probs, batch.reference_log_probs):
            model: Any = policy(batch, log_probs, self.rollouts.capacity)
            model.model_meta, model.model_info = processor.model_meta, info
            model.model_dir = info.model_dir
            if size > 1:
                shared.prepare(size, model, processor, padding_free=of_template.padding_free)
            models.append(model)
        return models


def template(capacity: int, folder: str, **options: Any) -> Any:
    """ms-swift's own template, of a type that adds nothing to a sample's text."""
    code = found("swift.template")
    registered = code.TemplateMeta(TYPE, prefix=[], prompt=["{{QUERY}} "], chat_sep=[], suffix=[])
    code.register_template(registered, exist_ok=True)
    processor = tokenizer({str(number): number for number in range(1, capacity)})
    processor.model_meta = found("swift.model:ModelMeta")(TYPE, [], template=TYPE)
    of_model = {"torch_dtype": torch.float32, "task_type": "causal_lm", "config": ProbeConfig()}
    processor.model_info = found("swift.model.model_meta:ModelInfo")(
        TYPE, folder, max_model_len=LONGEST, quant_method=None, quant_bits=None, **of_model
    )
    made = code.get_template(processor, template_type=TYPE, **options)
    made.set_mode("train")
    return made


def prompts(text: str) -> list[dict[str, str]]:
    """The messages of a conversation before the answer."""
    return [{"role": "user", "content": text}]


def rows(number: int) -> list[dict[str, Any]]:
    """Rows of a dataset, whose prompts are later replaced by the samples' prompts."""
    return [{"messages": prompts(str(row))} for row in range(number)]
