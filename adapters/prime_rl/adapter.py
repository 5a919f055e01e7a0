"""The adapter of prime-rl, from samples of the orchestrator to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.conventions import Documented, conventions_of
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.prime_rl import departures, importing
from adapters.toolkit.calls import Candidates, places
from adapters.toolkit.worlds import set_what_ray_sets
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    DivergenceEstimator,
    Mode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.conventions import Convention
CONVENTIONS: Mapping[str, Convention] = {
    "denominator_mask": Documented(DenominatorMask.ORIGINAL, "docs/algorithms.md, Default RL Loss"),
    "kl": Documented(AuxiliaryAggregation.TOKEN_MEAN, "docs/algorithms.md, Loss Components"),
    "diagnostics": Documented(AuxiliaryAggregation.SAMPLE_MEAN, "docs/algorithms.md, Custom Loss"),
    "kl_estimator": Documented(
        DivergenceEstimator.K1_BY_RATIO, "docs/algorithms.md, Loss Components, ref_kl"
    ),
}
"""What the modes leave open. Tokens that a trust region masks are members of their component of the
loss, which is divided by the global count of its members. The divergence from a reference model is
a policy gradient with the log-ratio for an advantage. Metrics are averaged over sequences."""

OPTIONS = frozenset({Option.HYBRID_SHARDING, Option.NOT_SHARDED})


class PrimeRLAdapter(Adapter):
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
    mode_names: ClassVar[Mapping[str, str]] = {"default": "token_mean", "ipo": "token_mean"}

    def layouts(self) -> list[Layout]:
        """Data and context parallelism on up to 4 ranks, sharded, replicated and both.

        Samples are packed by tokens, into one micro-batch of each rank or into several.
        """
        plain = [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format="thd")
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4))
            for micro_batches in (1, "tokens")
        ]
        hybrid = (Option.HYBRID_SHARDING,)
        return [
            *plain,
            Layout(dp=4, micro_batches="tokens", format="thd", options=hybrid),
            Layout(dp=2, cp=2, micro_batches="tokens", format="thd", options=hybrid),
            Layout(dp=2, micro_batches="tokens", format="thd", options=(Option.NOT_SHARDED,)),
        ]

    def load(self, source: Path | None) -> None:
        """Import prime-rl's trainer."""
        importing.import_prime_rl(source)

    def describe(self) -> Description:
        """Describe prime-rl."""
        from adapters.prime_rl import trainer, versions

        objectives = {Objective.POLICY, Objective.GPG}
        if versions.has_streams():
            objectives |= {Objective.KL, Objective.SFT}
        if versions.has_trust_region_of_probabilities():
            objectives.add(Objective.REJECTION)
        return Description(
            modes=frozenset({Mode.TOKEN_MEAN}),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=frozenset(objectives),
            metrics=frozenset(trainer.NAMES),
            options=OPTIONS,
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=places(_candidates()),
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch as the first of one run of the trainer."""
        from adapters.prime_rl.rollouts import FIRST_ID, Rollouts
        from adapters.prime_rl.trainer import Training
        from adapters.toolkit.probe import probe_capacity

        set_what_ray_sets(rank)
        batch = ProbedBatch(job.steps, job.objective, conventions_of(CONVENTIONS).kl_estimator)
        with rank.framework():
            rollouts = Rollouts(batch, job)
            capacity = probe_capacity(batch.probe_size + FIRST_ID)
            training = Training(job, rollouts, capacity, rank)
        passes = [ids - FIRST_ID for ids in training.passes.drain()]
        are_samples = rollouts.are_samples(rank.index // job.layout.cp)
        held = [
            ids if is_sample else np.empty(0, np.int64)
            for ids, is_sample in zip(passes, are_samples, strict=True)
        ]
        gradients = [gradient[FIRST_ID:] for gradient in training.gradients()]
        return Observation(
            token_weights=batch.weights_of_steps(gradients),
            reported=training.reported,
            forward_passes=batch.forward_passes(held),
            rows=batch.rows(passes),
        )


def _candidates() -> Candidates:
    """Where prime-rl counts tokens, divides by them, logs, and deals samples to ranks."""
    train = importing.module("trainer.rl.train")
    return {
        CodeLocation.TOKEN_COUNT: ((train, "train"),),
        CodeLocation.TOKEN_DIVISION: ((importing.module("trainer.rl.loss"), "compute_loss"),),
        CodeLocation.LOG: ((importing.module("trainer.utils").Tensors, "compute_stats"),),
        CodeLocation.SHARDING: ((importing.module("trainer.batch"), "prepare_batch"),),
    }
