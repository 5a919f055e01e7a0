"""Adds an unknown option that changes nothing to each framework's code, and runs it."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapters.contract.adapter import Adapter
from adapters.contract.framework import Framework
from adapters.contract.job import Depth
from adapters.contract.layout import Layout
from adapters.contract.objective import Objective
from conformance.findings.verdict import Verdict
from conformance.plan.checks import check_spec
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode
from tests import command
from tests.adapters.steps import MASKED, marks
from tests.mistakes_in_real_code import INSTALLED, RELEASED, copied
from tests.tables import table

pytestmark = pytest.mark.usefixtures("other_release")


@dataclass(frozen=True, kw_only=True)
class Plant:
    """The place where a framework declares its options, an entry of planted.toml."""

    framework: str
    engine: str
    option: str
    choice: str
    edits: Sequence[tuple[str, str, str]]
    layout: str = "dp1-cp1-mb2-thd"


PLANTS = [Plant(**one) for one in table("adapters/planted.toml")["plant"]]


def without_effect(record: Framework, option: str) -> Framework:
    """The record in which the option chooses CISPO or, without off-policy losses, `sample_mean`."""
    plain = record.objectives.get(Objective.OFF_POLICY)
    if plain is None:
        return replace(record, modes={**record.modes, "fifth": (Mode.SAMPLE_MEAN, {option: True})})
    chosen = {Objective.OFF_POLICY: plain, Objective.CISPO: {**plain, option: True}}
    return replace(record, objectives={**record.objectives, **chosen})


def planted(plant: Plant) -> type[Adapter]:
    """The framework's adapter with a record in which the option chooses a loss or a mode."""
    base = registry.adapter_classes(plant.framework)[plant.engine]
    before: Any = base.framework
    record = without_effect(before, plant.option)

    def load(self: Adapter, source: Path | None) -> None:
        super(type(self), self).load(source)
        of_adapter = [name for name in sys.modules if name.startswith("adapters.")]
        for module in map(sys.modules.__getitem__, of_adapter):
            for name, value in [*vars(module).items()]:
                if value is before:
                    setattr(module, name, record)

    name = f"Planted{base.__name__}"
    attributes = {"framework": record, "load": load, "__module__": __name__}
    return type(name, (base,), attributes)


ADAPTERS = {plant.framework: planted(plant) for plant in PLANTS}
globals().update({one.__name__: one for one in ADAPTERS.values()})  # ranks unpickle them by name


def with_the_plant(plant: Plant, folder: Path) -> Path:
    """A copy of the framework's packages with the option and the choice in it."""
    if plant.framework not in (*INSTALLED, *RELEASED) and command.SOURCES not in os.environ:
        pytest.skip(f"{command.SOURCES} names no folder of clones")
    copied(plant, folder)
    for file, match, put_before in plant.edits:
        [path] = folder.glob(f"**/{file}")
        changed, count = re.subn(
            f"(?={match})", lambda _, new=put_before: new, path.read_text(), count=1
        )
        assert count == 1, (file, match)
        path.write_text(changed)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, id=plant.framework, marks=marks(plant.framework)) for plant in PLANTS],
)
def test_new_option_and_choice_are_said_and_an_ignored_one_is_named(
    plant: Plant, tmp_path: Path
) -> None:
    with RankPool(
        ADAPTERS[plant.framework](), with_the_plant(plant, tmp_path / "source"), 1
    ) as pool:
        replaced = registry.adapter_classes(plant.framework)[plant.engine].framework
        known = {
            f"{name}={one}" for name, one in replaced.objectives.get(Objective.CISPO, {}).items()
        }
        assert {*pool.description.new_options} - known == {plant.option, plant.choice}
        is_of_loss = Objective.OFF_POLICY in pool.description.objectives
        aggregation = MASKED.aggregation(
            pool.description.default_mode if is_of_loss else Mode.SAMPLE_MEAN
        )
        cell = MatrixCell(
            aggregation=aggregation,
            case=MASKED,
            layout=Layout.parse(plant.layout),
            depth=Depth.STEP,
            spec=check_spec("off_policy.cispo" if is_of_loss else "weights"),
        )
        wrong = make(cell, SharedJobs(pool))

    assert wrong.verdict is Verdict.MISMATCH, wrong
    assert wrong.diagnosis is not None
    assert wrong.diagnosis.name == "option_ignored"
    assert wrong.diagnosis.explanation.startswith(f"{plant.option} is accepted and changes nothing")
