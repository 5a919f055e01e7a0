"""What every engine logs of a step."""

from argparse import Namespace

from miles import lineage
from miles.utils.tracking_utils import tracking


def log_train_step(args: Namespace, metrics: lineage.Data) -> None:
    tracking.log(args, metrics, step_key="train/step")
