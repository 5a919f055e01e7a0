"""ROLL's workers of a rank, with an engine around our model, and clusters as its driver sees them.

ROLL's driver calls the workers of a role by Ray. Here all ranks run the driver, with the same
batch. ROLL's own functions split what a worker's method is given and collect what it returns, and
results are gathered from all ranks.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from adapters.roll.importing import module
from adapters.toolkit.worlds import of_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract import Rank
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


class Workers:
    """A cluster with a worker in each rank, whose methods are dispatched as ROLL registers them.

    Forward passes that only compute values are not run: their answers are given.
    """

    def __init__(self, worker: Any, rank: Rank, given: Given) -> None:
        self._worker, self._rank = worker, rank
        self.world_size = rank.world_size
        self.compute_log_probs, self.compute_values = given.compute_log_probs, given.compute_values
        self._rank_infos = of_all_ranks(worker.get_rank_info())

    @property
    def dp_size(self) -> int:
        """The number of data-parallel ranks."""
        return int(self._rank_infos[0].dp_size)

    def get_rank_info(self, rank: int) -> Any:
        """Where a rank is among data- and context-parallel ones."""
        return self._rank_infos[rank]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of all workers, as ROLL's cluster binds it."""
        decorator = module("distributed.scheduler.decorator")
        registered = getattr(getattr(self._worker, name), decorator.BIND_WORKER_METHOD_FLAG)
        functions = decorator.get_predefined_dispatch_fn(registered["dispatch_mode"])
        bound: Callable[..., Any] = decorator.func_generator(
            self, name, functions["dispatch_fn"], functions["collect_fn"], self._execute
        )
        return bound

    def _execute(self, name: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call the rank's own worker with its share, and return what all workers return."""
        share = [each[self._rank.index] for each in arguments]
        options = {key: values[self._rank.index] for key, values in named.items()}
        with torch.enable_grad():  # the driver runs without, in a process of its own
            return of_all_ranks(getattr(self._worker, name)(*share, **options))


class Given:
    """A cluster of a role that is not run: its answers are given values of tokens, by their ids."""

    dp_size = world_size = 1

    def __init__(self, worker_config: Any, by_id: torch.Tensor | None = None) -> None:
        self.worker_config, self._by_id = worker_config, by_id

    def compute_log_probs(self, data: Any, **_: Any) -> Any:
        """Log-probabilities of response tokens and entropies of 0, as of a forward pass."""
        values = self._laid_out(data) * data.batch["response_mask"][:, 1:]
        return _answer(log_probs=values, entropy=torch.zeros_like(values))

    def compute_values(self, data: Any, **_: Any) -> Any:
        """Values at all positions, those of padding too."""
        return _answer(values=self._laid_out(data))

    def train_step(self, data: Any, **_: Any) -> Any:
        """Train nothing, and log nothing."""
        return module("distributed.scheduler.protocol").DataProto(meta_info={"metrics": {}})

    def load_states(self, *_: Any, **__: Any) -> None:
        """Do nothing: there are no states."""

    offload_states = load_states

    def _laid_out(self, data: Any) -> torch.Tensor:
        """The values of tokens, each at the position before its token's: [samples, width - 1]."""
        assert self._by_id is not None
        return self._by_id[data.batch["input_ids"]][:, 1:]


def _answer(**tensors: torch.Tensor) -> Any:
    protocol = module("distributed.scheduler.protocol")
    return protocol.DataProto.from_dict(tensors=tensors, meta_info={"metrics": {}})
