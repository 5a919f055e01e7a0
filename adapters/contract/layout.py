"""Layouts: the division of a step among ranks and micro-batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from reference import ConformanceError, did_you_mean


class Option(StrEnum):
    """A setting that changes how a step is run and must not change its result."""

    ALLGATHER_CP = "allgather_cp"  # a rank holds one part of a packed row, and gathers the others
    AVERAGE_IN_COLLECTIVE = "average_in_collective"  # the all-reduce itself averages gradients
    BALANCE_DATA = "balance_data"  # samples are distributed over data-parallel ranks by length
    DISTRIBUTED_OPTIMIZER = "distributed_optimizer"  # each rank has only the gradients of its shard
    EXPERT_PARALLEL = "expert_parallel"  # two ranks have one expert each, and exchange tokens
    HYBRID_SHARDING = "hybrid_sharding"  # each half of the ranks shards its own copy of the model
    INTERLEAVED = "interleaved"  # each pipeline stage has two chunks of the model
    LEGACY_TRAINER = "legacy_trainer"  # the trainer that a framework keeps beside its default one
    MASKED_TRUNCATION = "masked_truncation"  # the framework masks samples that were cut off
    NOT_SHARDED = "not_sharded"  # every rank has a whole model, although shards are the default
    # gradients are reduced bucket by bucket during the backward pass
    OVERLAP_GRAD_REDUCE = "overlap_grad_reduce"
    # The step has fewer micro-batches than usual, as the last step of an epoch may have.
    PARTIAL_WINDOW = "partial_window"
    PER_TOKEN_LOSS = "per_token_loss"  # the engine divides gradients by its own token count
    # PPO's loss is computed by the worker that also has other policy losses
    POLICY_GRADIENT_WORKER = "policy_gradient_worker"
    # the optimizer is not distributed, although it is by default
    REPLICATED_OPTIMIZER = "replicated_optimizer"
    ROUTING_REPLAY = "routing_replay"  # tokens get the experts that their rollouts chose
    # The preceding batch of rollouts is too small for an optimizer step, as at the end of an epoch.
    SHORT_BATCH = "short_batch"
    # Stages of ZeRO (arXiv:1910.02054) other than a framework's default: ranks shard optimizer
    # states (1), also gradients (2), also parameters (3), or nothing (0).
    ZERO_0 = "zero_0"
    ZERO_1 = "zero_1"
    ZERO_2 = "zero_2"
    ZERO_3 = "zero_3"
    SHARED_GENERATION = "shared_generation"  # all optimizer steps are cut out of one generation
    SPLIT_GENERATION = "split_generation"  # every micro-batch is a separate generation
    TWO_EPOCHS = "two_epochs"  # a batch is trained on twice, and the second pass is observed


class InvalidLayoutError(ConformanceError):
    """A layout has an invalid form or size."""


_LAYOUT = re.compile(
    r"dp(\d+)-cp(\d+)(?:-tp(\d+))?(?:-pp(\d+))?-mb(\d+|uneven|tokens)-(thd|bshd)((?:\+\w+)*)"
)


@dataclass(frozen=True, kw_only=True, order=True)
class Layout:
    """The division of a step among ranks and micro-batches.

    ``dp``, ``cp`` and ``tp`` count data-, context- and tensor-parallel ranks; Ulysses sequence
    parallelism counts as context parallelism. ``pp`` counts the stages of a pipeline, whose last
    stage computes the loss. Ranks are numbered along ``tp`` first, then ``cp``, ``dp`` and ``pp``.
    ``micro_batches`` says how a rank's samples are cut: into a number of equal micro-batches, into
    ``uneven`` micro-batches of different sample counts, or into micro-batches of limited
    ``tokens``. ``format`` is the storage of a micro-batch: ``thd`` is one packed row, ``bshd`` one
    row per sample, padded to the same width. ``options`` are further settings.
    """

    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int | Literal["uneven", "tokens"] = 1
    format: Literal["thd", "bshd"] = "bshd"
    options: tuple[Option, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "tp", "pp", "micro_batches"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InvalidLayoutError(
                    f"{name} of {self} is {value}, but there is at least one", "give 1 or more"
                )
        object.__setattr__(self, "options", tuple(sorted(set(self.options))))
        if Option.INTERLEAVED in self.options and self.pp == 1:
            raise InvalidLayoutError(
                f"{self} interleaves the chunks of one stage", "give 2 pipeline stages or more"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks of the layout."""
        return self.ranks_per_stage * self.pp

    @property
    def ranks_per_stage(self) -> int:
        """Number of ranks of each pipeline stage."""
        return self.dp * self.cp * self.tp

    @property
    def last_stage(self) -> slice:
        """The ranks of the last pipeline stage, which computes the loss and must have a probe."""
        return slice(self._first_of_last_stage, None)

    @property
    def token_holders(self) -> slice:
        """One rank of the last pipeline stage for each data- and context-parallel rank.

        Tensor-parallel ranks hold the same tokens, and only the first one is included.
        """
        return slice(self._first_of_last_stage, None, self.tp)

    def is_on_last_stage(self, rank: int) -> bool:
        """Whether a rank is on the last pipeline stage."""
        return rank >= self._first_of_last_stage

    @property
    def _first_of_last_stage(self) -> int:
        return self.world_size - self.ranks_per_stage

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a layout as written by `str`, such as ``dp2-cp2-mbuneven-thd+balance_data``."""
        match = _LAYOUT.fullmatch(text)
        if match is None:
            raise InvalidLayoutError(
                f"layout {text!r} is not of the form dp2-cp1-mb2-thd or"
                " dp2-cp1-tp2-pp2-mb2-thd"
                " (mb: a number, uneven or tokens; then thd or bshd; then options, such as"
                " +balance_data)"
            )
        dp, cp, tp, pp, micro_batches, storage, options = match.groups()
        return cls(
            dp=int(dp),
            cp=int(cp),
            tp=int(tp or 1),
            pp=int(pp or 1),
            micro_batches=int(micro_batches) if micro_batches.isdigit() else micro_batches,  # type: ignore[arg-type]
            format=storage,  # type: ignore[arg-type]
            options=tuple(_option(name, text) for name in options.split("+")[1:]),
        )

    def __str__(self) -> str:
        further = {"tp": self.tp, "pp": self.pp}
        sizes = "".join(f"-{name}{size}" for name, size in further.items() if size != 1)
        options = "".join(f"+{option}" for option in self.options)
        return f"dp{self.dp}-cp{self.cp}{sizes}-mb{self.micro_batches}-{self.format}{options}"


def _option(name: str, layout: str) -> Option:
    try:
        return Option(name)
    except ValueError:
        raise InvalidLayoutError(
            f"option {name!r} of layout {layout} is unknown",
            did_you_mean(name, Option, f"choose {', '.join(Option)}"),
        ) from None


_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


def expanded(pattern: str) -> list[Layout]:
    """The layouts of a pattern such as ``dp{1,2}-cp1-mb{2,tokens}-thd``.

    The alternatives in the last braces change fastest.
    """
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        return [Layout.parse(pattern)]
    start, end = found.span()
    alternatives = (f"{pattern[:start]}{one}{pattern[end:]}" for one in found[1].split(","))
    return [layout for each in alternatives for layout in expanded(each)]
