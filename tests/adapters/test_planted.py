"""An option that nobody here knows, and that no loss reads, put into each framework's own code."""

import importlib.util
import os
import re
import shutil
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
from adapters.toolkit.source import resolve
from conformance.findings.verdict import Verdict
from conformance.plan.checks import check_spec
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode
from tests import command
from tests.adapters.steps import MASKED, released

CLONES = Path(os.environ.get(command.SOURCES, "nowhere"))


@dataclass(frozen=True)
class Plant:
    """Where a framework's options are declared, and what they are called there."""

    adapter: str
    engine: str
    option: str
    """The new option, as users type it."""
    choice: str
    """A new choice of an option that is known, as ``name=choice``."""
    edits: Sequence[tuple[str, str, str]]
    """Files, by the ends of their paths, with what is matched in them and what is put before it."""
    source: str = ""
    """A release, or a revision of a clone; what is installed if empty."""
    layout: str = "dp1-cp1-mb2-thd"
    needs: str | None = None
    """A package that its extra brings, and no other one."""


PLANTS = [
    Plant(
        "skyrl",
        "fsdp",
        "use_new_loss",
        "loss_reduction=fifth",
        [
            (
                "skyrl/train/config/config.py",
                r"loss_reduction: str",
                "use_new_loss: bool = False\n    ",
            ),
            ("skyrl/train/utils/utils.py", r'"token_mean",\n +"token_mean_legacy"', '"fifth", '),
        ],
        layout="dp1-cp1-mb2-bshd",
    ),
    Plant(
        "verl",
        "fsdp",
        "use_new_loss",
        "loss_agg_mode=fifth",
        [
            ("verl/trainer/config/actor/actor.yaml", r"loss_agg_mode: ", "use_new_loss: false\n\n"),
            (
                "verl/workers/config/actor.py",
                r"loss_agg_mode: str",
                "use_new_loss: bool = False\n    ",
            ),
            (
                "verl/trainer/ppo/core_algos.py",
                r'if loss_agg_mode == "token-mean"',
                'if loss_agg_mode == "fifth":\n        return loss_mat\n    ',
            ),
        ],
    ),
    *(
        Plant(
            adapter,
            "megatron",
            "--use-new-loss",
            "--advantage-estimator=fifth",
            [
                (
                    f"{adapter}/utils/arguments.py",
                    r'parser.add_argument\(\s+"--advantage-estimator"',
                    'parser.add_argument("--use-new-loss", action="store_true")\n            ',
                ),
                (f"{adapter}/utils/arguments.py", r'"grpo",\s+"gspo"', '"fifth", '),
            ],
            source="main",
        )
        for adapter in ("slime", "miles")
    ),
    Plant(
        "trl",
        "ddp",
        "use_new_loss",
        "loss_type=fifth",
        [
            ("trl/trainer/grpo_config.py", r"loss_type: str", "use_new_loss: bool = False\n    "),
            ("trl/trainer/grpo_trainer.py", r'"grpo", "bnpo", "dr_grpo", "dapo"', '"fifth", '),
        ],
        layout="dp1-cp1-mb2-bshd",
    ),
    Plant(
        "areal",
        "fsdp2",
        "use_new_loss",
        "importance_sampling_level=fifth",
        [
            (
                "areal/api/cli_args.py",
                r"importance_sampling_level: str",
                "use_new_loss: bool = False\n    ",
            ),
            ("areal/api/cli_args.py", r'"token", "sequence"\],\s+},\s+\)\s+# Prox', '"fifth", '),
        ],
        needs="colorlog",
        source="pypi:1.0.4",
    ),
    Plant(
        "openrlhf",
        "deepspeed",
        "--actor.use_new_loss",
        "--actor.policy_loss_type=fifth",
        [
            (
                "openrlhf/cli/train_ppo_ray.py",
                r'parser.add_argument\(\s*"--actor.policy_loss_type"',
                'parser.add_argument("--actor.use_new_loss", action="store_true")\n    ',
            ),
            ("openrlhf/cli/train_ppo_ray.py", r'"ppo", "gspo"', '"fifth", '),
        ],
        needs="deepspeed",
        source="pypi:0.11.2",
        layout="dp1-cp1-mb2-thd+zero_3",
    ),
    Plant(
        "prime_rl",
        "fsdp2",
        "loss.use_new_loss",
        "loss.type=fifth",
        [
            (
                "prime_rl/configs/trainer.py",
                r'type: Literal\["default"\] = "default"',
                "use_new_loss: bool = False\n    ",
            ),
            ("prime_rl/configs/trainer.py", r'"default"\] = "default"', '"fifth", '),
        ],
        needs="pydantic_config",
        source="main",
        layout="dp1-cp1-mb1-thd",
    ),
    Plant(
        "nemo_rl",
        "dtensor_v1",
        "loss_fn.use_new_loss",
        "grpo.adv_estimator.name=fifth",
        [
            (
                "nemo_rl/algorithms/loss/loss_functions.py",
                r"use_cispo: bool",
                "use_new_loss: bool = False\n    ",
            ),
            ("examples/configs/grpo_math_1B.yaml", r"  use_cispo: ", "  use_new_loss: false\n"),
            (
                "nemo_rl/algorithms/grpo.py",
                r'if adv_estimator_name == "gdpo"',
                'if adv_estimator_name == "fifth":\n        return None\n    ',
            ),
        ],
        source="main",
        layout="dp1-cp1-mb2-bshd",
    ),
    Plant(
        "roll",
        "fsdp2",
        "use_new_loss",
        "importance_sampling=fifth",
        [
            (
                "roll/pipeline/rlvr/rlvr_config.py",
                r'importance_sampling: Literal\["token", "seq"\]',
                "use_new_loss: bool = False\n    ",
            ),
            ("roll/pipeline/rlvr/rlvr_config.py", r'"token", "seq"\]', '"fifth", '),
        ],
        needs="dacite",
        source="main",
        layout="dp1-cp1-mb2-bshd",
    ),
]


