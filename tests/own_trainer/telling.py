"""Words of a failed test of a trainer, and the line of its bug."""

import gc
import inspect
import re
from importlib import import_module

import pytest


def trainers(name):
    """The module of a trainer, which may take seconds to import.

    Imported objects are exempted from garbage collection, which Hugging Face does in every step.
    """
    module = import_module(f"tests.own_trainer.trainers.{name}")
    gc.freeze()
    return module


def bug_line(wrong):
    lines, first = inspect.getsourcelines(wrong)
    [line] = [number for number, line in enumerate(lines, first) if "# bug" in line]
    return line


def told(loss_conformance, loop, trainer_class):
    with pytest.raises(pytest.fail.Exception) as failure:
        loop(loss_conformance, trainer_class)
    return str(failure.value)


def causes(words):
    return re.findall(r"^[A-Z ]+ \d+ × .*\[(\w+)\]$", words, re.MULTILINE)


def first_suspect(words):
    [[file, line]] = re.findall(r"suspect 1: \S*trainers/(\w+).py:(\d+)", words)
    return file, int(line)
