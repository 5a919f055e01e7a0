"""The adapter that ROLL's engines share, from rollouts to the gradient of the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.conventions import Assumed, Documented, conventions_of
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Option
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.roll import departures, importing
from adapters.toolkit.calls import Candidates, places
from adapters.toolkit.settings import trained_model
from adapters.toolkit.worlds import cached, observation, set_what_ray_sets
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    DivergenceEstimator,
    EmptyUnits,
    EstimatorConventions,
    LoggedMean,
    Mode,
    Penalties,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract.conventions import Convention
    from adapters.contract.layout import Layout
    from adapters.roll.workers import Trained

GUIDE = "docs_roll/docs/Development/Developer Guide/custom_loss_func.md"

CONVENTIONS: Mapping[str, Convention] = {
    "empty_units": Documented(EmptyUnits.EXCLUDED, f"{GUIDE}, 6.1"),
    "denominator_mask": Documented(DenominatorMask.MODIFIED, f"{GUIDE}, 6.1"),
    "entropy": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
    "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, f"{GUIDE}, 8.2"),
    "diagnostics": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
    "rejected": Documented(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN, f"{GUIDE}, 7"),
    "value_loss": Assumed(AuxiliaryAggregation.SAMPLE_MEAN),
    "kl_estimator": Documented(DivergenceEstimator.K3, f"{GUIDE}, 8.1"),
    "of_groups": Assumed(EstimatorConventions(penalties=Penalties.LATER_TOKENS)),
    "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
    "logged_values": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
}
"""What the modes leave open. A mean over sequences is over those with an active token, and
denominators count the mask that a loss is computed with. A metric whose name says nothing else is
averaged over workers, as that of filters is. Assumptions were read off ``ActorWorker.loss_func``,
``CriticWorker.loss_func`` and ``compute_reinforce_return``, by which a return has the penalties of
later tokens too."""


class RollAdapter(Adapter):
    """Drives alibaba/ROLL."""

    name = "roll"
    package = "roll"
    versions = "commits since March 2026"
    tree = ("roll", "mcore_adapter")
    devices = ("cpu",)
    dtypes = ("float32",)
    mode_names: ClassVar[Mapping[str, str]] = {
        "seq-mean-token-mean": "sample_mean",
        "token-mean": "token_mean",
        "seq-mean-token-sum": "constant:1",
    }

    engine_module: ClassVar[str]
    """ROLL's module of the engine's strategy."""
    log_probs: ClassVar[importing.Function]
    """The function by which the engine makes log-probabilities of logits."""
    entropies: ClassVar[importing.Function]
    """The function by which it makes entropies of them."""

    @abstractmethod
    def settings(self, job: Job) -> dict[str, object]:
        """Settings of a role that the engine trains on all ranks."""

    @abstractmethod
    def slices(self, layout: Layout) -> int:
        """The number of slices of equal length that rows are cut into."""

    def attended(self, job: Job) -> Callable[[NDArray[np.bool_]], NDArray[np.bool_]]:
        """Which tokens of a response are attended, of its mask: none behind the last active one."""
        return until_the_last_active

    @abstractmethod
    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> Trained:
        """A role's worker with the engine around our model."""

    def load(self, source: Path | None) -> None:
        """Import ROLL's RLVR pipeline and its engine."""
        importing.import_roll(source, self.log_probs, self.entropies)

    def trained(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> Trained:
        """A role's worker, configured for the job; the jobs of a world share those that fit."""
        own: Any = getattr(config, role)
        # A worker of policy gradients remembers the settings of its variant.
        key = "roll", own.worker_cls, own.pg_variant, capacity, str(self.settings(job))
        trained = cached(rank, key, lambda: self.make(role, config, job, capacity, rank))
        self.configure(trained.worker, config, own)
        return trained

    def configure(self, worker: Any, config: Any, own: Any) -> None:
        """Give a worker the configurations of a pipeline and of its own role."""
        worker.pipeline_config = config
        worker.worker_config = worker.strategy.worker_config = own

    def describe(self) -> Description:
        """Describe ROLL."""
        from adapters.roll import configuration, pipeline

        return Description(
            modes=frozenset(configuration.LOSS_AGG_MODES),
            default_mode=Mode.SAMPLE_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=OBJECTIVES,
            metrics=frozenset({*pipeline.NAMES, *pipeline.OF_BATCH}),
            options=frozenset({Option.TWO_EPOCHS, Option.POLICY_GRADIENT_WORKER}),
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=places(_candidates()),
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch in one run of the pipeline."""
        from adapters.roll import configuration
        from adapters.roll.pipeline import Rollouts, Training
        from adapters.toolkit.probe import probe_capacity

        set_what_ray_sets(rank)
        batch = ProbedBatch.under(conventions_of(CONVENTIONS), job.steps, job.objective)
        with rank.framework():
            slices, role = self.slices(job.layout), trained_model(job, "actor_train")
            width = configuration.width(job, slices)
            config = configuration.pipeline_configuration(job, self.settings(job), slices)
            capacity = probe_capacity(batch.probe_size)
            trained = self.trained(role, config, job, capacity, rank)
            rollouts = Rollouts(batch, job, width, self.attended(job))
            training = Training(rollouts, rank, config, trained)
        return observation(batch, training.gradients, training.passes, training.reported)


OBJECTIVES = frozenset(
    {
        *(Objective.POLICY, Objective.OFF_POLICY, Objective.DUAL_CLIP, Objective.GSPO),
        *(Objective.CISPO, Objective.GPG, Objective.DRO),
        *(Objective.REJECTION, Objective.TIS_TOKEN, Objective.TIS_SEQUENCE),
        *(Objective.ENTROPY, Objective.KL, Objective.COMBINED),
        *(Objective.GROUP_NORMALISED, Objective.GROUP_CENTRED, Objective.GROUP_WHITENED),
        *(Objective.REINFORCE_PP, Objective.REINFORCE_PP_BASELINE),
        *(Objective.GAE, Objective.PENALISED_GAE, Objective.VALUE),
    }
)


def until_the_last_active(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each token comes before the last active one, or is it."""
    attended: NDArray[np.bool_] = np.flip(np.maximum.accumulate(np.flip(mask)))
    return attended


def _candidates() -> Candidates:
    """Where ROLL counts tokens, divides by them, logs, and deals samples to ranks."""
    strategy = importing.module("distributed.strategy.strategy").InferenceStrategy
    functions = importing.module("utils.functionals")
    return {
        CodeLocation.TOKEN_COUNT: ((strategy, "_get_batch_num_tokens"),),
        CodeLocation.TOKEN_DIVISION: ((functions, "agg_loss"),),
        CodeLocation.LOG: ((functions, "reduce_metrics"),),
        CodeLocation.SHARDING: ((functions, "batch_balance"),),
    }
