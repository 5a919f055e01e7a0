"""One optimizer step as the loss sees it: samples, masks, prompt groups and rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from reference import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray


class InvalidStepError(ConformanceError):
    """The given samples cannot be a training step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One sequence: a prompt and the response sampled for it.

    ``loss_mask`` has one entry per response token: 1 where the token is trained on (*active*),
    0 where it is not (tool output, a rejected token). ``group`` identifies the prompt, ``rollout``
    the trajectory, which a multi-turn framework may cut into several samples; identifiers are only
    compared for equality. ``original_mask`` is the mask before rejection sampling (TIS, RS); None
    if no token was rejected. ``reward`` is None where it does not matter.
    """

    prompt_length: int
    loss_mask: ArrayLike
    group: int
    rollout: int | None = None
    original_mask: ArrayLike | None = None
    reward: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """The N samples of one optimizer step, with the masks of all responses concatenated.

    Shapes: ``prompt_lengths``, ``response_lengths``, ``groups`` and ``rollouts`` are int64 [N];
    ``mask`` and ``original_mask``, if tokens were rejected, are bool [sum of response_lengths];
    ``rewards``, if they matter, are float64 [N]. ``token_names`` [sum of response_lengths] and
    ``sample_names`` [N], int64, relate a changed step to the original step: tokens and samples of
    the same name have the same values in both steps.

    Raises:
        InvalidStepError: no samples, a mask of the wrong length or with values other than 0 and 1,
            an active token that was not active originally, or lengths that no sequence can have.
    """

    prompt_lengths: NDArray[np.int64]
    response_lengths: NDArray[np.int64]
    mask: NDArray[np.bool_]
    groups: NDArray[np.int64]
    rollouts: NDArray[np.int64]
    original_mask: NDArray[np.bool_] | None = None
    rewards: NDArray[np.float64] | None = None
    token_names: NDArray[np.int64] | None = None
    sample_names: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.size == 0:
            raise InvalidStepError("a step has 0 samples, but needs at least one", "add a sample")
        for name in ("prompt_lengths", "response_lengths"):
            shortest = int(getattr(self, name).min())
            if shortest < 1:
                raise InvalidStepError(
                    f"{name} holds {shortest}, but a prompt and a response have at least one token",
                    "leave the sample out or mask its only token",
                )
        for name in ("response_lengths", "groups", "rollouts", "rewards", "sample_names"):
            column = getattr(self, name)
            length = self.size if column is None else len(column)
            if length != self.size:
                raise InvalidStepError(
                    f"{name} has {length} entries for {self.size} samples", "give one per sample"
                )
        self._set_mask("mask")
        if self.original_mask is not None:
            self._set_mask("original_mask")
            self._require_no_token_added(self.original_mask)

    def _set_mask(self, name: str) -> None:
        mask = _as_mask(getattr(self, name))
        if len(mask) != self.response_lengths.sum():
            raise InvalidStepError(
                f"the loss masks have {len(mask)} entries for {self.response_lengths.sum()}"
                " response tokens",
                "give one entry per response token",
            )
        object.__setattr__(self, name, mask)

    def _require_no_token_added(self, original: NDArray[np.bool_]) -> None:
        added = int((self.mask & ~original).sum())
        if added:
            raise InvalidStepError(
                f"{added} active tokens are not in the original masks, but rejection only removes"
                " tokens",
                "set them in both",
            )

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Step:
        """Make a step of samples. Without rollouts, each sample is its own rollout."""
        masks = [_as_mask(sample.loss_mask) for sample in samples]
        rollouts = [sample.rollout for sample in samples]
        if None in rollouts and any(rollout is not None for rollout in rollouts):
            raise InvalidStepError(
                "only some samples have a rollout", "give it for all samples or for none"
            )
        return cls(
            prompt_lengths=np.array([sample.prompt_length for sample in samples], np.int64),
            response_lengths=np.array([len(mask) for mask in masks], np.int64),
            mask=np.concatenate(masks) if masks else np.empty(0, np.bool_),
            original_mask=None
            if all(sample.original_mask is None for sample in samples)
            else np.concatenate(
                [
                    mask if sample.original_mask is None else _as_mask(sample.original_mask)
                    for sample, mask in zip(samples, masks, strict=True)
                ]
            ),
            groups=np.array([sample.group for sample in samples], np.int64),
            rewards=_rewards(samples),
            rollouts=np.array(range(len(samples)) if None in rollouts else rollouts, np.int64),
        )

    @property
    def size(self) -> int:
        """N, the number of samples."""
        return len(self.prompt_lengths)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Start of each response in ``mask``, and the end of the last one: [N + 1]."""
        return np.concatenate([[0], np.cumsum(self.response_lengths)])

    @property
    def responses(self) -> Iterator[slice]:
        """Each sample's response as a slice of ``mask`` or of any other flat per-token array."""
        bounds = self.offsets.tolist()
        return map(slice, bounds[:-1], bounds[1:])

    @property
    def mask_before_rejection(self) -> NDArray[np.bool_]:
        """The loss mask before rejection sampling, ``mask`` if there was none: [tokens]."""
        return self.mask if self.original_mask is None else self.original_mask

    @cached_property
    def active_tokens(self) -> NDArray[np.int64]:
        """M_i, the number of active tokens of each sample: [N]."""
        return self._count(self.mask)

    @cached_property
    def original_tokens(self) -> NDArray[np.int64]:
        """The number of tokens of each sample that were active before rejection: [N]."""
        return self._count(self.mask_before_rejection)

    def _count(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.array([np.count_nonzero(mask[span]) for span in self.responses], np.int64)

    def __len__(self) -> int:
        return self.size


def _rewards(samples: Sequence[Sample]) -> NDArray[np.float64] | None:
    given = [sample.reward for sample in samples if sample.reward is not None]
    if given and len(given) < len(samples):
        raise InvalidStepError(
            f"{len(given)} of {len(samples)} samples have a reward", "give it for all or for none"
        )
    return np.array(given, np.float64) if given else None


def _as_mask(values: ArrayLike) -> NDArray[np.bool_]:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1:
        raise InvalidStepError(
            f"a loss mask has {array.ndim} dimensions, but one response has one", "give a flat list"
        )
    if array.dtype != np.bool_:
        strange = array[(array != 0) & (array != 1)]
        if strange.size:
            raise InvalidStepError(
                f"a loss mask holds {strange[0]}, but a token is active (1) or not (0)",
                "put other weights into the losses",
            )
    return array.astype(np.bool_, copy=False)
