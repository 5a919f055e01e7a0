"""Drives AReaL from the trajectories of a batch to the gradient of the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.areal import importing
from adapters.areal.framework import AREAL, version_record
from adapters.areal.importing import module
from adapters.contract import Framework, Job, Objective, Observation, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Refused, Unsupported
from adapters.contract.objective import FROM_REWARDS, OF_CRITIC, OF_VALUES
from adapters.engines.shells import WithRecord
from adapters.toolkit.calls import refusals, refusals_of_configuration
from adapters.toolkit.settings import doubled_returns, given_values, has_reference
from adapters.toolkit.worlds import cached, observation, set_what_ray_sets
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from reference.arrays import Integers


class ArealAdapter(WithRecord):
    """Drives inclusionAI/AReaL."""

    name = "areal"
    package = "areal"
    versions = "AReaL 1.0.3, 1.0.4, 2.0.0 and commits since April 2026"
    distribution = "areal"
    tree = ("areal",)
    devices = ("cpu",)
    dtypes = ("float32",)
    framework: ClassVar[Framework] = AREAL
    loaded: ClassVar[Any] = importing
    recipes = "adapters.areal.recipe:read"
    engine_module: ClassVar[str]
    """AReaL's module with the engine's classes."""
    family: ClassVar[str]
    """The prefix of the names of the engine's classes."""

    @abstractmethod
    def make(self, config: Any, job: Job, rank: Rank, capacity: int) -> Any:
        """AReaL's engine around our model, configured for the job.

        It collects gradients in ``gradients``, and the token ids given to its model in ``passes``.
        """

    def load(self, source: Path | None) -> None:
        """Import AReaL's engine and its actor."""
        importing.import_areal(source, self.engine_module)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch, each by an update of AReaL's engine."""
        set_what_ray_sets(rank)
        from adapters.toolkit.probe import SEAM

        batch, settings = ProbedBatch.of(job), self.record.settings(job)
        SEAM.start(batch)
        with rank.framework():
            with refusals_of_configuration(job):
                config = importing.configured(settings)
            engine = self._engine(config, job, rank, batch.probe_size)
            rollouts = ArealRollouts(batch, job, config)
            shares = rollouts.steps_of_rank(engine.data_parallel_rank)
            logs = [_train(engine, config, rollouts, share) for share in shares]
        reported = self.framework.reported(logs)
        return observation(batch, engine.gradients.drain(), engine.passes.drain(), reported)

    def leave_world(self) -> None:
        """Empty AReaL's trackers, which keep the numbers of a step that raised."""
        super().leave_world()
        for name, tracker in module("utils.stats_tracker").TRACKERS.items():
            vars(tracker).update(vars(type(tracker)(name)))

    def initialized(self, config: Any) -> Any:
        """AReaL's engine of an actor or a critic, with its process groups and its model."""
        kind = f"{self.family}PPO{'Critic' if config.critic else 'Actor'}"
        engine = getattr(module(self.engine_module), kind)(config.critic or config.actor)
        api = module("api")
        engine.create_process_group(api.ModelAllocation.from_str(engine.config.backend).parallel)
        engine.initialize(None, api.FinetuneSpec(1, 1, 1))
        return engine

    @cached_property
    def record(self) -> Framework:
        """The record of the loaded version."""
        return version_record(self.framework, importing.offers)

    def _engine(self, config: Any, job: Job, rank: Rank, size: int) -> Any:
        """AReaL's engine for the job; the jobs of a world share matching engines."""
        from adapters.toolkit.probe import probe_capacity

        layout, capacity = job.layout, probe_capacity(size)
        kind = job.objective in OF_CRITIC, job.objective is Objective.ROUTER
        key = self.engine, *kind, layout.cp, layout.options, capacity
        engine = cached(rank, key, lambda: self.make(config, job, rank, capacity))
        engine.config = config.critic or config.actor
        if config.critic:
            engine.critic.config = config.critic
        return engine


def _train(
    engine: Any, config: Any, rollouts: ArealRollouts, trajectories: Any
) -> Mapping[str, float]:
    """Train on the trajectories of a step; return AReaL's log, by AReaL's names.

    Raises `Refused` if no token of the step is active, because an assertion of AReaL then fails.
    """
    actor = module("trainer.ppo.actor").PPOActor(config.actor, engine)
    given = rollouts.assign_advantages(actor.compute_advantages(trajectories))
    try:
        (engine if config.critic else actor).ppo_update(given)
    except AssertionError as error:
        if "total loss weight" not in str(error):
            raise
        raise Refused(f"AssertionError: {error}") from error
    logged: Mapping[str, float] = engine.export_stats()
    return logged


WHITENING = (Objective.REINFORCE_PP, *OF_VALUES)


