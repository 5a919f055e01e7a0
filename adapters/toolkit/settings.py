"""A job's requirements on a framework: models, sizes that all steps share, and option values."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adapters.contract import Job, Objective, Option, Settings, Unsupported, objective
from adapters.contract.recipe import flat

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Integers, Values

_Seen = TypeVar("_Seen")


def has_kl_term(job: Job) -> bool:
    """Whether the divergence from the reference policy is in the loss."""
    return job.configuration.kl or job.objective in (
        Objective.KL,
        Objective.ADAPTIVE_KL,
        *objective.OF_TERMS,
    )


WITH_CRITIC = frozenset({*objective.OF_CRITIC, *objective.OF_VALUES})
"""Objectives that need a critic."""


def has_critic(job: Job) -> bool:
    """Whether there is a critic, which is trained or gives values."""
    return job.objective in WITH_CRITIC


def has_reference(job: Job) -> bool:
    """Whether there is a reference policy, for a term of the loss or in rewards."""
    return has_kl_term(job) or job.objective in objective.PENALISING


def gives_advantages(job: Job) -> bool:
    """Whether advantages are given instead of computed by the framework."""
    return job.objective not in objective.FROM_REWARDS


def trained_model(job: Job, policy: str) -> str:
    """The model whose gradient is read: the ``critic``, or the policy by the given name."""
    return "critic" if job.objective in objective.OF_CRITIC else policy


def given_values(batch: ProbedBatch) -> list[Values]:
    """A critic's values of response tokens before training, by sample."""
    return batch.values if batch.objective in objective.OF_VALUES else batch.old_values


def doubled_returns(batch: ProbedBatch) -> list[Values]:
    """Returns by sample, for frameworks whose critic loss is half of the squared error."""
    return [2 * returns for returns in batch.returns]


