"""Requirements of a job on a framework: models, sizes that all steps share, and numbers."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adapters.contract import Option, Unsupported
from adapters.contract.objective import (
    FROM_REWARDS,
    OF_CRITIC,
    OF_GROUPS,
    OF_TERMS,
    OF_VALUES,
    PENALISING,
    Objective,
)
from adapters.contract.recipe import flat

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Settings
    from reference.step import Step

_Seen = TypeVar("_Seen")


def has_kl_term(job: Job) -> bool:
    """Whether the divergence from the reference policy is in the loss."""
    return job.configuration.kl or job.objective in (
        Objective.KL,
        Objective.ADAPTIVE_KL,
        *OF_TERMS,
    )


WITH_CRITIC = frozenset({*OF_CRITIC, *OF_VALUES})
"""Objectives that need a critic."""


def has_critic(job: Job) -> bool:
    """Whether there is a critic, which is trained or tells values."""
    return job.objective in WITH_CRITIC


def has_reference(job: Job) -> bool:
    """Whether there is a reference policy, for a term of the loss or in rewards."""
    return has_kl_term(job) or job.objective in PENALISING


def gives_advantages(job: Job) -> bool:
    """Whether advantages are given, and not the framework's own."""
    return job.objective not in FROM_REWARDS


def trained_model(job: Job, policy: str) -> str:
    """The model whose gradient is read: the ``critic``, or the policy by its name."""
    return "critic" if job.objective in OF_CRITIC else policy


def given_values(batch: ProbedBatch) -> list[NDArray[np.float64]]:
    """A critic's values of response tokens before training, by sample."""
    return batch.values if batch.objective in OF_VALUES else batch.old_values


