"""TRL's trainers on Accelerate's engines."""

from __future__ import annotations

from adapters.trl.adapter import TrlAdapter


class TrlDdpAdapter(TrlAdapter):
    """`GRPOTrainer` with DistributedDataParallel."""

    engine = "ddp"
