"""The record of a known mistake, and the predictions that are made for a mistake."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from conformance.findings.cause import UNEXPLAINED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm


class Kind(StrEnum):
    """The part of a step that a mistake gets wrong; it limits which mistakes are combined."""

    WEIGHTS = "the weights of tokens"
    FACTOR = "one factor of all weights, which may come on top of another mistake"
    PARTS = "denominators of parts of a step, whose means are averaged"
    FILLED = "what a mean counts besides samples: padding or repeated rows"
    UNREDUCED = "the shares of other ranks, which are left out"
    DERIVATIVE = "the derivative of a policy loss, which weights are multiplied by"
    ADVANTAGE = "the advantages, which weights are multiplied by"
    COUNT = "a count that is read off a factor which no other mistake explains"
    READ_OFF = "what is read off the numbers themselves, and cannot be predicted"
    ABSENT = "the whole term, which hides all else that is wrong with it"
    LOGGED = "what ranks add up to a logged number, and no gradient"
    FOUND = "what is found by other means than weights"
    RULE = "a rule about configurations, logs or group boundaries"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A known mistake: its properties that do not depend on a step."""

    name: str
    says: str
    """The mistake in words, as the end of a sentence."""

    kind: Kind
    rank: int
    """The rank by commonness, low for common mistakes; equal ranks are ordered by declaration."""

    at_size: str = ""
    """The mistake's effect on a step of any size, as the end of a sentence, if a formula says more
    than a prediction for one step."""

    only: tuple[str, ...] = ()
    """Facts without which the mistake cannot be made: its condition, if no finding contradicts."""

    @property
    def is_read_off(self) -> bool:
        """Whether the mistake cannot be predicted, and is only recognised in observed numbers."""
        return self.kind in (Kind.READ_OFF, Kind.COUNT)


INACTIVE = "inactive_tokens_weigh"
"""The mistake by which masked tokens have a weight."""

OPTION_IGNORED = "option_ignored"
"""The mistake of an option without effect; statements name it together with the option."""

MISTAKES: dict[str, Mistake] = {}
"""All known mistakes by name: complete once `conformance.explain.catalogue` is imported."""


def known(
    sentences: Mapping[str, str | tuple[str, str]],
    *,
    rank: int,
    kind: Kind = Kind.WEIGHTS,
    only: tuple[str, ...] = (),
) -> None:
    """Adds mistakes to the catalogue, given a sentence for each name.

    A second sentence is the mistake's effect on a step of any size. ``only`` has facts without
    which the mistakes cannot be made.
    """
    for name, said in sentences.items():
        assert name not in MISTAKES, f"{name} is declared twice"
        says, at_size = (said, "") if isinstance(said, str) else said
        MISTAKES[name] = Mistake(
            name=name, says=says, kind=kind, rank=rank, at_size=at_size, only=only
        )


# Mistakes without a prediction of weights: they are read from observed numbers or found by judges.

ASSUMED = "which the framework does not document"

