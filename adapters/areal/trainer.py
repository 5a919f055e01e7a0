"""AReaL's actor and engine, run on every rank: advantages and one update for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.areal.configuration import (
    NORMALISATIONS,
    actor_configuration,
    has_critic,
    rejects,
)
from adapters.areal.importing import module
from adapters.areal.rollouts import Rollouts
from adapters.contract import Refused
from adapters.contract.objective import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

UPDATE = "ppo_actor/update"

NAMES = {
    Metric.POLICY_LOSS: f"{UPDATE}/actor_loss/avg",
    Metric.CLIP_FRACTION: f"{UPDATE}/clip_ratio/avg",
    Metric.POLICY_KL: f"{UPDATE}/approx_kl/avg",
    Metric.REJECTED: f"{UPDATE}/rs_filtered_fraction",
}
"""Names of the metrics that AReaL logs."""


def logged() -> frozenset[Metric]:
    """The metrics that this version logs."""
    return frozenset(NAMES if rejects() else {*NAMES} - {Metric.REJECTED})


class Training:
    """The updates of a job's steps, and what was read off them."""

    def __init__(self, batch: ProbedBatch, job: Job, engine: Any) -> None:
        self._job, self._rollouts, self._engine = job, Rollouts(batch, job), engine
        dp_rank = engine.data_parallel_rank
        self._logs = [self._train(step) for step in self._rollouts.steps_of_rank(dp_rank)]
        self.gradients, self.passes = engine.gradients.drain(), engine.passes.drain()

    @property
    def reported(self) -> Mapping[Metric, tuple[float | None, ...]]:
        """What is logged of each step, the same on all ranks."""
        return {
            metric: tuple(_signed(metric, log.get(name)) for log in self._logs)
            for metric, name in NAMES.items()
            if any(name in log for log in self._logs)
        }

    def _train(self, trajectories: Any) -> Mapping[str, float]:
        """Train on the trajectories of a step; returns what AReaL logs, by its names.

        Raises `Refused` if no token of the step is active, which AReaL asserts.
        """
        try:
            self._update(trajectories)
        except AssertionError as error:
            if "total loss weight" not in str(error):
                raise
            raise Refused(f"AssertionError: {error}") from error
        logged: Mapping[str, float] = self._engine.export_stats()
        return logged

    def _update(self, trajectories: Any) -> None:
        """Compute advantages as an actor does, and train the actor or the critic on the job's."""
        config = actor_configuration(self._job, backend=self._engine.config.backend)
        actor = module("trainer.ppo.actor").PPOActor(config, self._engine)
        trajectories = actor.compute_advantages(trajectories)
        if self._job.objective not in NORMALISATIONS:
            self._rollouts.give_advantages(trajectories)
        trained = self._engine if has_critic(self._job) else actor
        trained.ppo_update(trajectories)


def _signed(metric: Metric, value: float | None) -> float | None:
    """AReaL's `approx_kl` is the new log-probability minus the old one."""
    return -value if metric is Metric.POLICY_KL and value is not None else value
