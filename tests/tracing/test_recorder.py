"""The operations that the recorder records, and those that it leaves out."""

import linecache
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist

from conformance.findings.trace import BUILT
from conformance.ranks.recording.recorder import Recorder
from tests.tracing.functions import TakenByName


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_no_mode_of_functions_sees_what_the_recorder_reads() -> None:
    """A group's method is not a function of torch, so the mode is entered while it dispatches."""
    recorder = Recorder(lambda module: not module.startswith("tests.tracing.test_"))

    with recorder, TakenByName():
        dist.group.WORLD.allreduce([torch.ones(2, dtype=torch.int32)]).wait()

    names = [operation.name for operation in recorder.trace.operations]
    assert names == ["aten.ones.default", "c10d.allreduce_.default"]


def test_a_tensor_of_numbers_is_made_where_torch_is_given_them() -> None:
    """A tensor's line is the one that makes it; a tensor made of tensors has these as inputs."""
    recorder = Recorder(lambda module: module != __name__)

    with recorder:
        two = torch.tensor(2.0)
        both = torch.tensor([two, torch.as_tensor(3)])
        both.sum()

    lifted = [one for one in recorder.trace.operations if one.is_given]
    [built] = [one for one in recorder.trace.operations if one.name == BUILT]
    assert [one.contents.values for one in lifted][:2] == [(2.0,), (3.0,)]
    assert lifted[0].line is not None
    assert linecache.getline(lifted[0].line.file, lifted[0].line.number).strip().startswith("two =")
    assert len(built.inputs) == 2
