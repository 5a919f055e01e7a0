"""A small training framework, driven by the adapter.

`Trainer` shards samples over data-parallel ranks, cuts a rank's samples into micro-batches, slices
every sequence over context-parallel ranks, and sums gradients over all of them. Every denominator
is computed from the whole step before it is cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract.configuration import REDUCER_DIVISOR
from adapters.contract.objective import CLIP, ENTROPY_COEFFICIENT, KL_COEFFICIENT, Metric, Objective
from adapters.contract.probed_batch import ENTROPIES, PADDING_ID, ProbedBatch
from adapters.toolkit.probe import ForwardPasses, cycled
from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode, auxiliary_aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Layout

    LossFunction = Callable[[torch.Tensor, "Packed"], torch.Tensor]


DUAL_CLIP = 3.0  # bound on the ratio of tokens with a negative advantage


@dataclass(frozen=True, eq=False)
class SampleTensors:
    """One sample: token ids and per-token values, [prompt + response], and its denominators.

    Values are 0 on the prompt. The sample's masked sums are divided by ``denominator`` for the
    policy loss, by ``auxiliary_denominator`` for auxiliary losses and metrics, and by
    ``original_denominator`` for metrics of the mask before rejection sampling.
    """

    ids: torch.Tensor
    advantages: torch.Tensor
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    mask: torch.Tensor
    original_mask: torch.Tensor
    group: int
    denominator: float = float("nan")
    auxiliary_denominator: float = float("nan")
    original_denominator: float = float("nan")

    @property
    def tokens(self) -> int:
        """The number of active tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True, eq=False)
class Packed:
    """A context-parallel rank's slice: [tokens] in thd, [samples, width] in bshd."""

    labels: torch.Tensor
    advantages: torch.Tensor
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    mask: torch.Tensor
    original_mask: torch.Tensor
    denominators: torch.Tensor
    auxiliary_denominators: torch.Tensor
    original_denominators: torch.Tensor

    def to(self, device: torch.device) -> Packed:
        """The slice on a device."""
        return Packed(*(getattr(self, each.name).to(device) for each in fields(self)))

    @property
    def auxiliary(self) -> Packed:
        """The slice with the denominators of auxiliary losses."""
        return replace(self, denominators=self.auxiliary_denominators)

    @property
    def original(self) -> Packed:
        """The slice with mask and denominators before rejection sampling."""
        return replace(self, mask=self.original_mask, denominators=self.original_denominators)


