"""ROLL's workers of a rank, with an engine around our model."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.roll.importing import module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from adapters.toolkit.probe import ForwardPasses, GradientReader, Recorder


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A worker, and what is read off its model and its optimizer."""

    worker: Any
    passes: ForwardPasses
    gradients: GradientReader | Recorder[NDArray[np.float32]]


@contextmanager
def loading(engine_module: str, provider: Callable[..., Any]) -> Iterator[None]:
    """Have a worker that is made in the context find our model, and no checkpoint."""
    with (
        mock.patch.multiple(
            module(engine_module),
            default_tokenizer_provider=lambda **_: None,
            default_processor_provider=lambda **_: None,
        ),
        mock.patch.multiple(
            module("pipeline.base_worker"),
            default_actor_model_provider=provider,
            default_value_model_provider=provider,
        ),
    ):
        yield


def new_worker(role: str, config: Any) -> Any:
    """A role's worker that has been initialised as its cluster does it."""
    executor, own = module("distributed.executor.worker"), getattr(config, role)
    os.environ |= {"WORKER_NAME": f"{own.name}-0", "CLUSTER_NAME": own.name}
    with (
        mock.patch.multiple(
            executor, download_model=lambda path: path, SharedStorage=mock.MagicMock()
        ),
        mock.patch.multiple(
            executor.Worker,
            get_free_port=staticmethod(lambda: os.environ["MASTER_PORT"]),
            get_node_ip=staticmethod(lambda: os.environ["MASTER_ADDR"]),
        ),
    ):
        worker = module("utils.import_utils").safe_import_class(own.worker_cls)(own)
        worker.initialize(config)
    return worker
