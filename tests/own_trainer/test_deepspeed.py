"""Trainers with an engine of DeepSpeed, whose optimizer holds copies of parts of the parameters."""

from functools import partial

import pytest

from tests.own_trainer.telling import bug_line, causes, first_suspect, told, trainers
from tests.own_trainer.trainers import rows

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")

pytestmark = pytest.mark.processes

BF16 = {"bf16": {"enabled": True}}


def loop(loss_conformance, trainer_class, watched=lambda engine: engine, **config):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2)):
        dataset = [rows.row(*p) for p in zip(step.samples, step.advantages(), strict=True)]
        size = len(dataset) // step.micro_batches
        trainer = trainer_class(step.model(), step.micro_batches, size, config)
        with step.watch(watched(trainer.engine)):
            trainer.train(dataset)


def zero(stage):
    """The configuration of a ZeRO stage with small buffers, as the defaults take gigabytes."""
    sizes = dict.fromkeys(["reduce_bucket_size", "allgather_bucket_size"], 10_000)
    return {"zero_optimization": {"stage": stage, **sizes}}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_right_trainer_conforms(loss_conformance, stage):
    loop(loss_conformance, trainers("zero").Trainer, **zero(stage))


@pytest.mark.parametrize(
    ("watched", "config"),
    [
        (lambda engine: engine.optimizer, zero(0)),
        (lambda engine: engine.optimizer, zero(2)),
        (lambda _: None, zero(3)),
        (lambda engine: engine, {**zero(1), **BF16}),
        (lambda engine: engine, {**zero(3), **BF16}),
    ],
)
def test_engines_are_watched_in_each_way(loss_conformance, watched, config):
    loop(loss_conformance, trainers("zero").Trainer, watched, **config)


@pytest.mark.parametrize(
    ("bug", "stage", "name"),
    [
        ("AveragedTwice", 0, "divided_by_dp"),
        ("AveragedTwice", 2, "divided_by_dp"),
        ("MeanOfMeans", 3, "denominators_per_micro_batch"),
    ],
)
def test_a_mistake_is_named_with_its_line(loss_conformance, bug, stage, name):
    wrong = getattr(trainers("zero"), bug)

    words = told(loss_conformance, partial(loop, **zero(stage)), wrong)

    assert causes(words) == [name]
    assert first_suspect(words) == ("zero", bug_line(wrong))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**zero(0), **BF16}, "DeepSpeed's is read with ZeRO 1 to 3"),
        ({**zero(2), "gradient_clipping": 1e-6}, "gradients are clipped to a norm of 1e-06"),
    ],
)
def test_one_line_says_what_to_change(loss_conformance, config, words):
    told_of = told(loss_conformance, partial(loop, **config), trainers("zero").Trainer)

    assert words in told_of
    assert len(told_of.splitlines()) == 1
