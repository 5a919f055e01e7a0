"""Drives `GRPOLearner.train` in this process on host devices of XLA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from adapters.contract.batch.altered import elsewhere
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.objective import OFF_POLICY
from adapters.toolkit.calls import nothing, refusals
from adapters.toolkit.imports import found
from adapters.toolkit.settings import field_settings, gives_advantages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Gradient, Integers

CERTAIN_LOGIT = 64.0
"""The logit of padding, so large that other logits do not change a sum of exponentials in float32.
"""

END_ID = -1
LEARNER, ROLLOUT = "tunix.rl.grpo.grpo_learner", "tunix.rl.rollout.base_rollout"
LOGGED = ("loss", "kl", "pg_clipfrac")


class Probe(nnx.Module):
    """A model whose log-softmax is the next token's entry of the probe, minus `CERTAIN_LOGIT`."""

    def __init__(self, values: Gradient) -> None:
        self.probe = nnx.Param(jnp.asarray(values))

    def __call__(
        self,
        input_tokens: Any,
        positions: Any = None,
        cache: Any = None,
        attention_mask: Any = None,
    ) -> tuple[Any, Any]:
        """Logits, [rows, width, ids], in float32."""
        following, size = jnp.roll(input_tokens, -1, axis=1), self.probe.shape[0]
        is_next = (following[..., None] == jnp.arange(size)) & (jnp.arange(size) > PADDING_ID)
        certain = CERTAIN_LOGIT * (jnp.arange(size) == PADDING_ID)
        return jnp.where(is_next, self.probe[...], certain), cache