def largest_micro_batch(job: Job, samples: int | None = None) -> int:
    """The largest number of samples of a micro-batch if a step is cut as evenly as possible.

    ``samples`` is the number of samples of a step including padding samples, if there are any. The
    result is 1 for micro-batches cut by tokens, which have at least one row.
    """
    count, of_step = job.layout.micro_batches, samples or samples_per_step(job)
    return 1 if count == "tokens" else -(-of_step // (job.layout.dp * int(count)))


def shares(job: Job) -> list[list[Integers]]:
    """The sample indices of each step, divided evenly among data-parallel ranks."""
    ends = accumulate((step.size for step in job.steps), initial=0)
    return [np.array_split(np.arange(*of_step), job.layout.dp) for of_step in pairwise(ends)]


def dealt(parts: Iterable[Sequence[Integers]]) -> Integers:
    """The samples of a batch, in an order that gives each rank its ``parts``, such as `shares`.

    The first rank's samples of all steps come first, then the second rank's, and so on.
    """
    return np.concatenate([*chain.from_iterable(zip(*parts, strict=True))])


def last_epoch(seen: Sequence[_Seen], job: Job) -> Sequence[_Seen]:
    """The part of ``seen`` that belongs to the last epoch on a batch."""
    epochs = 2 if Option.TWO_EPOCHS in job.layout.options else 1
    return seen[len(seen) - len(seen) // epochs :]


def whole_divisor(job: Job, name: str) -> int | None:
    """The job's divisor as the integer that an option requires; None if there is no divisor."""
    divisor = job.aggregation.divisor
    if divisor is not None and not float(divisor).is_integer():
        raise Unsupported(f"{name} is an integer, but the divisor is {divisor!r}")
    return None if divisor is None else int(divisor)


def plain_divisor(job: Job) -> float | None:
    """The job's divisor as a user types it, an integer if whole; None if there is no divisor."""
    divisor = job.aggregation.divisor
    return int(divisor) if divisor is not None and float(divisor).is_integer() else divisor


def prompts_per_step(job: Job) -> int:
    """The number of prompt groups of every step; raises `Unsupported` if steps differ."""
    return _common_number((len(np.unique(step.groups)) for step in job.steps), "prompts in steps")


def samples_per_step(job: Job) -> int:
    """The number of samples of every step; raises `Unsupported` if steps differ."""
    return _common_number((step.size for step in job.steps), "samples in steps")


def rollouts_per_step(job: Job) -> int:
    """The number of rollouts of every step; raises `Unsupported` if steps differ."""
    counts = (len(np.unique(step.rollouts)) for step in job.steps)
    return _common_number(counts, "rollouts in steps")


def rollouts_per_prompt(job: Job) -> int:
    """The number of rollouts of every prompt; raises `Unsupported` if prompts differ."""
    return _common_number(rollouts_of_prompts(job), "rollouts of prompts")


def rollouts_asked_for(job: Job) -> int:
    """The number of rollouts that a user requests for each prompt.

    Where advantages are computed from rewards, a prompt may have fewer rollouts, because some
    failed or were filtered. Otherwise `Unsupported` is raised if prompts differ.
    """
    if gives_advantages(job):
        return rollouts_per_prompt(job)
    return max(rollouts_of_prompts(job))


def require_one_step(job: Job, why: str) -> bool:
    """True; raises `Unsupported`, with the reason, if a batch has several optimizer steps."""
    if len(job.steps) > 1:
        raise Unsupported(why)
    return True


def require_prompts_together(job: Job, why: str) -> None:
    """Raise `Unsupported` if rewards are compared and samples of a prompt are not adjacent."""
    if job.objective in objective.OF_GROUPS and any(
        len(np.unique(step.groups)) <= np.count_nonzero(np.diff(step.groups)) for step in job.steps
    ):
        raise Unsupported(f"no samples of a prompt apart: {why}")


def samples_of_prompt(job: Job, option: str) -> int:
    """The number of samples of every prompt, for an option; samples of a prompt must be adjacent.

    Raises `Unsupported` if prompts differ, if samples are not adjacent, or if a rollout has several
    samples.
    """
    require_prompts_together(job, f"{option} repeats each prompt")
    if any(len(np.unique(step.rollouts)) < step.size for step in job.steps):
        raise Unsupported(f"no rollouts of several samples: {option} counts samples")
    return rollouts_per_prompt(job)


def rollouts_of_prompts(job: Job) -> list[int]:
    """The number of rollouts of each prompt."""
    return [
        len(np.unique(step.rollouts[step.groups == group]))
        for step in job.steps
        for group in np.unique(step.groups)
    ]


def rank_budget(job: Job) -> int:
    """A token budget of micro-batches: about a third of a data-parallel rank's tokens.

    Ranks then differ in their number of micro-batches, and micro-batches differ in size. The budget
    exceeds the longest sample by at least a quarter: frameworks do not split samples, and can give
    ranks equal numbers of micro-batches only if some micro-batches hold several samples.
    """
    lengths = [step.prompt_lengths + step.response_lengths for step in job.steps]
    share = max(int(of_step.sum()) // job.layout.dp for of_step in lengths)
    return max(share // 3 + 1, max(int(of_step.max()) for of_step in lengths) * 5 // 4)


def shared_budget(job: Job) -> int:
    """The budget of each context-parallel rank, for frameworks that sum these ranks' budgets."""
    return -(-rank_budget(job) // job.layout.cp)


def longest_prompt(job: Job) -> int:
    """The length of the longest prompt in tokens."""
    return max(int(step.prompt_lengths.max()) for step in job.steps)


def longest_response(job: Job) -> int:
    """The length of the longest response in tokens."""
    return max(int(step.response_lengths.max()) for step in job.steps)


def response_limit(job: Job) -> int:
    """The maximum response length in tokens; all responses are shorter."""
    return 1 + longest_response(job)


def twice_the_steps(job: Job) -> int:
    """The number of optimizer steps of two epochs."""
    return 2 * len(job.steps)


def after_the_steps(job: Job) -> int:
    """The number of a step after the last one, which is never reached."""
    return 1 + len(job.steps)


def half_of_ranks(job: Job) -> int:
    """The number of ranks in each of two equal groups."""
    return job.layout.world_size // 2


def _common_number(counts: Iterable[int], what: str) -> int:
    different = sorted(set(counts))
    if len(different) > 1:
        raise Unsupported(f"no different numbers of {what}: {different}")
    return different[0]


@dataclass(frozen=True)
class KnownOptions:
    """Options of a version, by their names.

    ``defaults`` has the options' default values. ``choices`` has the strings that an option may be
    set to, found as the strings with which the code compares the option.
    """

    defaults: Mapping[str, object]
    choices: Mapping[str, Collection[str]]

    @classmethod
    def read_fields(cls, choices: Mapping[str, Collection[str]], *kinds: Any) -> KnownOptions:
        """Read a version's options from the fields of dataclasses."""
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
        """Read the options of a parser."""
        return cls(parser._option_string_actions)

    def default(self, name: str) -> Any:
        """The default value of an option; None if the version lacks the option."""
        action = self.actions.get(name)
        return action and action.default

    def names_and_choices(self, names: Iterable[str]) -> Iterator[str]:
        """Yield each option, followed by its choices as ``name=choice``."""
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
    """The settings whose names are fields of a dataclass."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in settings.items() if name in names}


def make_without_init(kind: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass instance with the given values or defaults, made without calling ``__init__``."""
    made = object.__new__(kind)
    for one in fields(kind):
        default = None if one.default is MISSING else one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        vars(made)[one.name] = default
    vars(made).update(values)
    return made


def composed(file: Path, words: Iterable[str], version_base: str | None = None) -> Any:
    """The configuration that hydra composes from a file and overrides."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(file.parent.absolute()), version_base=version_base):
        return compose(file.stem, overrides=[*words])


def flattened(config: Any, section: str = "", *, resolve: bool = False) -> dict[str, Any]:
    """The options of an OmegaConf configuration by dotted name; ``resolve`` interpolates values.

    ``section`` is the beginning that is left out of the names of options below it.
    """
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=resolve)
    return {path.removeprefix(section): value for path, value in flat(whole)}


def yaml(text: str) -> str:
    """A value, such as a number or a string, in YAML notation."""
    return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, text)