def without_effect(record: Framework, option: str) -> Framework:
    """The record with CISPO's loss chosen by an option, or a mean over samples if there is none."""
    plain = record.objectives.get(Objective.OFF_POLICY)
    if plain is None:
        return replace(record, modes={**record.modes, "fifth": (Mode.SAMPLE_MEAN, {option: True})})
    chosen = {Objective.OFF_POLICY: plain, Objective.CISPO: {**plain, option: True}}
    return replace(record, objectives={**record.objectives, **chosen})


def planted(plant: Plant) -> type[Adapter]:
    """The framework's adapter with a record that knows the option as one of a loss or a mode."""
    base = registry.adapter_classes(plant.adapter)[plant.engine]
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


ADAPTERS = {plant.adapter: planted(plant) for plant in PLANTS}
globals().update({one.__name__: one for one in ADAPTERS.values()})  # ranks unpickle them by name


def copied(plant: Plant, folder: Path) -> Path:
    """A copy of the framework's packages with the option and the choice in it."""
    adapter = ADAPTERS[plant.adapter]()
    if plant.needs is not None and importlib.util.find_spec(plant.needs) is None:
        pytest.skip(f"the extra of {plant.adapter} is not installed")
    if plant.source.startswith("pypi:"):
        shutil.copytree(released(adapter, plant.source), folder)
    elif plant.source:
        clone = CLONES / plant.adapter
        if not clone.exists():
            pytest.skip(f"{command.SOURCES} names no folder with a clone of {plant.adapter}")
        path = resolve(adapter, f"{clone}@{plant.source}").path
        assert path is not None
        shutil.copytree(path, folder)
    else:
        found = importlib.util.find_spec(plant.adapter)
        if found is None or found.origin is None:
            pytest.skip(f"{plant.adapter} is not installed")
        shutil.copytree(Path(found.origin).parent, folder / plant.adapter)
    for file, match, put_before in plant.edits:
        [path] = folder.glob(f"**/{file}")
        text, count = re.subn(
            f"(?={match})", lambda _, new=put_before: new, path.read_text(), count=1
        )
        assert count == 1, (file, match)
        path.write_text(text)
    return folder


OF_ADAPTERS = {"areal", "nemo_rl", "openrlhf", "prime_rl", "roll", "trl", "verl", "skyrl"}


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(
            plant,
            id=plant.adapter,
            marks=[getattr(pytest.mark, plant.adapter)] if plant.adapter in OF_ADAPTERS else [],
        )
        for plant in PLANTS
    ],
)
def test_new_option_and_choice_are_said_and_an_ignored_one_is_named(
    plant: Plant, tmp_path: Path
) -> None:
    with RankPool(ADAPTERS[plant.adapter](), copied(plant, tmp_path / "source"), 1) as pool:
        assert {plant.option, plant.choice} <= {*pool.description.new_options}
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
