"""Reads a recipe of slime or miles: the words of a command line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import recipe
from adapters.engines.shells import PARALLEL
from adapters.toolkit.settings import CommandLine

if TYPE_CHECKING:
    from adapters.slime_family.adapter import LineageAdapter

RANKS = ("--actor-num-nodes", "--actor-num-gpus-per-node")
CHECKPOINTS = {"load", "ref_load", "hf_checkpoint", "critic_load", "opd_teacher_load"}
"""Options of folders that validation checks, but that may be missing on this machine."""

BACKEND = "--train-backend"

GENERATING = ("--custom-generate-function-path", "--rollout-function-path")
"""Options that name users' code, which may return another number of samples of a prompt than
configured."""


def read(adapter: LineageAdapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with the framework's own parser; raises `RecipeRefused`.

    No installed package has Megatron's own parser or SGLang's, so their options cannot be
    distinguished from misspelt ones.
    """
    recipe.require_words(typed, adapter.framework.title)
    with recipe.refusals_of_recipes():
        options = CommandLine.read(adapter.parser)
        args, unread = adapter.parser.parse_known_args([*typed.words])
        values = options.values(args)
        engine = "fsdp" if values.get(BACKEND) == "fsdp" else "megatron"
        shared = PARALLEL if engine == "megatron" else PARALLEL[:1]
        nodes, per_node = recipe.sizes_in(values, *RANKS)
        grid = recipe.grid_of(typed.ranks or nodes * per_node, *recipe.sizes_in(values, *shared))
        for name in CHECKPOINTS & vars(args).keys():
            setattr(args, name, getattr(args, name) and ".")
        args.colocate = False  # validated with server options, and does not affect a step
        adapter.validated(args, replace(grid, format="thd"))
        values = options.values(args)
    defaults = {name: options.default(name) for name in options.actions}
    per_prompt = int(values["--n-samples-per-prompt"])
    of_batch = int(values["--rollout-batch-size"]) * per_prompt
    samples = int(values["--global-batch-size"] or of_batch)
    by_tokens = bool(values["--use-dynamic-batch-size"])
    [rows] = recipe.sizes_in(values, "--micro-batch-size")
    return recipe.Recipe.cut(
        grid,
        engine=engine,
        values=values,
        defaults=defaults,
        samples=samples,
        rows=None if by_tokens else rows,
        is_packed=values.get("--qkv-format") != "bshd",
        options=recipe.options_of(adapter.record, values, defaults),
        per_prompt=per_prompt,
        steps=max(of_batch // samples, 1),
        longest=values.get("--rollout-max-response-len"),
        sizes=frozenset({*PARALLEL, *RANKS}),
        unlike=frozenset()
        if any(values.get(name) != defaults.get(name) for name in GENERATING)
        else frozenset({recipe.UNEVEN_GROUPS}),
        unread=frozenset(word.partition("=")[0] for word in unread if word.startswith("--")),
    )
