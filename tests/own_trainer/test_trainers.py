"""Six trainers as people write them, and the five mistakes that they make most often."""

import inspect
import re

import pytest

from tests.own_trainer import loops
from tests.own_trainer.trainers import ddp, fsdp, hugging_face, lightning, packed, plain

pytestmark = pytest.mark.processes

TRAINERS = {
    "plain": (loops.plain_loop, plain, plain.GRPOTrainer),
    "ddp": (loops.ddp_loop, ddp, ddp.Trainer),
    "fsdp": (loops.fsdp_loop, fsdp, fsdp.Policy),
    "hugging_face": (loops.hugging_face_loop, hugging_face, hugging_face.GRPOTrainer),
    "lightning": (loops.lightning_loop, lightning, lightning.GRPOModule),
    "packed": (loops.packed_loop, packed, packed.PackedTrainer),
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
    loop, _, right = TRAINERS[name]

    loop(loss_conformance, right)


@pytest.mark.parametrize("bug", NAMES)
@pytest.mark.parametrize("name", TRAINERS)
def test_a_mistake_is_named_with_its_line(loss_conformance, name, bug):
    loop, module, _ = TRAINERS[name]
    wrong = getattr(module, bug)

    with pytest.raises(pytest.fail.Exception) as failure:
        loop(loss_conformance, wrong)

    words = str(failure.value)
    print(words)
    assert f"[{NAMES[bug]}]" in words
    assert bug_line(wrong) in suspected_lines(words, module)


def bug_line(wrong):
    lines, first = inspect.getsourcelines(wrong)
    [line] = [number for number, line in enumerate(lines, first) if "# bug" in line]
    return line


def suspected_lines(words, module):
    file = re.escape(f"trainers/{module.__name__.rpartition('.')[2]}.py")
    return [int(line) for line in re.findall(rf"suspect \d: \S*{file}:(\d+)", words)]
