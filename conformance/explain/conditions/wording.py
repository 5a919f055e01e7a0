"""Facts of conditions and checks in words that need no knowledge of this project.

If a user chooses a fact by an option, the fact is worded as the option that the user types.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from adapters.contract import Option
from conformance.findings.verdict import Check
from conformance.plan.checks import ALL_SPECS, CHECK_SPECS, LAWFUL
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLUGS = frozenset(one.slug for one in CHECK_SPECS)

OBJECTIVES = {spec.slug: spec.objective for spec in ALL_SPECS}

SPELLINGS = {
    **{
        name: name.upper()
        for name in ("cispo", "dppo", "dro", "gae", "gpg", "gspo", "kl", "m2po", "opsm", "sapo")
    },
    "icepop": "IcePop",
    "reinforce": "REINFORCE",
    "sft": "supervised",
    "tis": "truncated importance sampling",
    "tv": "TV",
}
"""Words in names, with their spelling in sentences."""


def counted(number: int, what: str, plural: str = "s") -> str:
    """Returns a number with what it counts, such as ``1 sample`` or ``2 micro-batches``."""
    return f"{number:,} {what}{'' if number == 1 else plural}"


def spelt(name: str) -> str:
    """Returns the name of a loss, number or kind of advantages as spelt in sentences."""
    spelt = " ".join(SPELLINGS.get(word, word) for word in name.split("_"))
    return spelt.replace(" pp", "++").replace("penalised GAE", "KL-penalised GAE")


PARALLELISM = {
    "cp": ["context parallelism"],
    "tp": ["tensor parallelism"],
    "pp": ["pipeline parallelism"],
}
"""The kinds of parallelism in words, if no adapter's record names their options."""

LOSSES = (Check.OFF_POLICY, Check.ADVANTAGES, Check.OTHER_LOSSES)
"""Checks of policy losses, advantages and other losses, which a user chooses by options."""

SUBJECTS = {
    "weights": "the gradient of the policy loss",
    "metric": "the logged policy loss",
    "rejection": "the gradient after rejection sampling",
    "rejection.metric": "the logged share of rejected tokens",
    "rejection.off_policy": "the gradient after rejection sampling where ratios are not 1",
    "rejection.combined": (
        "the gradient of the loss with entropy and KL terms after rejection sampling"
    ),
    "auxiliary.combined": "the gradient of the loss with entropy and KL terms",
    "metric.loss": "the logged loss with entropy and KL terms",
    "sharding": "the distribution of samples over data-parallel ranks",
    "logging": "the logs of micro-batches",
    "off_policy": "the gradient of the policy loss where ratios are not 1",
}
"""The subject of a check in words, by its slug, where `subject` has no pattern for it."""

LAWS = {spec.slug: (spec.law.says, spec.objective) for spec in LAWFUL if spec.law is not None}
"""For each check of a law, the change in words, and the objective."""

LAYOUTS = {
    "where dp > 1": "with several data-parallel ranks",
    "where dp = 1": "with one data-parallel rank",
    **{
        f"where {part} {size}": f"{word} {name}"
        for part, [name] in PARALLELISM.items()
        for size, word in (("> 1", "with"), ("= 1", "without"))
    },
    "with micro-batches uneven": "with uneven micro-batches",
    "with micro-batches by tokens": "with micro-batches cut by their number of tokens",
    f"with {Option.PARTIAL_WINDOW}": "where an accumulation window is incomplete",
    f"without {Option.PARTIAL_WINDOW}": "where all accumulation windows are complete",
    f"with {Option.SHARED_GENERATION}": "where one generation is cut into several optimizer steps",
    f"without {Option.SHARED_GENERATION}": "where no two optimizer steps share a generation",
    f"with {Option.SPLIT_GENERATION}": "where every micro-batch is a generation of its own",
    f"without {Option.SPLIT_GENERATION}": "where a generation has a whole optimizer step",
    f"with {Option.SHORT_BATCH}": "after a batch that fills no optimizer step",
    f"without {Option.SHORT_BATCH}": "where every batch fills an optimizer step",
    f"with {Option.TWO_EPOCHS}": "in a second epoch over a batch",
    f"without {Option.TWO_EPOCHS}": "in the first epoch over a batch",
}
"""Facts of layouts in plain words."""