class ArealRollouts:
    """The samples of each optimizer step, as trajectories of AReaL's workflows.

    With a decoupled loss, ratios are to the proximal policy (``prox_logp``), not to the rollout
    policy.
    """

    def __init__(self, batch: ProbedBatch, job: Job, config: Any) -> None:
        self._batch, self._job, self._config = batch, job, config
        self._has_prompt_mean = job.aggregation.mode is Mode.PROMPT_MEAN

    def steps_of_rank(self, dp_rank: int) -> Iterator[list[dict[str, torch.Tensor]]]:
        """The trajectories of each step that AReaL's controller sends to a data-parallel rank.

        Raises `Refused` if the controller cannot distribute this number of trajectories.
        """
        if self._job.objective in WHITENING and len(self._job.steps) > 1:
            raise Unsupported("each optimizer step is a batch, whose advantages are whitened alone")
        deal = module("infra.controller.train_controller")._dispatch_tensors
        samples = iter(range(len(self._batch.responses)))
        for step in self._job.steps:
            trajectories = [self._trajectory(next(samples)) for _ in range(step.size)]
            if self._has_prompt_mean or self._job.objective in FROM_REWARDS:
                trajectories = _together(trajectories, step.groups)
            self._require_whole_prompts(trajectories)
            with refusals():
                shares, _ = deal(trajectories, self._job.layout.dp)
            yield shares[dp_rank]

    def _require_whole_prompts(self, trajectories: Sequence[dict[str, torch.Tensor]]) -> None:
        """Raise `Unsupported` if AReaL would drop a prompt that lacks samples."""
        least = getattr(self._config.rollout, "min_valid_group_size", 1)
        fewest = min(len(one["rewards"]) for one in trajectories)
        if self._has_prompt_mean and fewest < least:
            raise Unsupported(
                f"a prompt of {fewest} samples is dropped (rollout.min_valid_group_size={least})"
            )

    def assign_advantages(
        self, trajectories: Sequence[dict[str, torch.Tensor]]
    ) -> Sequence[dict[str, torch.Tensor]]:
        """Set a job's advantages and returns in trajectories, unless AReaL computes advantages."""
        if self._job.objective in FROM_REWARDS:
            return trajectories
        advantages = self._table(self._batch.advantages)
        returns = self._table(doubled_returns(self._batch))
        for trajectory in trajectories:  # each token's values are at the position before it
            ids = trajectory["input_ids"]
            trajectory["advantages"] = advantages[ids].roll(-1, dims=-1)
            trajectory["returns"] = returns[ids].roll(-1, dims=-1)
        return trajectories

    def _trajectory(self, index: int) -> dict[str, torch.Tensor]:
        """The columns of a prompt with its response, each [1, tokens], and the reward, [1]."""
        import torch
        from torch.nn.functional import pad

        batch, columns, (masks, log_probs) = self._batch, self._columns, self._generated
        ids = torch.from_numpy(batch.sequences[index]).unsqueeze(0)
        # A forward pass computes a token's values at the position before the token.
        of_passes = {name: pad(values[ids][:, 1:], (0, 1)) for name, values in columns.items()}
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids, dtype=torch.bool),
            "loss_mask": masks[ids].int(),
            "logprobs": log_probs[ids],
            "rewards": torch.tensor([batch.rewards[index]], dtype=torch.float32),
            **of_passes,
        }

    @cached_property
    def _generated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss mask, and log-probabilities of AReaL's rollout policy, by token id."""
        batch, is_decoupled = self._batch, self._config.actor.use_decoupled_loss
        log_probs = batch.rollout_log_probs if is_decoupled else batch.old_log_probs
        return self._table(batch.original_masks), self._table(log_probs)

    @cached_property
    def _columns(self) -> dict[str, torch.Tensor]:
        """The outputs of AReaL's forward passes without gradients, each as a table by token id."""
        batch = self._batch
        columns = {"values": given_values(batch)}
        if self._config.actor.use_decoupled_loss:
            columns["prox_logp"] = batch.old_log_probs
        if has_reference(self._job):
            columns["ref_logp"] = batch.reference_log_probs
        return {name: self._table(values) for name, values in columns.items()}

    def _table(self, values: Sequence[NDArray[Any]]) -> torch.Tensor:
        from adapters.toolkit.probe import token_table

        return token_table(self._batch, values)


def _together(
    trajectories: Sequence[dict[str, torch.Tensor]], groups: Integers
) -> list[dict[str, torch.Tensor]]:
    """The samples of each prompt as one trajectory, as AReaL's workflows return them."""
    concatenated = module("utils.data").concat_padded_tensors
    return [
        concatenated([trajectories[index] for index in np.flatnonzero(groups == group).tolist()])
        for group in dict.fromkeys(groups.tolist())
    ]
