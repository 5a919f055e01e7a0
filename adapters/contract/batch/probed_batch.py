"""The probe: an all-zero parameter with one entry per token, whose gradient is the token weights.

An adapter adds ``probe[token id]`` to the log-probability of each token, gives the framework the
advantages of the batch, and runs its train step. With a ratio of new to old policy of exactly 1,
the gradient of an entry is -weight · advantage. Every advantage is a signed power of two, so
dividing by it is exact. With other ratios, the gradient is the weight times the derivative in
`reference.losses.policy_losses`. The same entry is added to the token's entropy, whose coefficient
is 0 unless the objective has an entropy bonus.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract.batch.altered import COLUMNS, PAINTED, altered, altered_table, painted
from adapters.contract.batch.columns import Columns
from adapters.contract.batch.token_values import LOAD_BALANCING, Z_LOSS
from adapters.contract.job import Column
from adapters.contract.objective import ROUTER_COEFFICIENT, Z_COEFFICIENT, Objective
from reference.aggregation import DEFAULT_CONVENTIONS, AdvantageUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract.job import Job
    from reference.aggregation import Conventions
    from reference.arrays import Gradient, Values
    from reference.step import Step


@dataclass(frozen=True, eq=False)
class ProbedBatch(Columns):
    """A batch of rollouts for an adapter, which reads token weights off the probe's gradient."""

    @classmethod
    def make(
        cls, conventions: Conventions, steps: tuple[Step, ...], objective: Objective
    ) -> ProbedBatch:
        """The batch for a framework with these conventions."""
        unit = conventions.advantage_unit or AdvantageUnit.TOKEN
        batch = cls(steps, objective, conventions.kl_estimator, unit)
        if (paint := PAINTED.get()) is not None:
            vars(batch).update(painted(batch, paint))  # fills cached properties
        return batch

    @classmethod
    def of(cls, job: Job, conventions: Conventions = DEFAULT_CONVENTIONS) -> ProbedBatch:
        """A job's batch for a framework with these conventions."""
        batch = cls.make(conventions, job.steps, job.objective)
        is_plain = job.poison is None and job.attached is None
        return batch if is_plain else AlteredBatch.alter(batch, job)

    def weights(self, gradient: Gradient) -> Values:
        """Token weights of all steps, flat, from the probe's gradient [probe_size].

        A clipped token has a derivative of 0, by which its gradient cannot be divided: its weight
        is its gradient, which should be 0.
        """
        ids = np.concatenate(self.responses)
        derivatives = np.where(self.dloss_dlogprob == 0, 1.0, self.dloss_dlogprob)
        return gradient[ids].astype(np.float64) / derivatives

    def own_losses(self, gradients: Sequence[Gradient | None]) -> dict[str, tuple[float, ...]]:
        """Observed coefficients of router losses in each step, divided by the configured ones.

        The last entry of a gradient is the z-loss's; all others are the load-balancing loss's,
        which is a mean over tokens. Empty for other objectives.
        """
        if self.objective is not Objective.ROUTER:
            return {}
        of_steps = [np.zeros(1) if one is None else one.astype(np.float64) for one in gradients]
        return {
            LOAD_BALANCING: tuple(float(one[:-1].sum()) / ROUTER_COEFFICIENT for one in of_steps),
            Z_LOSS: tuple(float(one[-1]) / Z_COEFFICIENT for one in of_steps),
        }

    def weights_of_steps(self, gradients: Sequence[Gradient | None]) -> tuple[Values, ...]:
        """Each step's weights, given its gradient; 0 for a skipped step, whose gradient is None.

        Raises:
            RuntimeError: there is not one entry for each step.
        """
        if len(gradients) != len(self.steps):
            raise RuntimeError(
                f"{len(gradients)} optimizer steps were made of {len(self.steps)}; if the trainer"
                " skips steps whose gradient is NaN or infinite, let the adapter read gradients by"
                " GradientReader.take after each step, and name Observation.skipped_steps"
            )
        return tuple(
            np.zeros(len(step.mask)) if one is None else self.split(self.weights(one))[index]
            for index, (step, one) in enumerate(zip(self.steps, gradients, strict=True))
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class AlteredBatch(ProbedBatch):
    """A batch with one poisoned or attached column.

    The expected gradient is the gradient of the plain batch.
    """

    plain: ProbedBatch
    job: Job
    read: ClassVar[set[str]] = set()  # columns that were read from any altered batch

    @classmethod
    def alter(cls, plain: ProbedBatch, job: Job) -> AlteredBatch:
        """The plain batch, altered as a job says."""
        own = {each.name: getattr(plain, each.name) for each in fields(plain)}
        batch = cls(**own, plain=plain, job=job)
        # Fill the cached properties, so that they are not computed.
        vars(batch).update({column: altered(plain, column, job) for column in Column})
        return batch

    def __getattribute__(self, name: str) -> Any:
        if name in COLUMNS:
            AlteredBatch.read.add(name)
        return super().__getattribute__(name)

    @property
    def log_prob_table(self) -> Values:
        """The plain batch's table, with this job's poison in its log-probabilities."""
        return altered_table(self.plain.log_prob_table, self, Column.LOG_PROBS, self.job)

    @property
    def entropy_table(self) -> Values:
        """The plain batch's table, with this job's poison in its entropies."""
        return altered_table(self.plain.entropy_table, self, Column.ENTROPIES, self.job)

    @cached_property
    def dloss_dlogprob(self) -> Values:
        """The derivatives of the plain batch."""
        return self.plain.dloss_dlogprob

    def weights_of_steps(self, gradients: Sequence[Gradient | None]) -> tuple[Values, ...]:
        """The weights of each step, NaN if the trainer skipped steps because of the poison."""
        if len(gradients) < len(self.steps):
            return tuple(np.full(len(step.mask), np.nan) for step in self.steps)
        return super().weights_of_steps(gradients)
