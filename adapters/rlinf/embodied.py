"""Drives RLinf's actor of embodied policies, whose value head shares the policy's model.

An environment's rollout is a sample, and each of its actions is a token. Environments that are done
early have padding rows, which RLinf masks by the given ``dones``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.nn.functional import pad

from adapters.contract import Job, Rank, Unsupported
from adapters.contract.batch.sequences import PADDING_ID
from adapters.rlinf.driving import RlinfActor
from adapters.rlinf.importing import home_of_embodied
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ProbedTransformer, token_table
from adapters.toolkit.settings import shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.toolkit.probe import ForwardPasses


class PolicyOfActions(ProbedTransformer):
    """A policy of actions whose log-probabilities and values are the same entries of the probe."""

    def __init__(self, capacity: int, passes: ForwardPasses) -> None:
        super().__init__(capacity, passes, heads)

    def forward(  # type: ignore[override]
        self, forward_inputs: Mapping[str, torch.Tensor], **_: Any
    ) -> Any:
        """The outputs for rows that have one action each."""
        return super().forward(forward_inputs["states"])


def heads(states: torch.Tensor, probe: torch.Tensor) -> dict[str, torch.Tensor]:
    """The log-probabilities of actions, and the values of the states before them: [rows, 1]."""
    return {"logprobs": probe[states + 1], "values": probe[states + 1]}


class EmbodiedActor(RlinfActor):
    """RLinf's actor of embodied policies around our model."""

    @staticmethod
    def rollouts(batch: ProbedBatch, job: Job, config: Any, rank: Rank) -> list[Any]:
        """A rank's rollouts: columns that environments send, and columns computed from them.

        Columns are [actions, environments, 1]; values and ``dones`` have an additional entry after
        the last action. Raises `Unsupported` for masks that no environment makes.
        """
        if not all(mask[: max(1, mask.sum())].all() for mask in batch.masks):
            raise Unsupported("no masks but those of the actions before an environment is done")
        [of_step] = shares(job)
        samples, width = of_step[rank.index], max(map(len, batch.responses))
        ids = torch.full((width, len(samples), 1), PADDING_ID)
        dones = torch.zeros((width + 1, len(samples), 1), dtype=torch.bool)
        for number, sample in enumerate(samples):
            response, actions = batch.responses[sample], int(batch.masks[sample].sum())
            ids[: len(response), number, 0] = torch.from_numpy(response)
            dones[actions, number] = True
        received = {
            "prev_logprobs": token_table(batch, batch.old_log_probs)[ids],
            "prev_values": token_table(batch, batch.old_values)[pad(ids, (0, 0, 0, 0, 0, 1))],
            "dones": dones,
            "forward_inputs": {"states": (ids - 1).clamp(min=PADDING_ID)},
        }
        columns = {"advantages": batch.advantages, "returns": batch.returns}
        computed = {name: token_table(batch, values)[ids] for name, values in columns.items()}
        return [(received, computed)]

    @property
    def kind(self) -> Any:
        """The class of the actor."""
        return home_of_embodied().EmbodiedFSDPActor

    def policy(self, capacity: int) -> Any:
        """The model that the actor trains."""
        return PolicyOfActions(capacity, self.passes)

    def construct(self, config: Any) -> None:
        """Call the constructor, with stubs of the cluster that runs environments."""
        names = ("Cluster", "HybridComponentPlacement", "WeightSyncer")
        stubs = {name: mock.MagicMock() for name in names}
        with mock.patch.multiple(home_of_embodied(), **stubs):
            self.kind.__init__(self._actor, config)

    def train(self, rollouts: Sequence[Any]) -> tuple[Mapping[str, float], list[Any]]:
        """Train on a rank's rollouts of a step; returns no log of rollouts, and the step's log."""
        [(received, computed)] = rollouts
        with cuda_on_cpu.redirected():
            self._actor.rollout_batch = self._actor._process_received_rollout_batch(received)
            self._actor.rollout_batch |= computed
            return {}, [self._actor.run_training()]
