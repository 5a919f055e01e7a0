"""Profiles of a training: the toy makes none."""

from argparse import Namespace


class TrainProfiler:
    def __init__(self, args: Namespace) -> None:
        """Nothing is asked for."""