known(
    {
        "other_divisor": "another constant divisor is used",
        "samples_miscounted": "the wrong number of samples is counted",
        "prompts_miscounted": "the wrong number of prompts is counted",
        "tokens_miscounted": "the wrong number of tokens is counted",
    },
    rank=13,
    kind=Kind.COUNT,
)
known(
    {
        "gradients_clipped": "gradients are clipped before the optimizer reads them",
        "gradient_values_clipped": (
            "gradients are clipped value by value before the optimizer reads them"
        ),
        "loss_scaled": "gradients are read before the loss scale is divided out",
    },
    rank=16,
    kind=Kind.FOUND,
)
known(
    {
        INACTIVE: "masked tokens have a weight",
        "not_finite": "numbers are NaN or infinite",
        "step_skipped": "an optimizer step with a NaN or infinite gradient is skipped",
    },
    rank=17,
    kind=Kind.READ_OFF,
)
known(
    {
        "tokens_not_held": "active tokens are on no rank",
        "forward_passes_not_recorded": "the adapter records no forward passes",
        "group_on_several_ranks": "a prompt group is on several data-parallel ranks",
        "depends_on_cut": "a gradient or a logged number depends on how a step is cut",
        "depends_on_order": "a gradient or a logged number depends on the order of samples",
        "depends_on_ids": (
            "a gradient or a logged number depends on the ids of prompts and rollouts"
        ),
        "depends_on_prompts": "a gradient or a logged number depends on the length of prompts",
        "depends_on_masked_tokens": (
            "a gradient or a logged number depends on whether there are masked tokens"
        ),
        "depends_on_masked_samples": (
            "a gradient or a logged number depends on whether there are samples without active"
            " tokens"
        ),
        "depends_on_reward_level": "a gradient depends on the level or the scale of rewards",
        "depends_on_steps_before": (
            "a gradient or a logged number depends on the steps that were trained before"
        ),
        "sample_unit_sample": f"samples of one rollout are counted separately, {ASSUMED}",
        "sample_unit_rollout": f"samples of one rollout are counted as one, {ASSUMED}",
        "empty_units_counted": f"samples and prompts without active tokens are counted, {ASSUMED}",
        "empty_units_excluded": (
            f"samples and prompts without active tokens are not counted, {ASSUMED}"
        ),
        "denominator_mask_modified": f"denominators do not count rejected tokens, {ASSUMED}",
        "denominator_mask_original": f"denominators count rejected tokens, {ASSUMED}",
        "selected_micro_batch": (
            f"tokens are selected by a comparison within their micro-batch, {ASSUMED}"
        ),
        "selected_step": f"tokens are selected by a comparison over the step, {ASSUMED}",
        "micro_batch_weight_equal": (
            f"micro-batches of different sizes weigh the same in a mean over them, {ASSUMED}"
        ),
        "micro_batch_weight_by_samples": (
            f"micro-batches weigh by their samples in a mean over them, {ASSUMED}"
        ),
        "term_mask_modified": f"a term is averaged over the tokens that are kept, {ASSUMED}",
        "term_mask_original": f"a term is averaged over rejected tokens too, {ASSUMED}",
        "transitions_active": f"returns skip masked tokens, {ASSUMED}",
        "transitions_response": f"returns pass through masked tokens, {ASSUMED}",
        "penalised_active": f"the divergence of masked tokens is not penalised, {ASSUMED}",
        "penalised_response": f"the divergence of masked tokens is penalised too, {ASSUMED}",
        "rewarded_active": f"the reward is at the last token that is trained, {ASSUMED}",
        "rewarded_response": f"the reward is at the last token, masked or not, {ASSUMED}",
        "several_divisors": "tokens of one step are divided by different numbers",
        "tokens_missing": "active tokens weigh nothing",
        "reducer_ignored": "a custom reducer is not used",
        "reducer_rescaled": "the result of a custom reducer is rescaled",
        "masked_values_multiplied": (
            "masked values are multiplied by the mask instead of being selected"
        ),
        "gradient_of_constants": "a gradient flows through what the loss must take as a constant",
        "router_losses_not_divided": (
            "Megatron-Core multiplies router losses by the number of tokens, and nothing divides"
            " them by it"
        ),
        "router_losses_per_token": (
            "with calculate_per_token_loss, router losses of Megatron-Core have another coefficient"
        ),
        "ratios_overflow": "a ratio that overflows is clipped, and makes gradients NaN",
        "masked_values_read": "values of masked tokens change other numbers",
        "masked_values_crash": "a step crashes because of values of masked tokens",
        "never_made": "a batch that the framework itself never produces crashes",
        "another_default": "an option's default is another than documented",
        "not_logged": "a number that this version logs for other steps is missing",
        "unexplained": "no known mistake explains it",
    },
    rank=18,
    kind=Kind.FOUND,
)
known(
    {
        "accepted": "bad input is accepted",
        "fails_later": "bad input passes startup validation, and the run fails later",
        "refused_without_naming": "bad input is refused by an error that does not name it",
    },
    rank=19,
    kind=Kind.RULE,
)
known(
    {
        "refused_by_an_assert": "bad input is refused only by an assert, which python -O removes",
        "refused_what_it_supports": "good input is refused",
        "not_the_same": "two ways to configure the same give different weights",
        "configuration_ignored": "the adapter declares a setting and does not pass it on",
    },
    rank=19,
    kind=Kind.RULE,
)


def commonness(name: str) -> tuple[int, int]:
    """A sort key for names of mistakes, the most common ones first."""
    return MISTAKES[name].rank, [*MISTAKES].index(name)


def doubt(name: str) -> int:
    """A sort key for diagnoses: predicted mistakes, then inferred ones, then unexplained ones."""
    if name in (UNEXPLAINED, "nothing_reported"):
        return 2
    is_count = name in MISTAKES and MISTAKES[name].kind is Kind.COUNT
    return int(is_count or name == INACTIVE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The weights of a step's tokens with a mistake, or the factors on the weights.

    If the mistake is a factor, ``sizes`` are the sizes that the factor may be, by name.
    """

    name: str
    """The name of the mistake, or of the first one if several are possible."""

    weights: NDArray[np.float64]
    """The predicted weights: [tokens]."""

    factors: NDArray[np.float64] | None = None
    """The wrong factors on the weights, [tokens]; None if the factors are right."""

    words: str = ""
    """The mistake in words, with the numbers of this step; empty if `Mistake.says` is enough."""

    sizes: dict[str, float] = field(default_factory=dict)
    causes: Sequence[str] = ()
    """Names of the possible mistakes, if one step cannot distinguish several; else empty."""

    together: tuple[str, ...] = ()
    """Names of further mistakes that are made together with this one."""

    def products(self, term: LossTerm) -> NDArray[np.float64]:
        """Weight · factor of each token of a term: [tokens]."""
        return self.weights * (term.factors if self.factors is None else self.factors)

    order: int = 0
    """The place among the predictions for a term, which are sorted by plausibility."""

    @property
    def mistakes(self) -> list[Mistake]:
        """The possible mistakes of the prediction."""
        return [MISTAKES[name] for name in self.causes or [self.name]]

    @property
    def kind(self) -> Kind:
        """The part of a step that the mistake gets wrong."""
        return self.mistakes[0].kind

    @property
    def says(self) -> str:
        """The mistake in words, as the end of a sentence."""
        return self.words or self.mistakes[0].says


def counting(
    context: StepContext,
    name: str,
    tokens: NDArray[np.float64] | None = None,
    units: NDArray[np.float64] | float | None = None,
    words: str = "",
) -> Prediction:
    """The prediction of a mistake that counts wrong tokens, [N or tokens], or wrong units."""
    return Prediction(name=name, words=words, weights=context.weights(tokens, units))
