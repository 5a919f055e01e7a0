"""A job as slime and miles spell it on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from adapters.contract import Option, Unsupported
from adapters.slime_family.objectives import objective_options
from adapters.toolkit.sizes import rollouts_per_prompt, rollouts_per_step, token_budget
from reference.aggregation import Mode

if TYPE_CHECKING:
    from adapters.contract import Job, Layout


FLAGS = {
    Option.ALLGATHER_CP: "--allgather-cp",
    Option.AVERAGE_IN_COLLECTIVE: "--ddp-average-in-collective",
    Option.BALANCE_DATA: "--balance-data",
    Option.DISTRIBUTED_OPTIMIZER: "--use-distributed-optimizer",
    Option.OVERLAP_GRAD_REDUCE: "--overlap-grad-reduce",
}
"""How the options of layouts are spelt."""

MODEL_SIZES = {
    "ffn_hidden_size": 32,
    "hidden_size": 8,
    "kv_channels": 4,
    "kv_lora_rank": None,
    "num_attention_heads": 2,
    "num_experts": None,
    "num_layers": 1,
    "num_query_groups": 2,
    "q_lora_rank": None,
    "qk_pos_emb_head_dim": None,
    "v_head_dim": None,
    "vocab_size": 64,
}
"""Of some small model: what frameworks weigh samples by when they balance ranks by workload."""


def base_parser() -> argparse.ArgumentParser:
    """Megatron's own command-line options that frameworks build on, with Megatron's defaults.

    `megatron.training`, where they are defined, is not in the megatron-core distribution.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False, conflict_handler="resolve", exit_on_error=False
    )
    for flag in (
        "align-grad-reduce",
        "align-param-gather",
        "calculate-per-token-loss",
        "ddp-average-in-collective",
        "manual-gc",
        "overlap-grad-reduce",
        "overlap-param-gather",
        "use-distributed-optimizer",
    ):
        parser.add_argument(f"--{flag}", action="store_true")
    for name in ("tensor", "pipeline", "context"):
        model = "" if name == "context" else "model-"
        parser.add_argument(f"--{name}-{model}parallel-size", type=int, default=1)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--decoder-seq-length", type=int)
    parser.set_defaults(
        bf16=False,
        check_for_nan_in_loss_and_grad=True,
        fp16=False,
        record_memory_history=False,
        use_pytorch_profiler=False,
        **MODEL_SIZES,
    )
    return parser


def job_options(job: Job, parser: argparse.ArgumentParser) -> list[str]:
    """What of a job no user would say otherwise: all but its settings (`startup.settings`).

    Raises:
        Unsupported: steps or prompts of different sizes, micro-batches of another kind, or a format
            or option that this version lacks.
    """
    return [
        *_batch_options(job),
        *_micro_batch_options(job),
        *_layout_options(job.layout, parser),
        *objective_options(job.objective, parser),
    ]


def options(parser: argparse.ArgumentParser) -> frozenset[Option]:
    """The options of layouts that a framework offers."""
    return frozenset(option for option, flag in FLAGS.items() if _knows(parser, flag))


def train_parallel_config(layout: Layout) -> dict[str, int]:
    """What slime's and miles' trainers tell the rollout side of a layout."""
    return {
        "dp_size": layout.dp,
        "cp_size": layout.cp,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }


def modes(parser: argparse.ArgumentParser) -> frozenset[Mode]:
    """The modes that a framework's options offer."""
    if _knows(parser, "--loss-aggregation"):
        return frozenset(Mode)
    before = {Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN}
    return frozenset(before | {Mode.CONSTANT} if _knows(parser, "--pg-loss-divisor") else before)


def _batch_options(job: Job) -> list[str]:
    rollouts, per_prompt = rollouts_per_step(job.steps), rollouts_per_prompt(job.steps)
    return [
        f"--rollout-batch-size={rollouts * len(job.steps) // per_prompt}",
        f"--n-samples-per-prompt={per_prompt}",
        "--num-rollout=1",
    ]


def _layout_options(layout: Layout, parser: argparse.ArgumentParser) -> list[str]:
    spelt = [
        f"--context-parallel-size={layout.cp}",
        *([f"--tensor-model-parallel-size={layout.tp}"] if layout.tp > 1 else []),
        *(FLAGS[option] for option in layout.options),
    ]
    if _knows(parser, "--qkv-format"):
        return [*spelt, f"--qkv-format={layout.format}"]
    if layout.format != "thd":
        raise Unsupported(f"no format {layout.format}")
    return spelt


def _micro_batch_options(job: Job) -> list[str]:
    layout = job.layout
    if isinstance(layout.micro_batches, int):
        return [f"--micro-batch-size={_micro_batch_size(job, layout.micro_batches)}"]
    if layout.micro_batches == "tokens":
        # A micro-batch may hold the budgets of all ranks that have a slice of it.
        budget = -(-token_budget(job.steps, layout.dp) // layout.cp)
        return ["--use-dynamic-batch-size", f"--max-tokens-per-gpu={budget}"]
    raise Unsupported(f"no micro-batches by {layout.micro_batches}")


def _micro_batch_size(job: Job, micro_batches: int) -> int:
    """The size of which there are just so many micro-batches on every rank, in every step."""
    wanted = job.layout.dp * micro_batches
    for size in range(1, max(step.size for step in job.steps) + 1):
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no size of micro-batches that makes {wanted} of the samples of every step")


def _knows(parser: argparse.ArgumentParser, flag: str) -> bool:
    return flag in parser._option_string_actions