PARTS = {
    "with packed rows": "thd",
    "with padded rows": "bshd",
    "with several micro-batches": "accumulated",
    "with micro-batches by tokens": "mbtokens",
    "with micro-batches uneven": "mbuneven",
    **{f"where {part} > 1": part for part in ("dp", *PARALLELISM)},
}
"""For each fact of layouts, the part of a layout that chooses it."""

FORMATS = ("thd", "bshd")

TERMS = {
    "policy_loss": "policy loss",
    "kl": "KL term",
    "entropy": "entropy term",
    "value_loss": "value loss",
}


@cache
def is_choice(fact: str) -> bool:
    """Whether a fact is about options, layouts or batches, rather than about a checked number."""
    name = fact.rpartition(" ")[2]
    is_chosen = name in (*Mode,) or _is_of_loss(name)
    return is_chosen or fact.startswith(("with", "where ", "after "))


def _is_of_loss(slug: str) -> bool:
    """Whether a check is of a policy loss, of advantages or of another loss."""
    return slug in SLUGS and slug.partition(".")[0] in LOSSES


def said(fact: str, chosen_by: Mapping[str, Sequence[str]]) -> str:
    """Returns a fact in words; ``chosen_by`` has the options that choose parts of layouts."""
    if fact in LAYOUTS:
        return LAYOUTS[fact]
    start, _, name = fact.rpartition(" ")
    part = _part(fact)
    if typed := _typed(part, chosen_by):
        return f"{'without' if start in ('without', 'except in') else 'with'} {typed}"
    if start in ("in", "except in") and name in {*SLUGS, *SUBJECTS, *LAWS}:
        return f"{start} {subject(name)}"
    if fact.startswith(("with ", "without ")):
        return fact.replace("_", " ")
    for term, words in TERMS.items():
        fact = fact.replace(f"the {term} term", f"the {words}")
    return fact.replace("the policy_loss and kl terms of the loss", "the policy loss and KL term")


def options_of(fact: str, chosen_by: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Returns the options that a user types to get a fact; empty if no option is needed."""
    part = _part(fact)
    return () if fact.startswith("without ") else chosen_by.get(part, PARALLELISM.get(part, ()))


def _part(fact: str) -> str:
    """The mode, objective or part of a layout that a fact is about; else the fact's last word."""
    name = fact.rpartition(" ")[2]
    return PARTS.get(fact) or (OBJECTIVES[name] if _is_of_loss(name) else name)


def _typed(part: str, chosen_by: Mapping[str, Sequence[str]]) -> str:
    """The options of a part, if they choose nothing else; otherwise empty.

    Modes, layout options and formats always have their options. A policy loss or estimator has no
    options here if another one needs the same options, since these then do not identify it.
    """
    options = chosen_by.get(part, ())
    others = (chosen for other, chosen in chosen_by.items() if other != part)
    is_of_others = any({*options} <= {*chosen} for chosen in others)
    is_known = part in (*Mode, *Option, *FORMATS)
    return "" if is_of_others and not is_known else " ".join(options)


def subject(slug: str) -> str:
    """Returns the gradient or number that a check looks at, in words."""
    check, _, name = slug.partition(".")
    named = spelt(name)
    if slug in LAWS:
        says, objective = LAWS[slug]
        return f"the same step when {says} ({spelt(objective)})"
    patterns: dict[str, str] = {
        Check.AUXILIARY: f"the gradient of the {named} term",
        Check.METRIC: f"the logged {named}",
        Check.REJECTION: f"the logged {named} after rejection sampling",
        Check.ROLLOUTS: f"the logged mean {named} of the rollouts",
        Check.OTHER_LOSSES: f"the gradient of the {named} loss",
        Check.OFF_POLICY: f"the gradient of the {named} loss where ratios are not 1",
        Check.ADVANTAGES: f"the gradient of the policy loss with {named} advantages",
    }
    return SUBJECTS.get(slug) or patterns.get(check) or f"{check}: {named}"
