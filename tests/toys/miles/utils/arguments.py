"""Options of both engines."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from miles import lineage, terms
from miles.backends.sglang_utils.arguments import add_sglang_arguments, sglang_validate_args


def get_miles_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add(parser: ArgumentParser) -> ArgumentParser:
        add_sglang_arguments(parser)
        lineage.add_options(parser)
        lineage.add_aggregation_options(parser)
        terms.add_options(parser)
        parser.add_argument("--qkv-format", choices=["thd", "bshd"], default="thd")
        return parser

    return add


def miles_validate_args(args: Namespace) -> None:
    if args.qkv_format == "bshd" and args.use_dynamic_batch_size:
        raise ValueError("rows of one width leave no room for a budget of tokens")
    lineage.validate(args)
    terms.validate(args)


def parse_args() -> Namespace:
    """Options of the FSDP engine, which has data parallelism alone."""
    parser = get_miles_extra_args_provider()(ArgumentParser())
    parser.add_argument("--train-backend", choices=["fsdp"], required=True)
    for flag in ("debug-train-only", "ci-test", "ci-disable-logprobs-checker", "fsdp-cpu-offload"):
        parser.add_argument(f"--{flag}", action="store_true")
    for name in ("context-parallel-size", "actor-num-gpus-per-node"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("lr", "clip-grad", "weight-decay"):
        parser.add_argument(f"--{name}", type=float, default=1.0)
    args = parser.parse_args()
    if args.context_parallel_size > 1 or args.qkv_format != "thd":
        raise ValueError("FSDP here is for whole packed samples")
    sglang_validate_args(args)
    miles_validate_args(args)
    return args
