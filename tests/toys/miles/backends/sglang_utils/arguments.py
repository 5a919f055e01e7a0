"""Options of the inference server."""

from argparse import ArgumentParser, Namespace

from sglang.srt.server_args import ServerArgs


def add_sglang_arguments(parser: ArgumentParser) -> None:
    ServerArgs.add_cli_args(parser)


def sglang_validate_args(args: Namespace) -> None:
    ServerArgs.from_cli_args(args)
