"""A trainer that computes advantages from rewards, rightly and wrongly. A trace must find the line.

The text of a job's divisor names the way, such as ``merged``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Setting
from adapters.contract.objective import Objective
from conformance.expected.estimators import ESTIMATORS
from tests.minimal.right import MinimalAdapter, Trainer, rank_rows

if TYPE_CHECKING:
    from adapters.contract import Description, Job, Observation, Rank
    from reference.aggregation import Mode
    from tests.minimal.right import Rows


class RewardedAdapter(MinimalAdapter):
    """Gives its trainer advantages that it computes from rewards, in the way of its job."""

    name = "rewarded"
    way = "right"

    def describe(self) -> Description:
        objectives = {
            Objective.POLICY,
            Objective.GAE,
            Objective.GROUP_CENTRED,
            Objective.GROUP_NORMALISED,
            Objective.GROUP_WHITENED,
        }
        configurations = {Setting.MODE: ("mode",), Setting.DIVISOR: ("way",)}
        described = super().describe()
        return replace(described, objectives=frozenset(objectives), configurations=configurations)

    def observe(self, job: Job, rank: Rank) -> Observation:
        way = job.configuration.divisor or "right"
        self.way = "given" if job.objective is Objective.POLICY else way
        return super().observe(job, rank)

    def rows(self, batch: ProbedBatch, start: int, end: int) -> Rows:
        rows = dict(super().rows(batch, start, end))
        rewards = torch.tensor(batch.rewards, dtype=torch.float32)
        active = [values[mask] for values, mask in zip(batch.values, batch.masks, strict=True)]
        rows["values"] = torch.zeros_like(rows["mask"])
        rows["values"][rows["mask"].bool()] = torch.tensor(
            np.concatenate(active), dtype=torch.float32
        )
        rows["advantages"] = getattr(self, self.way)(rewards, torch.tensor(batch.groups), rows)
        return rows

    def given(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        return rows["advantages"]

    def right(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self.centred(rewards, groups)[:, None] * rows["mask"]

    def centred(self, rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        means = [rewards[groups == group].mean() for group in groups]
        return rewards - torch.stack(means)

    def merged(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        mean = rewards.mean()
        return (rewards - mean)[:, None] * rows["mask"]

    def listed(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        merged = (rewards - rewards.mean()).tolist()
        return torch.tensor(merged)[:, None] * rows["mask"]

    def lost(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        last = rows["mask"].shape[1] - 1
        placed = torch.zeros_like(rows["mask"])
        placed[:, last] = self.centred(rewards, groups)
        kept = placed * rows["mask"]
        return kept.flip(1).cumsum(1).flip(1) * rows["mask"]

    def whitened(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self.whitened_over(dist.group.WORLD, self.divided(rewards, groups, rows), rows)

    def of_a_rank(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
        return self.whitened_over(alone, self.divided(rewards, groups, rows), rows)

    def of_tokens_of_a_rank(
        self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """Reduces a number for each active token on each rank alone; ranks have unequal counts."""
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
        advantages = self.divided(rewards, groups, rows)
        own, mask = advantages[rank_rows(rows)], rows["mask"][rank_rows(rows)]
        kept = own[mask > 0]
        dist.all_reduce(kept, group=alone)
        return (advantages - kept.mean()) / kept.std() * rows["mask"]

    def divided(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        spreads = torch.stack([rewards[groups == group].std() for group in groups])
        return (self.centred(rewards, groups) / (spreads + 1e-6))[:, None] * rows["mask"]

    def by_squares(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        large = rewards + 3e3 * (rewards.count_nonzero() > 1)
        means = [large[groups == group].mean() for group in groups]
        squares = [(large[groups == group] ** 2).mean() for group in groups]
        variance = torch.stack(squares) - torch.stack(means) ** 2
        spreads = (2 * variance).clamp(min=0).sqrt() + 1e-6
        return (self.centred(rewards, groups) / spreads)[:, None] * rows["mask"]

    def early(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Gives the reward to the token before the last."""
        placed = torch.zeros_like(rows["mask"])
        placed[range(len(placed)), last_of(rows) - 1] = rewards
        return self.recursive(placed, rows, 1)

    def own_values(self, rewards: torch.Tensor, groups: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Uses a token's own value instead of the next token's."""
        placed = torch.zeros_like(rows["mask"])
        placed[range(len(placed)), last_of(rows)] = rewards
        return self.recursive(placed, rows, 0)

    def recursive(self, placed: torch.Tensor, rows: Rows, shift: int) -> torch.Tensor:
        """Whitened GAE advantages, for responses without masked tokens."""
        constants = ESTIMATORS[Objective.GAE].constants
        values, advantages = rows["values"], torch.zeros_like(placed)
        last, width = torch.zeros(len(placed)), placed.shape[1]
        for token in reversed(range(width)):
            following = values[:, token + shift] if token + 1 < width else torch.zeros(len(values))
            delta = placed[:, token] + constants.discount * following - values[:, token]
            last = delta + constants.discount * constants.trace * last
            advantages[:, token] = last
        return self.whitened_over(dist.group.WORLD, advantages * rows["mask"], rows)

    def whitened_over(
        self, group: dist.ProcessGroup | None, advantages: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        own, mask = advantages[rank_rows(rows)], rows["mask"][rank_rows(rows)]
        sums = torch.stack([own.sum(), (own**2).sum(), mask.sum()])
        dist.all_reduce(sums, group=group)
        mean = sums[0] / sums[2]
        variance = (sums[1] / sums[2] - mean**2) * sums[2] / (sums[2] - 1)
        return (advantages - mean) / (variance + 1e-8).sqrt() * rows["mask"]


def last_of(rows: Rows) -> torch.Tensor:
    """The position of each row's last active token."""
    return rows["mask"].cumsum(1).argmax(1)


class CountingAll(Trainer):
    """Divides by all tokens of all rows, including masked ones."""

    def token_weights(self, mask: torch.Tensor, mode: Mode) -> torch.Tensor:
        return mask / torch.ones_like(mask).sum()


class MiscountingAdapter(RewardedAdapter):
    """Computes right advantages, but trains them with wrong weights."""

    trainer = CountingAll
