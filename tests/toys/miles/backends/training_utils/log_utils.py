"""What every engine logs of a step."""

from argparse import Namespace

from miles import lineage
from miles.utils.tracking_utils import tracking


def aggregate_train_losses(losses_reduced: list[lineage.Data]) -> dict[str, float]:
    own = "normalizers" in losses_reduced[0]
    assert own or len(losses_reduced[0]["values"]) > 1
    return lineage.log_of(losses_reduced)


def log_rollout_data(rollout_id: int, args: Namespace, rollout_data: lineage.Data) -> None:
    metrics = lineage.rollout_metrics(rollout_data)
    tracking.log(args, metrics, step_key="rollout/step")


def log_train_step(args: Namespace, metrics: lineage.Data) -> None:
    tracking.log(args, metrics, step_key="train/step")
