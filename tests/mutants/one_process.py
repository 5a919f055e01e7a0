"""Trains the ranks of a job one after another in this process, without collectives."""

import torch

from adapters.contract import Depth, Job, Observation, Rank
from adapters.contract.objective import Objective
from adapters.native.adapter import NativeAdapter
from conformance.findings.verdict import Check
from conformance.ranks.pool import Ran
from tests.mutants.mutant import Mutant, MutantAdapter, MutantJob

torch.set_num_threads(1)  # ranks use one thread as well

CHECKS = (Check.WEIGHTS, Check.REJECTION, Check.AUXILIARY)


def is_seen(mutant: type[Mutant]) -> bool:
    """Whether a mutant's mistake shows in the gradient before ranks are summed."""
    return (
        mutant.spec.metric is None
        and mutant.spec.check in CHECKS
        and mutant.spec.objective is not Objective.ROUTER
        and not mutant.further_layouts
        and mutant.synchronise is Mutant.synchronise
        and mutant.train_step is Mutant.train_step
    )


class OneProcess:
    """Replaces a pool of ranks; the judge sums the ranks' gradients instead of a collective."""

    description = MutantAdapter().describe()

    def run(self, job: MutantJob) -> Ran:
        """Train a job's ranks up to the loss."""
        return Ran(observations(job))


def observations(job: Job) -> tuple[Observation, ...]:
    """Each rank's share of the gradient; the job's depth must be the loss."""
    assert job.depth is Depth.LOSS
    adapter = MutantAdapter() if isinstance(job, MutantJob) else NativeAdapter()
    size = job.layout.world_size
    ranks = (Rank(index=index, world_size=size) for index in range(size))
    return tuple(adapter.observe(job, rank) for rank in ranks)
