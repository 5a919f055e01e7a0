"""AReaL's FSDP engine and actor, run on every rank: advantages and one update for each step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.areal.configuration import actor_configuration, engine_configuration
from adapters.areal.importing import module
from adapters.areal.model import CONFIG, critic, policy
from adapters.areal.rollouts import Rollouts
from adapters.contract import Refused
from adapters.contract.objective import Metric, Objective
from adapters.toolkit.probe import ForwardPasses, GradientReader, probe_capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from adapters.contract import Job, Rank
    from adapters.contract.probed_batch import ProbedBatch

UPDATE = "ppo_actor/update"

NAMES = {
    Metric.POLICY_LOSS: f"{UPDATE}/actor_loss/avg",
    Metric.CLIP_FRACTION: f"{UPDATE}/clip_ratio/avg",
    Metric.POLICY_KL: f"{UPDATE}/approx_kl/avg",
    Metric.REJECTED: f"{UPDATE}/rs_filtered_fraction",
}
"""Names of the metrics that AReaL logs."""


class Training:
    """The updates of a job's steps, and what was read off them."""

    def __init__(self, batch: ProbedBatch, job: Job, rank: Rank) -> None:
        self._job, self._rollouts = job, Rollouts(batch, job)
        self._engine = _engine(job, rank, probe_capacity(batch.probe_size))
        dp_rank = self._engine.data_parallel_rank
        self._logs = [self._train(step) for step in self._rollouts.steps_of_rank(dp_rank)]
        self.gradients, self.passes = self._engine.gradients.drain(), self._engine.passes.drain()

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
        actor = module("trainer.ppo.actor").PPOActor(actor_configuration(self._job), self._engine)
        trajectories = actor.compute_advantages(trajectories)
        self._rollouts.give_advantages(trajectories)
        trained = self._engine if self._job.objective is Objective.VALUE else actor
        trained.ppo_update(trajectories)


def _signed(metric: Metric, value: float | None) -> float | None:
    """AReaL's `approx_kl` is the new log-probability minus the old one."""
    return -value if metric is Metric.POLICY_KL and value is not None else value


def _engine(job: Job, rank: Rank, capacity: int) -> Any:
    """AReaL's engine, configured for the job; the jobs of a world share those that fit them."""
    name = "FSDPPPOCritic" if job.objective is Objective.VALUE else "FSDPPPOActor"
    key = "areal", name, job.layout.cp, capacity
    if key not in rank.cache:
        rank.cache[key] = _made(name, job, capacity)
    engine = rank.cache[key]
    engine.config = engine_configuration(job)
    for recorded in (engine.gradients, engine.passes):
        recorded.drain()
    return engine


def _made(name: str, job: Job, capacity: int) -> Any:
    """An engine around our model, whose optimizer tells the gradient."""
    engines, passes = module("engine.fsdp_engine"), ForwardPasses()
    loaded: dict[str, Any] = {
        "AutoConfig": _loader(lambda: CONFIG),
        "AutoModelForCausalLM": _loader(lambda: policy(capacity, passes)),
        "AutoModelForTokenClassification": _loader(lambda: critic(capacity, passes)),
        "load_hf_tokenizer": lambda _: None,
    }
    with mock.patch.multiple(engines, **loaded):
        engine = getattr(engines, name)(engine_configuration(job))
        engine.create_process_group()
        engine.initialize(None, module("api").FinetuneSpec(1, 1, 1))
    engine.gradients, engine.passes = GradientReader(engine.optimizer), passes
    return engine


def _loader(make: Callable[[], object]) -> object:
    """Stands for an automatic class of transformers."""
    return SimpleNamespace(from_pretrained=lambda **_: make())
