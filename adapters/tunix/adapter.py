"""The adapter of tunix: rank n of a layout is device n of rank 0's process."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.engines.shells import InOneRun
from adapters.toolkit.imports import choices_in, found, import_from
from adapters.toolkit.settings import KnownOptions
from adapters.toolkit.worlds import make_on_first_rank
from adapters.tunix.framework import TUNIX

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Framework, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch


LARGEST = 4
"""The number of devices of rank 0's process. A layout of n ranks uses the first n devices."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={LARGEST}"
    " --xla_backend_optimization_level=0",
}
LEARNER = "tunix.rl.grpo.grpo_learner"
CONFIGS = (
    f"{LEARNER}:GRPOConfig",
    "tunix.rl.rl_cluster:RLTrainingConfig",
    "tunix.rl.rollout.base_rollout:RolloutConfig",
)
"""Paths of the dataclasses whose fields are options."""


class TunixAdapter(InOneRun):
    """Drives google/tunix: `GRPOLearner.train`."""

    name = "tunix"
    engine = "jax"
    package = "tunix"
    library = "jax"
    distribution = "google-tunix"
    versions = "tunix 0.1.7 and main"
    tree = ("tunix",)
    recipes = "adapters.tunix.recipe:read"
    dependencies = ("flax", "jax", "optax")
    framework: ClassVar[Framework] = TUNIX

    def load(self, source: Path | None) -> None:
        """Import tunix's learner and losses; JAX looks for devices later, in rank 0."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import_from("tunix", [source] if source else [])
        importlib.import_module("tunix.rl.algo_core")
        importlib.import_module(LEARNER)

    def describe(self) -> Description:
        """Describe the learner by its configurations' fields, and the choices in its loss."""
        config, training, rollout = map(found, CONFIGS)
        algorithms = inspect.getsource(found("tunix.rl.algo_core"))
        registering = r'register_advantage_estimator\("(\w+)"\)'
        choices = {
            "loss_agg_mode": choices_in(found("tunix.rl.common:aggregate_loss"), "loss_agg_mode"),
            "loss_algo": choices_in(config, "loss_algo"),
            "advantage_estimator": {*re.findall(registering, algorithms)},
        }
        attributes = {*re.findall(r'"(epsilon_\w+)"', algorithms)}
        options = KnownOptions.read_fields(choices, config, training, rollout)
        others = dict.fromkeys(("mesh.shape", *attributes))
        options = replace(options, defaults={**options.defaults, **others})
        own = {*_names(config), *_names(training), *attributes}
        return self.framework.description(
            options.offers,
            options.options_and_choices(own),
            lambda name: getattr(config, name, None),
        )

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the learner, on rank 0 for all ranks."""
        from adapters.tunix import driving

        algorithm = driving.algorithm(settings)
        done = make_on_first_rank(rank, lambda: driving.train(job, batch, settings, algorithm))
        done.passes = done.passes[rank.index]
        return done


def _names(config: Any) -> set[str]:
    return {one.name for one in fields(config)}
