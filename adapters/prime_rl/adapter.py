"""The adapter of prime-rl, from samples of the orchestrator to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract import Job, Observation, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.engines.shells import WithRecord
from adapters.prime_rl import importing
from adapters.prime_rl.framework import PRIME_RL
from adapters.toolkit.worlds import set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path


class PrimeRLAdapter(WithRecord):
    """Drives PrimeIntellect-ai/prime-rl."""

    name = "prime_rl"
    engine = "fsdp2"
    package = "prime_rl"
    versions = "commits since March 2026"
    tree = ("src", "packages")
    roots = importing.ROOTS
    devices = ("cpu",)
    dtypes = ("float32", "bfloat16")
    dependencies = ("transformers",)
    fills_up = True
    recipes = "adapters.prime_rl.recipe:read"
    framework = PRIME_RL
    loaded: ClassVar[Any] = importing

    def load(self, source: Path | None) -> None:
        """Import prime-rl's trainer."""
        importing.import_prime_rl(source)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch as the first steps of one run of the trainer."""
        from adapters.prime_rl.driving import PrimeRLTraining
        from adapters.prime_rl.rollouts import FIRST_ID, PrimeRLRollouts
        from adapters.toolkit.probe import probe_capacity

        set_what_ray_sets(rank)
        batch = ProbedBatch.of(job, conventions_of(self.framework.conventions))
        settings = PRIME_RL.settings(job)
        with rank.framework():
            rollouts = PrimeRLRollouts(batch, job, settings["orchestrator.seq_len"])
            capacity = probe_capacity(batch.probe_size + FIRST_ID)
            training = PrimeRLTraining(settings, rollouts, capacity, rank)
        passes = [ids - FIRST_ID for ids in training.passes.drain()]
        are_samples = rollouts.are_samples(rank.index // job.layout.cp)
        held = [
            ids if is_sample else np.empty(0, np.int64)
            for ids, is_sample in zip(passes, are_samples, strict=True)
        ]
        gradients = [gradient[FIRST_ID:] for gradient in training.gradients()]
        return Observation(
            token_weights=batch.weights_of_steps(gradients),
            reported=self.framework.reported(training.logs),
            forward_passes=batch.forward_passes(held),
            rows=batch.rows(passes),
        )
