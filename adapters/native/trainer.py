"""A small training framework, driven by the adapter.

`Trainer` shards samples over data-parallel ranks, cuts a rank's samples into micro-batches, slices
every sequence over context-parallel ranks, and sums gradients over all ranks. Every denominator is
computed from the whole step before it is cut. In a pipeline the last stage computes the losses;
earlier stages have no parameters, pass activations on and add 0 to every sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract import Depth, Job, Metric, Objective, objective
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.job import REDUCER_DIVISOR
from adapters.native.corrections import assign_corrections
from adapters.native.losses import OTHER_LOSSES, POLICY_LOSSES, ppo
from adapters.native.losses import value as squared_errors
from adapters.native.packing import Packed, SampleTensors, pack
from adapters.native.rollouts import NativeEstimator, RolloutLog
from adapters.toolkit.probe import ForwardPasses, selected
from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode, auxiliary_aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    TokenLosses = Callable[[torch.Tensor, Packed], torch.Tensor]


class Trainer:
    """Trains steps on one rank, with a method for each part that a mistake can affect."""

    estimator: ClassVar[type[NativeEstimator]] = NativeEstimator
    rollout_log: ClassVar[type[RolloutLog]] = RolloutLog

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.objective = job.objective
        self.aggregation = job.aggregation
        self.layout = job.layout
        self.rank = rank
        self.dp_rank, self.cp_rank = divmod(rank % job.layout.ranks_per_stage, job.layout.cp)
        self.passes = ForwardPasses()
        self.slices: Any = None
        if job.objective in objective.OF_SEQUENCES and job.layout.cp > 1:
            self.slices, _ = dist.new_subgroups(job.layout.cp)

    def assign_advantages(self, steps: list[list[SampleTensors]]) -> list[list[SampleTensors]]:
        """The samples of a batch; with advantages from rewards if the objective computes them.

        From here on, all outputs of other models are constants.
        """
        if self.objective in objective.FROM_REWARDS:
            held = map(self.whitened_ids, self.held(steps))
            steps = self.estimator(self.job).estimate(steps, torch.cat([torch.arange(0), *held]))
        return [[self.constant(sample) for sample in step] for step in steps]

    def constant(self, sample: SampleTensors) -> SampleTensors:
        """The sample, with columns that require no gradient."""
        return detach(sample, CONSTANTS_OF_LOSS)

    def log_of_rollouts(self, steps: list[list[SampleTensors]]) -> Mapping[Metric, float]:
        """The log of a batch whose advantages are computed from rewards."""
        if self.objective not in objective.FROM_REWARDS:
            return {}
        mine = [sample for step in steps for sample in self.shard(step)]
        held = [packed.ids[packed.mask] for packed in self.held(steps)]
        return self.rollout_log(self.job).means(
            [sample for step in steps for sample in step],
            mine if self.layout.is_on_last_stage(self.rank) else [],
            torch.cat([torch.arange(0), *held]),
        )

    def held(self, steps: list[list[SampleTensors]]) -> list[Packed]:
        """The tokens of a batch that this rank holds; none before the last pipeline stage."""
        return [
            pack(micro_batch, self.layout, self.cp_rank)
            for step in steps
            for micro_batch in self.cut(self.shard(step))
            if self.layout.is_on_last_stage(self.rank)
        ]

    def whitened_ids(self, packed: Packed) -> torch.Tensor:
        """The ids of the tokens that count in the mean and variance of advantages."""
        return packed.ids[packed.mask]

    def train_step(
        self, probe: torch.Tensor, samples: list[SampleTensors]
    ) -> tuple[torch.Tensor, dict[Metric, float]]:
        """The gradient of the step's loss, [probe], and its metrics, equal on all ranks."""
        gradient, logs = self.accumulate(probe, samples, self.token_losses)
        self.synchronise(gradient)
        if not logs:
            return gradient, {}
        totals = self.report(torch.stack([*logs.values()], dim=1))
        log = dict(zip(logs, totals.tolist(), strict=True))
        if self.objective is Objective.ADAPTIVE_KL:
            log[Metric.KL_COEFFICIENT] = self.next_coefficient(log[Metric.KL])
        return gradient, log

    def next_coefficient(self, divergence: float) -> float:
        """The divergence's coefficient after a step, adapted to the target divergence."""
        adaptive = ProbedBatch.of(self.job).adaptive_coefficient
        error = max(-0.2, min(divergence / adaptive.target - 1, 0.2))
        return adaptive.coefficient * (1 + error * adaptive.samples / adaptive.horizon)

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        """This rank's contribution to the gradient, and to each metric by micro-batch."""
        probe.grad = torch.zeros_like(probe)
        logs: dict[Metric, list[float]] = {metric: [] for metric in self.logged}
        self.routed = sum(len(sample.ids) - 1 for sample in samples)
        mine = self.shard(self.corrected(self.assign_auxiliary_denominators(self.divided(samples))))
        for micro_batch in self.cut(mine):
            packed = self.handed_on(pack(micro_batch, self.layout, self.cp_rank))
            if not self.layout.is_on_last_stage(self.rank):
                continue
            self.passes.note(packed.ids[packed.ids != PADDING_ID] - 1)
            loss, log = self.loss(selected(probe.float()), packed.to(probe.device), token_losses)
            loss.backward()
            for metric, value in log.items():
                logs[metric].append(value.item())
        return probe.grad, {
            metric: torch.tensor(values, device=probe.device) for metric, values in logs.items()
        }

    def handed_on(self, packed: Packed) -> Packed:
        """A micro-batch whose token ids are received from the first stage, like activations."""
        ids, stage = packed.ids, self.layout.ranks_per_stage
        if self.rank >= stage:
            ids = torch.empty_like(ids)
            dist.recv(ids, src=self.rank - stage)
        if not self.layout.is_on_last_stage(self.rank):
            dist.send(ids, dst=self.rank + stage)
        return replace(packed, ids=ids)

    @property
    def logged(self) -> Sequence[Metric]:
        """The metrics that every rank logs of a step, even without samples."""
        if self.objective is Objective.ROUTER:
            return ()
        if self.objective in OTHER_LOSSES:
            return (
                Metric.LOSS,
                *([Metric.VALUE_LOSS] if self.objective in objective.OF_CRITIC else []),
            )
        others = (*objective.OF_ROLLOUTS, Metric.VALUE_LOSS, Metric.KL_COEFFICIENT)
        return tuple(metric for metric in Metric if metric not in others)

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with the policy loss's denominators, counted over the whole step."""
        if not self.job.configuration.reduces:
            return assign_denominators(samples, denominators(samples, self.aggregation))
        per_token = self.aggregation.mode is Mode.TOKEN_MEAN
        units = sum(sample.tokens for sample in samples) if per_token else len(samples)
        return assign_denominators(samples, [REDUCER_DIVISOR * max(units, 1)] * len(samples))

    def assign_auxiliary_denominators(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with the denominators of auxiliary losses and metrics, from the whole step."""
        aggregation = auxiliary_aggregation(self.aggregation, AuxiliaryAggregation.WITH_TOKEN_MEAN)
        before = [replace(sample, mask=sample.original_mask) for sample in samples]
        pairs = zip(
            denominators(samples, aggregation), denominators(before, aggregation), strict=True
        )
        return [
            replace(sample, auxiliary_denominator=now, original_denominator=original)
            for sample, (now, original) in zip(samples, pairs, strict=True)
        ]

    def corrected(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with loss corrections, computed from all tokens of the step."""
        return [*assign_corrections(samples, self.objective)]

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """This rank's contiguous part of the samples; parts differ in size by at most one."""
        shares = np.array_split(np.arange(len(samples)), self.layout.dp)
        return [samples[i] for i in shares[self.dp_rank]]

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        """Contiguous micro-batches; uneven ones hold 1, 2, 3, … samples."""
        if self.layout.micro_batches == "uneven":
            ends = np.cumsum(np.arange(1, len(samples) + 1))
            parts = np.split(np.arange(len(samples)), ends[ends < len(samples)])
        else:
            parts = np.array_split(np.arange(len(samples)), int(self.layout.micro_batches))
        return [[samples[i] for i in part] for part in parts if len(part)]

    def loss(
        self, probe: torch.Tensor, packed: Packed, token_losses: TokenLosses
    ) -> tuple[torch.Tensor, Mapping[Metric, torch.Tensor]]:
        """The contribution of this rank's micro-batch to the step's loss and metrics."""
        log_probs = self.log_probs(probe, packed)
        if self.objective in OTHER_LOSSES:
            loss = self.reduce(self.other_losses(log_probs, packed), packed.auxiliary)
            return loss, dict.fromkeys(self.logged, loss)
        if self.objective is Objective.ROUTER:
            return self.router_losses(probe, packed.ids[packed.ids != PADDING_ID]), {}
        policy_loss = self.reduce(token_losses(log_probs, packed), packed)
        entropy = self.entropy(probe, packed)
        kl = self.divergence(log_probs, packed)
        entropy_coefficient, kl_coefficient = COEFFICIENTS.get(self.objective, (0.0, 0.0))
        loss = policy_loss - entropy_coefficient * entropy + kl_coefficient * kl
        if self.objective is Objective.WITH_VALUE:
            loss = loss + objective.VALUE_COEFFICIENT * self.value_loss(log_probs, packed)
        if self.job.depth is not Depth.STEP:
            return loss, {}
        return loss, {
            Metric.POLICY_LOSS: policy_loss,
            Metric.LOSS: loss,
            Metric.ENTROPY: entropy,
            Metric.KL: kl,
            **self.diagnostics(log_probs, packed),
        }

    def log_probs(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The log-probability of each token, with a gradient only for active tokens.

        A NaN or infinite loss of another token would have a gradient that no mask can make 0.
        """
        of_tokens = probe[packed.ids] + packed.log_probs
        return torch.where(packed.mask, of_tokens, of_tokens.detach())

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """The contribution of a micro-batch, given its token ids, to the router losses.

        Each router loss is a mean over all tokens of the step except each sample's first token.
        """
        balancing = objective.ROUTER_COEFFICIENT * probe[held].sum()
        return (balancing + objective.Z_COEFFICIENT * len(held) * probe[-1]) / self.routed

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The policy loss of each token."""
        return POLICY_LOSSES.get(self.objective, ppo)(log_probs, packed, self.sequence_sum)

    def other_losses(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The loss of each token for objectives without a policy loss."""
        return OTHER_LOSSES[self.objective](values, packed, self.sequence_sum)

    def sequence_sum(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Sums of values over the active tokens of each token's sequence."""
        number = packed.sequence
        active = torch.where(packed.mask, values, 0)
        sums = torch.zeros(int(number.max()) + 1, device=values.device)
        sums.index_add_(0, number.flatten(), active.flatten())
        self.add_slices(sums)
        return sums[number]

    def add_slices(self, sums: torch.Tensor) -> None:
        """Add up, in place, sums over sequence slices of the context-parallel ranks."""
        if self.slices is not None:
            dist.all_reduce(sums, group=self.slices)

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The contribution of a micro-batch to the step's entropy."""
        entropies = packed.entropies + probe[packed.ids]
        return self.reduce(entropies, packed.auxiliary)

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The contribution of a micro-batch to the step's divergence from the reference policy."""
        return self.reduce(log_probs - packed.reference_log_probs, packed.auxiliary)

    def value_loss(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The contribution of a micro-batch to the loss of a value head that shares the probe."""
        return self.reduce(squared_errors(values, packed, self.sequence_sum), packed.auxiliary)

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        """The metrics that are logged but not trained."""
        log_ratios = log_probs.detach() - packed.old_log_probs
        ratios = torch.exp(log_ratios)
        too_large = (packed.advantages > 0) & (ratios > 1 + objective.CONSTANTS.clip_high)
        too_small = (packed.advantages < 0) & (ratios < 1 - objective.CONSTANTS.clip_low)
        rejected = packed.original_mask & ~packed.mask
        return {
            Metric.CLIP_FRACTION: self.reduce((too_large | too_small).float(), packed.auxiliary),
            Metric.POLICY_KL: self.reduce(-log_ratios, packed.auxiliary),
            Metric.RATIO: self.reduce(ratios, packed.auxiliary),
            Metric.REJECTED: self.reduce(rejected.float(), packed.original),
        }

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The contribution of this rank's micro-batch to the step's mean of values."""
        return (torch.where(packed.mask, values, 0) / packed.denominators).sum()

    def synchronise(self, gradient: torch.Tensor) -> None:
        """Sum the gradients of all ranks in place."""
        if self.layout.world_size > 1:
            dist.all_reduce(gradient)

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        """The step's metrics, [metrics], from this rank's summands, [micro-batches, metrics]."""
        totals = shares.sum(dim=0)
        if self.layout.world_size > 1:
            dist.all_reduce(totals)
        return totals


CONSTANTS_OF_LOSS = (
    "old_log_probs",
    "reference_log_probs",
    "rollout_log_probs",
    "advantages",
    "values",
)
"""Columns of samples that were computed by other models or by earlier forward passes."""

COEFFICIENTS = {
    Objective.ENTROPY: (objective.ENTROPY_COEFFICIENT, 0.0),
    Objective.KL: (0.0, objective.KL_COEFFICIENT),
    Objective.WITH_ENTROPY: (objective.ENTROPY_COEFFICIENT, 0.0),
    Objective.ADAPTIVE_KL: (0.0, objective.KL_COEFFICIENT),
    **dict.fromkeys(objective.OF_TERMS, (objective.ENTROPY_COEFFICIENT, objective.KL_COEFFICIENT)),
}
"""Coefficients of the entropy bonus and of the divergence, for objectives with such a term."""


def detach(sample: SampleTensors, columns: Sequence[str]) -> SampleTensors:
    """Returns the sample with some columns detached."""
    detached = {column: getattr(sample, column).detach() for column in columns}
    return replace(sample, **detached)


def denominators(samples: Sequence[SampleTensors], aggregation: Aggregation) -> list[float]:
    """The denominator of each sample's masked loss sum."""
    if aggregation.mode is Mode.SAMPLE_MEAN:
        return [float(len(samples) * max(sample.tokens, 1)) for sample in samples]
    if aggregation.mode is Mode.PROMPT_MEAN:
        of_group = tokens_of_groups(samples)
        return [float(len(of_group) * max(of_group[sample.group], 1)) for sample in samples]
    if aggregation.mode is Mode.TOKEN_MEAN:
        return [float(max(sum(sample.tokens for sample in samples), 1))] * len(samples)
    assert aggregation.divisor is not None
    return [aggregation.divisor * len(samples)] * len(samples)


def tokens_of_groups(samples: Sequence[SampleTensors]) -> Counter[int]:
    """Number of active tokens of each prompt group."""
    tokens: Counter[int] = Counter()
    for sample in samples:
        tokens[sample.group] += sample.tokens
    return tokens


def assign_denominators(
    samples: Sequence[SampleTensors], divide_by: Sequence[float]
) -> list[SampleTensors]:
    """The samples with their denominators set."""
    return [
        replace(sample, denominator=denominator)
        for sample, denominator in zip(samples, divide_by, strict=True)
    ]