class Trainer:
    """Trains steps on one rank; each possible mistake has a method of its own."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.objective = job.objective
        self.aggregation = job.aggregation
        self.layout = job.layout
        self.dp_rank, self.cp_rank = divmod(rank, job.layout.cp)
        self.passes = ForwardPasses()

    def train_step(
        self, probe: torch.Tensor, samples: list[SampleTensors]
    ) -> tuple[torch.Tensor, dict[Metric, float]]:
        """The gradient of the step's loss, [probe], and its metrics, equal on all ranks."""
        gradient, logs = self.accumulate(probe, samples, self.token_losses)
        self.synchronise(gradient)
        return gradient, {metric: self.report(values) for metric, values in logs.items()}

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: LossFunction
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        """This rank's part of the gradient, and of each metric by micro-batch."""
        probe.grad = torch.zeros_like(probe)
        logs: dict[Metric, list[float]] = {metric: [] for metric in self.logged}
        mine = self.shard(self.with_auxiliary_denominators(self.divided(samples)))
        for micro_batch in self.cut(mine):
            packed = pack(micro_batch, self.layout, self.cp_rank)
            self.passes.note(packed.labels[packed.labels != PADDING_ID] - 1)
            loss, log = self.loss(probe.float(), packed.to(probe.device), token_losses)
            loss.backward()
            for metric, value in log.items():
                logs[metric].append(value.item())
        return probe.grad, {
            metric: torch.tensor(values, device=probe.device) for metric, values in logs.items()
        }

    @property
    def logged(self) -> Sequence[Metric]:
        """The metrics that every rank logs, even without samples."""
        return (Metric.LOSS,) if self.objective in OTHER_LOSSES else tuple(Metric)

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with denominators of the policy loss, counted over the whole step."""
        if not self.job.configuration.reduces:
            return with_denominators(samples, denominators(samples, self.aggregation))
        per_token = self.aggregation.mode is Mode.TOKEN_MEAN
        units = sum(sample.tokens for sample in samples) if per_token else len(samples)
        return with_denominators(samples, [REDUCER_DIVISOR * max(units, 1)] * len(samples))

    def with_auxiliary_denominators(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with all other denominators, counted over the whole step."""
        aggregation = auxiliary_aggregation(self.aggregation, AuxiliaryAggregation.WITH_TOKEN_MEAN)
        before = [replace(sample, mask=sample.original_mask) for sample in samples]
        pairs = zip(
            denominators(samples, aggregation), denominators(before, aggregation), strict=True
        )
        return [
            replace(sample, auxiliary_denominator=now, original_denominator=original)
            for sample, (now, original) in zip(samples, pairs, strict=True)
        ]

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
        self, probe: torch.Tensor, packed: Packed, token_losses: LossFunction
    ) -> tuple[torch.Tensor, Mapping[Metric, torch.Tensor]]:
        """The part of a micro-batch on this rank in the step's loss and metrics."""
        log_probs = probe[packed.labels]
        if self.objective in OTHER_LOSSES:
            loss = self.reduce(OTHER_LOSSES[self.objective](log_probs, packed), packed.auxiliary)
            return loss, {Metric.LOSS: loss}
        policy_loss = self.reduce(token_losses(log_probs, packed), packed)
        entropy = self.entropy(probe, packed)
        kl = self.divergence(log_probs, packed)
        entropy_coefficient, kl_coefficient = COEFFICIENTS.get(self.objective, (0.0, 0.0))
        loss = policy_loss - entropy_coefficient * entropy + kl_coefficient * kl
        return loss, {
            Metric.POLICY_LOSS: policy_loss,
            Metric.LOSS: loss,
            Metric.ENTROPY: entropy,
            Metric.KL: kl,
            **self.diagnostics(log_probs, packed),
        }

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The policy loss of each token."""
        return POLICY_LOSSES.get(self.objective, ppo_losses)(log_probs, packed)

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The part of a micro-batch in the entropy."""
        entropies = cycled(ENTROPIES, packed.labels) + probe[packed.labels]
        return self.reduce(entropies, packed.auxiliary)

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The part of a micro-batch in the divergence from the reference policy."""
        return self.reduce(log_probs - packed.reference_log_probs, packed.auxiliary)

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        """The metrics that are logged and not trained."""
        log_ratios = log_probs.detach() - packed.old_log_probs
        signs = torch.sign(packed.advantages)
        clipped = signs * torch.exp(log_ratios) > signs * (1 + signs * CLIP)
        rejected = packed.original_mask & ~packed.mask
        return {
            Metric.CLIP_FRACTION: self.reduce(clipped.float(), packed.auxiliary),
            Metric.POLICY_KL: self.reduce(-log_ratios, packed.auxiliary),
            Metric.REJECTED: self.reduce(rejected.float(), packed.original),
        }

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The part of a micro-batch on this rank in the mean of values."""
        return (torch.where(packed.mask, values, 0) / packed.denominators).sum()

    def synchronise(self, gradient: torch.Tensor) -> None:
        """Sum the gradients of all ranks in place."""
        if self.layout.world_size > 1:
            dist.all_reduce(gradient)

    def report(self, shares: torch.Tensor) -> float:
        """A metric of the step, from the parts of this rank's micro-batches."""
        total = shares.sum()
        if self.layout.world_size > 1:
            dist.all_reduce(total)
        return float(total)


def ppo_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Clipped policy-gradient losses (PPO, arXiv:1707.06347)."""
    ratio = torch.exp(log_probs - packed.old_log_probs)
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return torch.maximum(-packed.advantages * ratio, -packed.advantages * clipped)


def dual_clip_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """PPO losses, bounded for negative advantages (arXiv:1912.09729)."""
    losses = ppo_losses(log_probs, packed)
    bounded = torch.minimum(losses, -packed.advantages * DUAL_CLIP)
    return torch.where(packed.advantages < 0, bounded, losses)


def cispo_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Log-probabilities times a clipped ratio without gradient (arXiv:2506.13585)."""
    ratio = torch.exp(log_probs.detach() - packed.old_log_probs).clamp(1 - CLIP, 1 + CLIP)
    return -packed.advantages * ratio * log_probs


