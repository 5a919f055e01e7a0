"""Options from before there were four modes, with a divisor of its own for one of them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from miles import lineage


def get_miles_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add(parser: ArgumentParser) -> ArgumentParser:
        lineage.add_options(parser)
        parser.add_argument("--pg-loss-divisor", type=float)
        parser.add_argument("--qkv-format", choices=["thd"], default="thd")
        return parser

    return add


def miles_validate_args(args: Namespace) -> None:
    args.beside_per_token = args.calculate_per_token_loss
    if args.calculate_per_token_loss and args.pg_loss_divisor is not None:
        raise ValueError("a mean over tokens takes no divisor")
