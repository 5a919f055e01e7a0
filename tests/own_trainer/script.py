"""A script that checks a trainer without pytest; torchrun starts several ranks of it."""

import sys

import conformance
from tests.own_trainer.loops import ddp_step
from tests.own_trainer.trainers import ddp

with conformance.check(mode="token_mean", micro_batches=(1, 2), cases=["uneven_lengths"]) as steps:
    for step in steps:
        ddp_step(step, getattr(ddp, sys.argv[1]))

sys.exit(steps.is_wrong)
