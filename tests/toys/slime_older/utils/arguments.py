"""Options from before there were four modes."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from slime import lineage, terms


def get_slime_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add(parser: ArgumentParser) -> ArgumentParser:
        lineage.add_options(parser)
        terms.add_options(parser)
        parser.add_argument("--qkv-format", choices=["thd"], default="thd")
        return parser

    return add


def slime_validate_args(args: Namespace) -> None:
    args.beside_per_token = args.calculate_per_token_loss
    args.loss_aggregation = "token_mean" if args.calculate_per_token_loss else "sample_mean"