def micro_batch_size(job: Job, per_rank: int) -> int:
    """The samples of a rank's micro-batch; raises `Unsupported` if some are left over."""
    count = job.layout.micro_batches
    if not isinstance(count, int):
        raise Unsupported(f"no micro-batches by {count}")
    size = max(per_rank // count, 1)
    if per_rank % size:
        raise Unsupported(f"no micro-batches of {size} of a rank's {per_rank} samples")
    return size


def largest_micro_batch(job: Job, samples: int | None = None) -> int:
    """The samples of a micro-batch if those of a step are cut as evenly as they can be.

    ``samples`` is given where a step is filled up with some. Micro-batches that tokens cut have
    one row, or more if they have room.
    """
    count, of_step = job.layout.micro_batches, samples or samples_per_step(job.steps)
    return 1 if count == "tokens" else -(-of_step // (job.layout.dp * int(count)))


def shares(job: Job) -> list[list[NDArray[np.int64]]]:
    """The samples of each step, by number, dealt to data-parallel ranks in equal parts."""
    ends = accumulate((step.size for step in job.steps), initial=0)
    return [np.array_split(np.arange(*of_step), job.layout.dp) for of_step in pairwise(ends)]


def dealt(parts: Iterable[Sequence[NDArray[np.int64]]]) -> NDArray[np.int64]:
    """The samples of a batch in an order that deals each rank its parts, such as `shares`.

    They are those of the first rank, of one step after another, then those of the next.
    """
    return np.concatenate([*chain.from_iterable(zip(*parts, strict=True))])


def last_epoch(seen: Sequence[_Seen], job: Job) -> Sequence[_Seen]:
    """The part of ``seen`` that belongs to the last time a batch was trained on."""
    epochs = 2 if Option.TWO_EPOCHS in job.layout.options else 1
    return seen[len(seen) - len(seen) // epochs :]


def longest(job: Job) -> tuple[int, int]:
    """The tokens of the longest prompt and of the longest response."""
    of_prompts = max(int(step.prompt_lengths.max()) for step in job.steps)
    return of_prompts, max(int(step.response_lengths.max()) for step in job.steps)


def whole_divisor(job: Job, name: str) -> int | None:
    """The job's divisor as a whole number, which an option wants; None if there is none."""
    divisor = job.aggregation.divisor
    if divisor is not None and not float(divisor).is_integer():
        raise Unsupported(f"{name} is an integer, but the divisor is {divisor!r}")
    return None if divisor is None else int(divisor)


def plain_divisor(job: Job) -> float | None:
    """The job's divisor as a user types it, an integer if it is whole; None if there is none."""
    divisor = job.aggregation.divisor
    return int(divisor) if divisor is not None and float(divisor).is_integer() else divisor


def prompts_per_step(steps: Sequence[Step]) -> int:
    """The number of prompt groups of every step; `Unsupported` if they differ."""
    return _common_number((len(np.unique(step.groups)) for step in steps), "prompts in steps")


def samples_per_step(steps: Sequence[Step]) -> int:
    """The number of samples of every step; `Unsupported` if they differ."""
    return _common_number((step.size for step in steps), "samples in steps")


def rollouts_per_step(steps: Sequence[Step]) -> int:
    """The number of rollouts of every step; `Unsupported` if they differ."""
    return _common_number((len(np.unique(step.rollouts)) for step in steps), "rollouts in steps")


def rollouts_per_prompt(steps: Sequence[Step]) -> int:
    """The number of rollouts of every prompt; `Unsupported` if they differ."""
    return _common_number(_rollouts_of_prompts(steps), "rollouts of prompts")


def rollouts_asked_for(job: Job) -> int:
    """The number of rollouts that a user asks for of every prompt.

    Some may be missing where advantages are computed from rewards: they failed or were filtered.
    Otherwise `Unsupported` is raised if prompts differ.
    """
    if gives_advantages(job):
        return rollouts_per_prompt(job.steps)
    return max(_rollouts_of_prompts(job.steps))


def require_one_step(job: Job, why: str) -> None:
    """Raise `Unsupported`, with the reason, if a batch of rollouts has several optimizer steps."""
    if len(job.steps) > 1:
        raise Unsupported(why)


def require_prompts_together(job: Job, why: str) -> None:
    """Raise `Unsupported` if rewards are compared and samples of a prompt are apart."""
    if job.objective in OF_GROUPS and any(
        len(np.unique(step.groups)) <= np.count_nonzero(np.diff(step.groups)) for step in job.steps
    ):
        raise Unsupported(f"no samples of a prompt apart: {why}")


def samples_of_prompt(job: Job, option: str) -> int:
    """The samples of every prompt, which follow one another, where an option has their number.

    Raises `Unsupported` if prompts differ, if samples are apart, or if a rollout has several.
    """
    require_prompts_together(job, f"{option} repeats each prompt")
    if any(len(np.unique(step.rollouts)) < step.size for step in job.steps):
        raise Unsupported(f"no rollouts of several samples: {option} counts samples")
    return rollouts_per_prompt(job.steps)


def _rollouts_of_prompts(steps: Sequence[Step]) -> list[int]:
    return [
        len(np.unique(step.rollouts[step.groups == group]))
        for step in steps
        for group in np.unique(step.groups)
    ]


def token_budget(steps: Sequence[Step], ranks: int) -> int:
    """A token budget of micro-batches: about a third of a data-parallel rank's tokens.

    Ranks then differ in the number of micro-batches, and micro-batches in size. The budget exceeds
    the longest sample by at least a quarter: frameworks do not split samples, and align the numbers
    of micro-batches only if some hold several samples.
    """
    shares = [int((step.prompt_lengths + step.response_lengths).sum()) // ranks for step in steps]
    longest = max(int((step.prompt_lengths + step.response_lengths).max()) for step in steps)
    return max(max(shares) // 3 + 1, longest * 5 // 4)


def rank_budget(job: Job) -> int:
    """That budget, for a job."""
    return token_budget(job.steps, job.layout.dp)


def shared_budget(job: Job) -> int:
    """The same for each of the context-parallel ranks, which add up their budgets."""
    return -(-rank_budget(job) // job.layout.cp)


def longest_prompt(job: Job) -> int:
    """The tokens of the longest prompt."""
    return longest(job)[0]


def longest_response(job: Job) -> int:
    """The tokens of the longest response."""
    return longest(job)[1]


def response_limit(job: Job) -> int:
    """The most tokens that a response may have: no response ends there."""
    return 1 + longest_response(job)


def twice_the_steps(job: Job) -> int:
    """The optimizer steps of two epochs."""
    return 2 * len(job.steps)


def after_the_steps(job: Job) -> int:
    """The number of a step that is not reached."""
    return 1 + len(job.steps)


def half_of_ranks(job: Job) -> int:
    """The ranks of each of two groups."""
    return job.layout.world_size // 2


def step_size(job: Job) -> int:
    """The samples of an optimizer step."""
    return samples_per_step(job.steps)


def _common_number(counts: Iterable[int], what: str) -> int:
    different = sorted(set(counts))
    if len(different) > 1:
        raise Unsupported(f"no different numbers of {what}: {different}")
    return different[0]


@dataclass(frozen=True)
class KnownOptions:
    """Options of a version, by their names.

    ``defaults`` are their values if a user does not set them. ``choices`` are the texts that
    options may have: those that the code compares them with.
    """

    defaults: Mapping[str, object]
    choices: Mapping[str, Collection[str]]

    @classmethod
    def read_fields(cls, choices: Mapping[str, Collection[str]], *kinds: Any) -> KnownOptions:
        """The options of a version that are fields of dataclasses."""
        return cls({one.name: one.default for kind in kinds for one in fields(kind)}, choices)

    def offers(self, settings: Settings) -> bool:
        """Whether the version has these options, with these choices."""
        return settings.keys() <= self.defaults.keys() and all(
            str(settings[name]) in texts for name, texts in self.choices.items() if name in settings
        )

    def options_and_choices(self, names: Iterable[str]) -> set[str]:
        """The names that are options, and all choices as ``name=choice``."""
        choices = {f"{name}={one}" for name, texts in self.choices.items() for one in texts}
        return choices.union(self.defaults.keys() & {*names})


@dataclass(frozen=True)
class CommandLine:
    """Options of a version that are arguments of a parser, by their names as users type them."""

    actions: Mapping[str, Action]

    @classmethod
    def read(cls, parser: ArgumentParser) -> CommandLine:
        """The options of a parser."""
        return cls(parser._option_string_actions)

    def default(self, name: str) -> Any:
        """The value of an option that a user does not set; None if the version lacks it."""
        action = self.actions.get(name)
        return action and action.default

    def names_and_choices(self, names: Iterable[str]) -> Iterator[str]:
        """Yield options, and after each its choices as ``name=choice``."""
        for name in names:
            yield name
            yield from (f"{name}={choice}" for choice in self.actions[name].choices or ())

    def values(self, args: Any) -> dict[str, Any]:
        """The values of all options in parsed arguments."""
        return {
            name: getattr(args, action.dest)
            for name, action in self.actions.items()
            if name.startswith("--") and hasattr(args, action.dest)
        }


def word(name: str, value: object) -> str:
    """An option as typed; a flag if its value is True."""
    return name if value is True else f"{name}={value}"


def field_settings(kind: Any, settings: Settings) -> dict[str, Any]:
    """The settings that are fields of a dataclass."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in settings.items() if name in names}


def make_without_init(kind: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass with values, else its defaults, made without ``__init__``."""
    made = object.__new__(kind)
    for one in fields(kind):
        default = None if one.default is MISSING else one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        vars(made)[one.name] = default
    vars(made).update(values)
    return made


def composed(file: Path, words: Iterable[str], version_base: str | None = None) -> Any:
    """The configuration that hydra composes of a file and of words that override it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(file.parent.absolute()), version_base=version_base):
        return compose(file.stem, overrides=[*words])


def flattened(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """The options of a configuration of OmegaConf by their dotted names, interpolated or not."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=resolve)
    return dict(flat(whole))


def yaml(text: str) -> str:
    """A number, or any other text, as YAML spells it."""
    return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, text)
