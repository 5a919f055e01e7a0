"""Reads a recipe of slime or miles: the words of a command line."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from adapters.contract.layout import Layout
from adapters.contract.recipe import (
    UNEVEN_GROUPS,
    Recipe,
    options_of,
    refusals_of_recipes,
    require_words,
)

if TYPE_CHECKING:
    from adapters.contract.recipe import Typed
    from adapters.slime_family.adapter import LineageAdapter

PARALLEL = (
    "--context-parallel-size",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
)
RANKS = ("--actor-num-nodes", "--actor-num-gpus-per-node")
CHECKPOINTS = {"load", "ref_load", "hf_checkpoint", "critic_load", "opd_teacher_load"}
"""Folders that validation looks for, and that need not be on this machine."""

BACKEND = "--train-backend"

GENERATING = ("--custom-generate-function-path", "--rollout-function-path")
"""A user's code that may return another number of samples of a prompt than configured."""


def read(adapter: LineageAdapter, typed: Typed) -> Recipe:
    """What the framework makes of a recipe; raises `RecipeRefused`.

    Megatron's own parser and SGLang's are in no package that is installed, so that their options
    cannot be told from misspelt ones.
    """
    require_words(typed, adapter.framework.title)
    with refusals_of_recipes():
        args, unread = adapter.parser.parse_known_args([*typed.words])
        values = _values(adapter, args)
        cp, tp, pp = (int(values.get(name) or 1) for name in PARALLEL)
        if values.get(BACKEND) == "fsdp":
            tp = pp = 1
        nodes, per_node = (int(values.get(name) or 1) for name in RANKS)
        dp = max((typed.ranks or nodes * per_node) // (cp * tp * pp), 1)
        for name in CHECKPOINTS & vars(args).keys():
            setattr(args, name, getattr(args, name) and ".")
        args.colocate = False  # which is checked by options of servers, and changes no step
        adapter.validated(args, Layout(dp=dp, cp=cp, tp=tp, pp=pp, format="thd"))
        values = _values(adapter, args)
    options = adapter.parser._option_string_actions.items()
    defaults = {name: one.default for name, one in options}
    per_prompt = int(values["--n-samples-per-prompt"])
    of_batch = int(values["--rollout-batch-size"]) * per_prompt
    samples = int(values["--global-batch-size"] or of_batch)
    by_tokens = bool(values["--use-dynamic-batch-size"])
    rows = int(values.get("--micro-batch-size") or 1)
    return Recipe(
        engine="fsdp" if values.get(BACKEND) == "fsdp" else "megatron",
        values=values,
        defaults=defaults,
        layout=Layout(
            dp=dp,
            cp=cp,
            tp=tp,
            pp=pp,
            micro_batches="tokens" if by_tokens else max(samples // dp // rows, 1),
            format="bshd" if values.get("--qkv-format") == "bshd" else "thd",
            options=options_of(adapter.record, values, defaults),
        ),
        samples=samples,
        per_prompt=per_prompt,
        steps=max(of_batch // samples, 1),
        longest=values.get("--rollout-max-response-len"),
        sizes=frozenset({*PARALLEL, *RANKS}),
        unlike=frozenset()
        if any(values.get(name) != defaults.get(name) for name in GENERATING)
        else frozenset({UNEVEN_GROUPS}),
        unread=frozenset(word.partition("=")[0] for word in unread if word.startswith("--")),
    )


def _values(adapter: LineageAdapter, args: Any) -> dict[str, Any]:
    """All options by their names on the command line."""
    return {
        name: deepcopy(getattr(args, action.dest))
        for name, action in adapter.parser._option_string_actions.items()
        if name.startswith("--") and hasattr(args, action.dest)
    }
