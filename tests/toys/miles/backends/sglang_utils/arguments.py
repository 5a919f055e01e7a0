"""Options of the inference server."""

from argparse import ArgumentParser

from sglang.srt.server_args import ServerArgs


def add_sglang_arguments(parser: ArgumentParser) -> None:
    ServerArgs.add_cli_args(parser)
