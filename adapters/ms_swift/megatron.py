"""Drives `MegatronGRPOTrainer` on this rank."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import types
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from adapters.engines import megatron_core
from adapters.ms_swift.driving import Rollouts, in_rows, prompts
from adapters.ms_swift.model import template
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import found, provide
from adapters.toolkit.probe import by_token_id, logits_head
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Job, Rank
    from adapters.contract.framework import Settings

TRAINER = "swift.megatron.trainers.grpo_trainer:MegatronGRPOTrainer"
OF_BRIDGE = ("set_random_seed", "split_cp_inputs", "unwrap_model")
"""Functions of mcore-bridge that run as they are; its models want Transformer Engine."""
MODELS = ("LoraParallelLinear", "ModelConfig", "GPTBridge", "get_mcore_model", "hf_to_mcore_config")
STATES = ("main_grads", "main_params", "exp_avg", "exp_avg_sq", "params", "torch")


@cache
def import_trainers() -> None:
    """Import ms-swift's trainers on Megatron-Core without mcore-bridge's models."""
    spec = importlib.util.find_spec("mcore_bridge")
    assert spec is not None
    package: Any = types.ModuleType("mcore_bridge")
    package.__path__, package.__spec__ = [*(spec.submodule_search_locations or ())], spec
    sys.modules["mcore_bridge"] = package
    own = {name: found(f"mcore_bridge.utils:{name}") for name in OF_BRIDGE}
    vars(package).update(own | {name: type(name, (), {}) for name in MODELS})
    provide("mcore_bridge.model", get_mcore_model_type=None, get_model_meta=None)
    found("swift.megatron.trainers.base").warmup_jit_function = lambda *_: None


def arguments(settings: Settings, **of_job: Any) -> Any:
    """The arguments of a command line, without the look at a checkpoint and at GPUs."""
    kind = found("swift.megatron.arguments:MegatronRLHFArguments")
    made = object.__new__(kind)
    for one in fields(kind):
        default = None if one.default is MISSING else one.default
        made.__dict__[one.name] = (
            default if one.default_factory is MISSING else one.default_factory()
        )
    vars(made).update({f"{name}_dtype": torch.float32 for name in STATES}, **settings, **of_job)
    made._init_generation_batch_params()
    return made


class Training:
    """One run of `MegatronGRPOTrainer` and what was read from it."""

    def __init__(self, job: Job, rollouts: Rollouts, settings: Settings, rank: Rank) -> None:
        self.job, self.rollouts, self.rank = job, rollouts, rank
        self.capacity = capacity = rollouts.capacity
        self.logs: list[dict[str, Any]] = []
        free, cp = settings["padding_free"], job.layout.cp
        with tempfile.TemporaryDirectory(prefix="rl-loss-ms-swift-") as folder:
            made = template(capacity, folder, padding_free=free, sequence_parallel_size=cp)
            made.use_megatron = True
            of_job = {
                "model_info": made.processor.model_info,
                "model_meta": made.processor.model_meta,
                "model_dir": folder,
                "output_dir": folder,
                "reward_funcs": [rollouts.rewards],
            }
            with refusals():
                args = arguments(settings, **of_job)
            trainer = self._trainer(args, made)
            policy = megatron_core.wrapped_policy(trainer.wrapped_models, trainer.unwrapped_models)
            gradients = megatron_core.gradients_of_steps(trainer.optimizer, policy)
            trainer.train(prompts(len(rollouts.batch.prompts)), None)
        self.gradients, self.passes = gradients.drain(), policy.passes

    def _chunks(self, config: Any, untrained: list[Any]) -> list[Any]:
        """A model that returns log-probabilities of samples where it is not trained."""
        given = torch.zeros(self.capacity)
        table = by_token_id(self.rollouts.batch, untrained)
        given[: len(table)] = table

        def head(ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
            values = probe if torch.is_grad_enabled() else given
            return logits_head(ids, values)["logits"] + logit

        return megatron_core.probed_model(config, self.capacity, self.rank, head)

    def _trainer(self, args: Any, of_template: Any) -> Any:
        """ms-swift's trainer with our models, the case's samples, and advantages if given."""
        run, batch = self, self.rollouts.batch
        config = megatron_core.transformer_config(self.job.layout, torch.float32)
        of_tokens: Callable[..., Any] | None = None
        if gives_advantages(self.job):
            of_tokens = by_token_id(batch, batch.advantages).__getitem__

        class Trainer(found(TRAINER)):  # type: ignore[misc] # loaded when run
            def prepare_model(self) -> None:
                megatron_core.reduce_one_by_one_over_gloo(run.rank)
                self.unwrapped_models = run._chunks(config, batch.old_log_probs)
                self.peft_models = self.unwrapped_models
                self.ref_models = run._chunks(config, batch.reference_log_probs)
                self.config, self.bridge = config, None
                self.wrapped_models = found("swift.megatron.utils:wrap_model")(
                    args, self.unwrapped_models
                )
                self._load_teacher_model()

            def _move_model_to_vllm(self) -> None:
                """Do nothing: there is no engine to send weights to."""

            def save_checkpoint(self) -> None:
                """Do nothing: nothing is saved."""

            def _rollout(self, samples: list[Any]) -> list[Any]:
                return run.rollouts.infer(samples)

            def on_log(self, logs: dict[str, Any], prefix: str = "") -> None:
                super().on_log(logs, prefix)
                run.logs.append({**self._last_logged_metrics})

            def _generate_and_score_completions(self, inputs: Any) -> list[dict[str, Any]]:
                made: list[dict[str, Any]] = super()._generate_and_score_completions(inputs)
                for micro_batch in made if of_tokens else ():
                    ids, grpo_batch = (
                        micro_batch["input_ids"].roll(-1, -1),
                        micro_batch["grpo_batch"],
                    )
                    if of_template.padding_free:
                        ids = in_rows(ids[0], grpo_batch)
                    grpo_batch.advantages = of_tokens(ids)
                return made

        trainer = Trainer(args, of_template, vllm_client=None)
        trainer.disable_rollout_importance_sampling = False
        return trainer
