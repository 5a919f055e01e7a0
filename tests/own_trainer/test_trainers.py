"""Six trainers as people write them, and the five mistakes that they make most often."""

import re

import pytest

from tests.own_trainer import loops
from tests.own_trainer.telling import bug_line, trainers

pytestmark = pytest.mark.processes

TRAINERS = {
    "plain": (loops.plain_loop, "GRPOTrainer"),
    "ddp": (loops.ddp_loop, "Trainer"),
    "fsdp": (loops.fsdp_loop, "Policy"),
    "hugging_face": (loops.hugging_face_loop, "GRPOTrainer"),
    "lightning": (loops.lightning_loop, "GRPOModule"),
    "packed": (loops.packed_loop, "PackedTrainer"),
}

NAMES = {
    "MeanOfMeans": "denominators_per_micro_batch",
    "LocalCount": "denominators_per_rank",
    "MaskForgotten": "inactive_tokens_weigh",
    "PaddedWidth": "padded_width_as_divisor",
    "DividedTwice": "divided_by_micro_batches",
}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_right_trainer_conforms(loss_conformance, name):
    loop, right = TRAINERS[name]

    loop(loss_conformance, getattr(trainers(name), right))


ELSEWHERE = {("ddp", "MaskForgotten"), ("lightning", "MaskForgotten")}
"""Trainers and mistakes whose line is not suspected: other lines are."""

MISTAKES = [
    pytest.param(name, bug, marks=[] if (row + column) % 5 == 3 else [pytest.mark.thorough])
    for row, name in enumerate(TRAINERS)
    for column, bug in enumerate(NAMES)
]
"""Each mistake in each trainer. Ordinary runs test a fifth of these pairs, which include all."""


@pytest.mark.parametrize(("name", "bug"), MISTAKES)
def test_a_mistake_is_named_with_its_line(loss_conformance, name, bug):
    wrong = getattr(trainers(name), bug)

    with pytest.raises(pytest.fail.Exception) as failure:
        TRAINERS[name][0](loss_conformance, wrong)

    words = str(failure.value)
    assert f"[{NAMES[bug]}]" in words
    assert (bug_line(wrong) in suspected_lines(words, name)) != ((name, bug) in ELSEWHERE)


def suspected_lines(words, name):
    return [int(line) for line in re.findall(rf"suspect \d: \S*trainers/{name}.py:(\d+)", words)]
