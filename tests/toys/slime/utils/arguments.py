"""Options."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from slime import lineage, terms
from slime.backends.sglang_utils.arguments import add_sglang_arguments


def get_slime_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add(parser: ArgumentParser) -> ArgumentParser:
        add_sglang_arguments(parser)
        lineage.add_options(parser)
        lineage.add_aggregation_options(parser)
        terms.add_options(parser)
        return parser

    return add


def slime_validate_args(args: Namespace) -> None:
    lineage.validate(args)
    terms.validate(args)
