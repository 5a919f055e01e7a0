"""The log of metrics."""

from argparse import Namespace
from typing import Any


def log(args: Namespace, metrics: dict[str, Any], step_key: str) -> None:
    raise RuntimeError("no tracker is at hand")