def sft_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Negative log-likelihoods."""
    return -log_probs


def value_losses(values: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Squared errors of a critic's values, which are the probe's entries."""
    return (values - packed.advantages / 2) ** 2


def linear_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Losses that are linear in the probe, for depth `reducer`."""
    return -packed.advantages * log_probs


POLICY_LOSSES: dict[Objective, LossFunction] = {
    Objective.DUAL_CLIP: dual_clip_losses,
    Objective.CISPO: cispo_losses,
}
"""Losses of the objectives that have another than PPO's."""

OTHER_LOSSES: dict[Objective, LossFunction] = {
    Objective.SFT: sft_losses,
    Objective.VALUE: value_losses,
}

COEFFICIENTS = {
    Objective.ENTROPY: (ENTROPY_COEFFICIENT, 0.0),
    Objective.KL: (0.0, KL_COEFFICIENT),
    Objective.COMBINED: (ENTROPY_COEFFICIENT, KL_COEFFICIENT),
}
"""Coefficients of the entropy bonus and of the divergence, where they are not 0."""


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


def with_denominators(
    samples: Sequence[SampleTensors], divide_by: Sequence[float]
) -> list[SampleTensors]:
    """The samples, each with its denominator."""
    return [
        replace(sample, denominator=denominator)
        for sample, denominator in zip(samples, divide_by, strict=True)
    ]


def samples_of_steps(batch: ProbedBatch) -> list[list[SampleTensors]]:
    """The samples of each step."""
    groups = np.concatenate([step.groups for step in batch.steps])
    of_batch = batch.advantages, batch.old_log_probs, batch.reference_log_probs
    of_tokens: Iterator[Any] = zip(*of_batch, batch.masks, batch.original_masks, strict=True)
    rows = zip(groups, batch.prompts, batch.responses, of_tokens, strict=True)
    samples = (
        SampleTensors(
            torch.from_numpy(np.concatenate([prompt, response])),
            *(_on_response(prompt, values) for values in per_token),  # type: ignore[arg-type]
            group=int(group),  # type: ignore[misc]
        )
        for group, prompt, response, per_token in rows
    )
    return [list(islice(samples, step.size)) for step in batch.steps]


def _on_response(prompt: NDArray[Any], values: NDArray[Any]) -> torch.Tensor:
    """The values of a response, preceded by zeros for its prompt."""
    narrow = values.astype(np.float32) if values.dtype == np.float64 else values
    return torch.from_numpy(np.concatenate([np.zeros(len(prompt), narrow.dtype), narrow]))


def pack(micro_batch: list[SampleTensors], layout: Layout, cp_rank: int) -> Packed:
    """Slice every sequence and join the slices, end to end (thd) or padded to one width (bshd)."""
    lengths = [len(sample.ids) for sample in micro_batch]
    widths = lengths if layout.format == "thd" else [max(lengths)] * len(lengths)
    join = torch.cat if layout.format == "thd" else torch.stack
    slices = [
        zigzag(sample, width, layout.cp, cp_rank)
        for sample, width in zip(micro_batch, widths, strict=True)
    ]
    return Packed(*(join(parts) for parts in zip(*slices, strict=True)))


def zigzag(sample: SampleTensors, width: int, cp: int, cp_rank: int) -> tuple[torch.Tensor, ...]:
    """A rank's two of 2·cp equal chunks, in the order of `Packed`.

    Chunks are paired first with last for equal work. A position has the values of the token that it
    predicts, which may be in another chunk, so that values are shifted before slicing.
    """
    chunks = 2 * cp
    padded = -(-width // chunks) * chunks

    def chunks_of_rank(values: torch.Tensor) -> torch.Tensor:
        shifted = torch.full((padded,), PADDING_ID, dtype=values.dtype)
        shifted[: len(values) - 1] = values[1:]
        if cp == 1:
            return shifted  # both chunks, in their order
        parts = shifted.chunk(chunks)
        return torch.cat([parts[cp_rank], parts[chunks - 1 - cp_rank]])

    per_token = sample.ids, sample.advantages, sample.old_log_probs, sample.reference_log_probs
    per_sample = sample.denominator, sample.auxiliary_denominator, sample.original_denominator
    return (
        *map(chunks_of_rank, (*per_token, sample.mask, sample.original_mask)),
        *(torch.full((padded // cp,), denominator) for denominator in per_sample),
    )
