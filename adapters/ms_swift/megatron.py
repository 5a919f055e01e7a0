"""Drives `MegatronGRPOTrainer` on this rank."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from functools import cache
from typing import Any

import torch

from adapters.contract import Rank, Refused, Settings
from adapters.engines import megatron_core
from adapters.engines.pretrained import logits_of, table
from adapters.ms_swift.driving import PREFIX, MsSwiftRollouts, rows, template
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import found, provide
from adapters.toolkit.settings import make_without_init

OF_BRIDGE = ("set_random_seed", "split_cp_inputs", "unwrap_model")
"""Functions of mcore-bridge that run unchanged; its models are left out, as they require
Transformer Engine."""

MODELS = ("LoraParallelLinear", "ModelConfig", "get_mcore_model", "hf_to_mcore_config")


@cache
def import_trainers() -> None:
    """Import ms-swift's trainers on Megatron-Core without mcore-bridge's models."""
    spec = importlib.util.find_spec("mcore_bridge")
    assert spec is not None
    package = sys.modules["mcore_bridge"] = importlib.util.module_from_spec(spec)
    own = {name: found(f"mcore_bridge.utils:{name}") for name in OF_BRIDGE}
    vars(package).update(own | {name: type(name, (), {}) for name in MODELS})
    provide("mcore_bridge.model", get_mcore_model_type=None, get_model_meta=None)
    found("swift.megatron.trainers.base").warmup_jit_function = lambda *_: None


class MsSwiftMegatronTraining:
    """One run of `MegatronGRPOTrainer`, with its gradients and logs."""

    def __init__(self, rollouts: MsSwiftRollouts, settings: Settings, rank: Rank) -> None:
        self.rollouts, self.rank = rollouts, rank
        self.logs: list[dict[str, Any]] = []
        free, cp = settings["padding_free"], rollouts.job.layout.cp
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            made = template(rollouts.capacity, folder, padding_free=free, sequence_parallel_size=cp)
            made.use_megatron = True
            trainer = self._trainer(self._arguments(settings, made.processor, folder), made)
            policy = megatron_core.wrapped_policy(trainer.wrapped_models, trainer.unwrapped_models)
            gradients = megatron_core.gradients_of_steps(trainer.optimizer, policy)
            trainer.train(rows(len(rollouts.batch.prompts)), None)
        self.gradients, self.passes = gradients.drain(), policy.passes

    def _arguments(self, settings: Settings, processor: Any, folder: str) -> Any:
        """The arguments of a command line, made without checking a checkpoint or GPUs."""
        info, rewards = processor.model_info, [self.rollouts.rewards]
        of_model = {"model_info": info, "model_dir": folder, "torch_dtype": info.torch_dtype}
        args = make_without_init(
            found("swift.megatron.arguments:MegatronRLHFArguments"),
            {**settings, **of_model, "output_dir": folder, "reward_funcs": rewards},
        )
        args._map_dtype()
        args._init_weigh_decay()
        with refusals():
            args._init_generation_batch_params()
        return args

    def _chunks(self, config: Any, log_probs: list[Any]) -> list[Any]:
        """A model with the given log-probabilities in forward passes without a gradient."""
        capacity = self.rollouts.capacity
        given = table(self.rollouts.batch, log_probs, capacity)

        def head(ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = logits_of(ids + 1, probe, given)
            return logits + logit

        return megatron_core.probed_model(config, capacity, self.rank, head)

    def _trainer(self, args: Any, of_template: Any) -> Any:
        """ms-swift's trainer with our models, which sends no weights to an inference engine."""
        run, batch = self, self.rollouts.batch
        kind = self.rollouts.trainer_class("swift.megatron.trainers:MegatronGRPOTrainer")

        class ProbedTrainer(kind):  # type: ignore[misc,valid-type] # loaded when run
            _rollout = staticmethod(run.rollouts.infer)
            _move_model_to_vllm = save_checkpoint = staticmethod(lambda: None)

            def prepare_model(self) -> None:
                megatron_core.reduce_one_by_one_over_gloo(run.rank)
                layout = run.rollouts.job.layout
                self.config = megatron_core.transformer_config(layout, torch.float32)
                self.unwrapped_models = run._chunks(self.config, batch.old_log_probs)
                self.ref_models = run._chunks(self.config, batch.reference_log_probs)
                wrap = found("swift.megatron.utils:wrap_model")
                self.wrapped_models = wrap(args, self.unwrapped_models)

            def get_local_rollout_batch(self, batch: list[Any]) -> list[Any]:
                """The samples of a process; raises `Refused` if processes' numbers would differ."""
                __tracebackhide__ = True
                try:
                    share: list[Any] = super().get_local_rollout_batch(batch)
                except AssertionError as error:
                    samples = len(batch) * self.num_generations
                    processes = run.rank.world_size
                    raise Refused(
                        "get_local_rollout_batch declines the generation, in an assertion without"
                        f" a message: {samples} samples are no multiple of {processes} processes"
                    ) from error
                return share

            def on_log(self, logs: dict[str, Any], prefix: str = "") -> None:
                super().on_log(logs, prefix)
                run.logs.append({**self._last_logged_metrics})

        return ProbedTrainer(args, of_template, vllm_client=None)
