"""verl's worker groups: each rank calls its own worker, in place of Ray's processes."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract.objective import Metric
from adapters.toolkit.settings import given_values
from adapters.toolkit.worlds import of_all_ranks
from adapters.verl.importing import module
from adapters.verl.objectives import gives_old_log_probs
from adapters.verl.sizes import of_last_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from adapters.verl.trainers.rollouts import Given, MemoryQueue

NAMES = {
    Metric.POLICY_LOSS: "actor/pg_loss",
    Metric.LOSS: "loss",
    Metric.CLIP_FRACTION: "actor/pg_clipfrac",
    Metric.POLICY_KL: "actor/ppo_kl",
    Metric.ENTROPY: "actor/entropy_loss",
    Metric.KL: "kl_loss",
}
"""Names of the metrics that verl's worker returns for a mini-batch."""


class WorkerGroup:
    """Calls this rank's worker with the rows that verl's dispatch sends it.

    ``mesh`` is the name of the mesh that the worker registers, ``engine`` the engine that has it.
    """

    def __init__(
        self, worker: Any, mesh: str, engine: Any, queue: MemoryQueue, given: Given
    ) -> None:
        self._worker, self._mesh, self._engine = worker, mesh, engine
        self._queue, self._given = queue, given
        self._dispatch_info: dict[str, list[int]] = {}

    def _query_dispatch_info(self, role: str) -> list[int]:
        return of_all_ranks(self._worker._query_dispatch_info(role))

    def _call(self, method: str, batch: Any) -> list[tuple[list[str], Any]]:
        """The keys and outputs of the ranks that return some, for their part of the batch."""
        dictionaries = module("utils.tensordict_utils")
        mine = self._worker._query_dispatch_info(self._mesh)
        part = batch.chunk(self._engine.get_data_parallel_size())[mine]
        data = self._queue.kv_batch_get(part.keys)
        for name, value in batch.extra_info.items():
            dictionaries.assign_non_tensor_data(data, name, deepcopy(value))
        output = getattr(self._worker, method)(data)
        is_told = self._worker.query_collect_info(self._mesh)
        told = of_all_ranks((mine, part.keys, output) if is_told else None)
        answers = sorted((one for one in told if one is not None), key=lambda one: one[0])
        return [(keys, output) for _, keys, output in answers]

    def _put(self, name: str, batch: Any, values: Sequence[NDArray[np.float64]]) -> None:
        """Put the values of response tokens into the queue, as a model would."""
        ids = self._queue.kv_batch_get(batch.keys, select_fields=["input_ids"])["input_ids"]
        self._queue.kv_batch_put(batch.keys, fields={name: self._given.of_positions(values, ids)})


class ActorGroup(WorkerGroup):
    """The workers of the actor and of the reference policy."""

    def __init__(self, worker: Any, queue: MemoryQueue, given: Given) -> None:
        super().__init__(worker, "actor", worker.actor.engine, queue, given)
        self.reported: dict[Metric, tuple[float | None, ...]] = {}

    def compute_log_prob(self, batch: Any) -> Any:
        """The old policy's log-probabilities: the worker's, unless the job gives them."""
        for keys, output in self._call("compute_log_prob", batch):
            tensors = {name: of for name, of in output.items() if isinstance(of, torch.Tensor)}
            self._queue.kv_batch_put(keys, fields=tensors)
        if gives_old_log_probs(self._given.job):
            self._put("log_probs", batch, self._given.batch.old_log_probs)
        return batch

    def compute_ref_log_prob(self, batch: Any) -> Any:
        """The reference policy's log-probabilities, which are given."""
        self._put("log_probs", batch, self._given.batch.reference_log_probs)
        return batch

    def update_actor(self, batch: Any) -> Any:
        """Train the actor, and keep the metrics of each mini-batch."""
        outputs = [output for _, output in self._call("update_actor", batch)]
        metrics = module("utils.tensordict_utils").get(outputs[0], "metrics")
        self.reported = {
            metric: tuple(map(float, of_last_epoch(metrics[name], self._given.job)))
            for metric, name in NAMES.items()
            if name in metrics
        }
        return module("protocol").BatchData(outputs).concat()


class CriticGroup(WorkerGroup):
    """The workers of the critic."""

    def __init__(self, worker: Any, queue: MemoryQueue, given: Given) -> None:
        super().__init__(worker, "train", worker.engine, queue, given)

    def infer_batch(self, batch: Any) -> Any:
        """The critic's values, which are given; nothing is left to wait for."""
        self._put("values", batch, given_values(self._given.batch))
        return SimpleNamespace(futures=[])

    def train_mini_batch(self, batch: Any) -> Any:
        """Train the critic; its outputs are available immediately."""
        outputs = [output for _, output in self._call("train_mini_batch", batch)]
        return SimpleNamespace(get=module("protocol").BatchData(outputs).concat)
