"""The controlling process knows adapters without torch and without their frameworks."""

import subprocess
import sys

import pytest

from conformance.runs import registry

PROGRAM = """
import sys
from conformance.runs import registry

classes = registry.adapter_classes({name!r}).values()
assert all(adapter().layouts() for adapter in classes)
heavy = {{"torch", "megatron", "transformers", "ray"}} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("name", sorted(registry.known()))
def test_adapters_are_planned_for_without_torch(name: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(name=name)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