def recording(steps: int) -> optax.GradientTransformation:
    """An optimizer that only keeps the gradients of the last steps in its state."""

    def start(parameters: Any) -> Any:
        return jax.tree.map(lambda one: jnp.zeros((steps, *one.shape)), parameters)

    def update(gradients: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        seen = jax.tree.map(
            lambda old, new: jnp.concatenate([old[1:], new[None]]), state, gradients
        )
        return jax.tree.map(jnp.zeros_like, gradients), seen

    return optax.GradientTransformation(start, update)


def rollouts(batch: ProbedBatch, of_prompt: int, is_corrected: bool) -> type:
    """A rollout engine for tunix's plug-in point that returns the case's samples.

    Prompts are named by their number; every prompt is requested once for each of its samples.
    Samples have log-probabilities of the rollout policy if importance sampling corrects for this
    policy.
    """
    base: Any = found(f"{ROLLOUT}:BaseRollout")
    width = max(map(len, batch.prompts))
    prompts = [np.pad(ids, (width - len(ids), 0)) for ids in batch.prompts]
    pairs = zip(batch.rollout_log_probs, batch.old_log_probs, strict=True)
    sampled = [rollout - old - CERTAIN_LOGIT for rollout, old in pairs]

    class Given(base):
        def __init__(self, rollout_actor: Any, **_: Any) -> None:
            self.actor, self.seen = rollout_actor, dict[int, int]()

        def generate(self, names: list[str], *_: Any, **__: Any) -> Any:
            samples = [self._sample(int(name)) for name in names]
            return found(f"{ROLLOUT}:RolloutOutput")(
                text=[str(sample) for sample in samples],
                logits=None,
                tokens=[batch.responses[sample] for sample in samples],
                left_padded_prompt_tokens=np.array([prompts[sample] for sample in samples]),
                logprobs=[sampled[sample] for sample in samples] if is_corrected else None,
            )

        def _sample(self, prompt: int) -> int:
            self.seen[prompt] = self.seen.get(prompt, -1) + 1
            return prompt * of_prompt + self.seen[prompt]

        def get_per_token_logps(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        update_params = staticmethod(nothing)  # samples do not depend on parameters

        def pad_id(self) -> int:
            return PADDING_ID

        def eos_id(self) -> int:
            return END_ID

        def model(self) -> Any:
            return self.actor

    return Given


def algorithm(settings: Settings) -> Any:
    """tunix's `GRPOConfig`; raises `Refused`."""
    config = found(f"{LEARNER}:GRPOConfig")
    with refusals():
        made = config(**field_settings(config, settings))
    if "epsilon_high" in settings:
        made.epsilon_high = settings["epsilon_high"]
    return made


def train(job: Job, batch: ProbedBatch, settings: Settings, config: Any) -> Any:
    """Train all steps of a job in one run.

    Returns the ``gradients`` and ``logs`` of steps, and the ids of forward ``passes`` by device.
    """
    cluster = _cluster(job, batch, settings)
    learner = _learner_class(job, batch)(
        cluster,
        config,
        lambda completions, **_: [float(batch.rewards[int(c)]) for c in completions],
    )
    devices: list[list[Integers]] = [[] for _ in range(job.layout.dp)]
    sharding = found("tunix.sft.sharding_utils")
    with mock.patch.object(sharding, "shard_input", _watched(sharding.shard_input, devices)):
        learner.train(_data(settings))
    trainer = cluster.actor_trainer
    logs = _logs(trainer, len(job.steps))
    return SimpleNamespace(gradients=_gradients(trainer), logs=logs, passes=devices)


def _data(settings: Settings) -> list[dict[str, NDArray[np.str_]]]:
    """The names of each step's prompts."""
    size = settings["mini_batch_size"]
    names = np.arange(settings["max_steps"] * size).astype(str)
    return [{"prompts": of_step} for of_step in names.reshape(-1, size)]


def _cluster(job: Job, batch: ProbedBatch, settings: Settings) -> Any:
    """The models and their trainer on a mesh of devices."""
    home = found("tunix.rl.rl_cluster")
    mesh = Mesh(np.array(jax.devices()[: job.layout.dp]), ("fsdp",))
    training = home.RLTrainingConfig(
        actor_optimizer=recording(len(job.steps)), **field_settings(home.RLTrainingConfig, settings)
    )
    rollout_config = found(f"{ROLLOUT}:RolloutConfig")
    rollout = rollout_config(
        max_prompt_length=max(map(len, batch.prompts)), **field_settings(rollout_config, settings)
    )
    roles = (home.Role.ACTOR, home.Role.ROLLOUT, home.Role.REFERENCE)
    tokenizer = SimpleNamespace(
        encode=lambda _: [],
        decode=lambda _: "",
        bos_id=lambda: END_ID,
        eos_id=lambda: END_ID,
        pad_id=lambda: PADDING_ID,
    )
    size = batch.probe_size + 2
    return home.RLCluster(
        actor=Probe(np.zeros(size, np.float32)),
        reference=Probe(np.zeros(size, np.float32)) if settings["beta"] else None,
        tokenizer=tokenizer,
        cluster_config=home.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine=rollouts(
                batch, settings["num_generations"], is_corrected="sampler_is" in settings
            ),
            training_config=training,
            rollout_config=rollout,
        ),
    )


def _learner_class(job: Job, batch: ProbedBatch) -> Any:
    """A subclass of tunix's learner that sets values of tokens: [rows, width]."""
    tables = _tables(job, batch)
    base: Any = found(f"{LEARNER}:GRPOLearner")

    class WithValues(base):
        def _generate_and_compute_advantage(self, *args: Any, **options: Any) -> Any:
            example = super()._generate_and_compute_advantage(*args, **options)
            ids = np.asarray(example.completion_ids)
            given = {name: jnp.asarray(table[ids]) for name, table in tables.items()}
            if self.algo_config.beta == 0:
                del given["ref_per_token_logps"]
            return example.replace(**given)

    return WithValues


def _tables(job: Job, batch: ProbedBatch) -> dict[str, NDArray[Any]]:
    """Values of tokens by token id, with tunix's names."""
    tables: dict[str, NDArray[Any]] = {
        "completion_mask": _id_table(batch, batch.original_masks) > 0,
        "ref_per_token_logps": _id_table(batch, batch.reference_log_probs) - CERTAIN_LOGIT,
    }
    if gives_advantages(job):
        tables["advantages"] = _id_table(batch, batch.advantages)
    if job.objective in OFF_POLICY or job.poison is not None:
        tables["old_per_token_logps"] = _id_table(batch, batch.old_log_probs) - CERTAIN_LOGIT
    return tables


def _id_table(batch: ProbedBatch, values: Sequence[NDArray[Any]]) -> Gradient:
    table = elsewhere(values, batch.probe_size + 2, 0.0)
    table[np.concatenate(batch.responses)] = np.concatenate(values)
    return table.astype(np.float32)


def _watched(shard_input: Any, devices: list[list[Integers]]) -> Any:
    """Wrap tunix's function that distributes rows to devices, recording each device's rows."""

    def watching(data: Any, axis: Any) -> Any:
        held = shard_input(data, axis)
        if hasattr(held, "completion_ids"):
            parts = [_parts(ids) for ids in (held.prompt_ids, held.completion_ids)]
            for passes, prompts, responses in zip(devices, *parts, strict=True):
                passes.append(np.concatenate([prompts, responses], axis=1).reshape(-1))
        return held

    return watching


def _parts(ids: Any) -> list[Integers]:
    """The rows that each device holds."""
    shards = sorted(ids.addressable_shards, key=lambda one: int(one.device.id))
    return [np.asarray(one.data, np.int64) for one in shards]


def _gradients(trainer: Any) -> list[Gradient]:
    """The gradients that the optimizer got in each step."""
    leaves = jax.tree_util.tree_leaves(nnx.state(trainer.optimizer, nnx.optimizer.OptState))
    [seen] = [one for one in leaves if getattr(one, "ndim", 0) == 2]
    return [*as_array(seen)]


def as_array(gradient: jax.Array) -> Gradient:
    """A copy of the probe's gradients; traces recognise gradients by calls of this function."""
    return np.asarray(jnp.copy(gradient))


def _logs(trainer: Any, steps: int) -> list[dict[str, float]]:
    """The trainer's log of each step."""
    logger = trainer.metrics_logger
    histories = {
        name: logger.get_metric_history("actor", name, "train")
        for name in LOGGED
        if logger.metric_exists("actor", name, "train")
    }
    return [{name: float(one[step]) for name, one in histories.items()} for step in range(steps)]
