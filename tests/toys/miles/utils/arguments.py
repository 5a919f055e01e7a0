"""Options."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from miles import lineage
from miles.backends.sglang_utils.arguments import add_sglang_arguments


def get_miles_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add(parser: ArgumentParser) -> ArgumentParser:
        add_sglang_arguments(parser)
        lineage.add_options(parser)
        lineage.add_aggregation_options(parser)
        parser.add_argument("--qkv-format", choices=["thd", "bshd"], default="thd")
        return parser

    return add


def miles_validate_args(args: Namespace) -> None:
    if args.qkv_format == "bshd" and args.use_dynamic_batch_size:
        raise ValueError("rows of one width leave no room for a budget of tokens")
    lineage.validate(args)
