"""Imports open-instruct's trainer without GPU packages and servers, and reads its options."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from adapters.contract.tables import read_imports
from adapters.toolkit import imports
from adapters.toolkit.settings import KnownOptions

if TYPE_CHECKING:
    from pathlib import Path

module = imports.modules_of("open_instruct")


def import_open_instruct(source: Path | None) -> None:
    """Import the trainer; raises `ImportError` at once if packages of its extra are missing."""
    imports.require(read_imports("adapters.open_instruct").required, "open-instruct")
    from adapters.engines import deepspeed
    from adapters.toolkit import cuda_on_cpu
    from adapters.toolkit.probe import SEAM

    cuda_on_cpu.install()
    deepspeed.import_deepspeed()
    deepspeed.group_sequences_once()
    imports.import_from("open_instruct", [source] if source else [])
    imports.stub_imports("adapters.open_instruct")
    # the trainer passes a rank's number to torch.device
    module("grpo_fast").torch = cuda_on_cpu.torch_of_the_cpu()
    SEAM.put_into(module("model_utils"), "log_softmax_and_gather")


def actor_classes() -> tuple[Any, Any]:
    """The classes of the trainer and its data preparation, which Ray would run as processes."""
    remote = (
        module("grpo_fast").PolicyTrainerRayProcess,
        module("data_loader").DataPreparationActor,
    )
    trainer, data = (one.__ray_metadata__.modified_class for one in remote)
    return trainer, data


def config_classes() -> tuple[Any, Any]:
    """The dataclasses of the trainer's options and of its data's options."""
    home = module("grpo_utils")
    # The class was called ExperimentConfig before April 2026.
    kind = getattr(home, "GRPOExperimentConfig", None) or home.ExperimentConfig
    return kind, module("data_loader").StreamingDataLoaderConfig


def options() -> KnownOptions:
    """The options of this version; their choices are found as strings in the trainer's code."""
    comparing = "advantage_normalization_type"
    choices = {
        "loss_fn": {str(one) for one in module("grpo_utils").GRPOLossType},
        comparing: imports.choices_in(actor_classes()[1]._data_preparation_loop, comparing),
    }
    return KnownOptions.read_fields(choices, *config_classes())


def read_by_the_step() -> set[str]:
    """The arguments that are read by the code of a step and of its data."""
    trainer, data = actor_classes()
    code = (
        module("grpo_utils"),
        trainer.from_pretrained,
        trainer.step,
        data._data_preparation_loop,
    )
    return {*re.findall(r"(?:args|config)\.(\w+)", "".join(map(inspect.getsource, code)))}
