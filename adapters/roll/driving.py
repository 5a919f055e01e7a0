"""Drives ROLL's RLVR pipeline, from batches of rollouts to optimizer steps.

ROLL's driver calls the workers of a role through Ray. Here all ranks run the driver, with the same
batch. ROLL's own functions split the arguments of a worker's method and collect its results, which
are gathered from all ranks.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract import Job, Rank, Refused, Settings
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.roll.importing import module
from adapters.toolkit.calls import nothing
from adapters.toolkit.probe import token_table
from adapters.toolkit.settings import given_values, gives_advantages, has_critic, trained_model
from adapters.toolkit.worlds import all_gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.toolkit.probe import ForwardPasses, GradientReader, Records
    from reference.arrays import Gradient, Integers, Mask

DOMAIN = "corpus"


class RollRollouts:
    """A job's samples as batches of ROLL's scheduler: one batch of rollouts per optimizer step."""

    def __init__(
        self, batch: ProbedBatch, job: Job, settings: Settings, attended: Callable[[Mask], Mask]
    ) -> None:
        self.batch, self.job = batch, job
        self._width, self._attended = settings["sequence_length"], attended
        self._is_corrected = any(name.startswith("train_infer_correction.") for name in settings)
        self._ends = [0, *accumulate(step.size for step in job.steps)]

    def batch_of(self, step_index: int) -> Any:
        """The samples of a step, padded on the right: [samples, sequence_length]."""
        batch, of_step = self.batch, slice(*self._ends[step_index : step_index + 2])
        prompts = [*map(np.ones_like, batch.prompts)]
        nothing = [*map(np.zeros_like, batch.prompts)]
        ids = self._rows(batch.prompts, batch.responses)
        tensors = {
            "input_ids": ids.long(),
            "attention_mask": self._rows(prompts, map(self._attended, batch.original_masks)).long(),
            "position_ids": torch.arange(self._width).expand(ids.shape),
            "prompt_mask": self._rows(prompts, map(np.zeros_like, batch.responses)).long(),
            "response_mask": self._rows(nothing, batch.original_masks).long(),
            "prompts": ids[:, :1].long(),
            "responses": ids[:, 1:].long(),
            "scores": torch.from_numpy(batch.rewards).float(),
            "response_level_rewards": torch.from_numpy(batch.rewards).float(),
        }
        if self._is_corrected:
            of_rollouts = token_table(batch, batch.rollout_log_probs)
            tensors["infer_logprobs"] = of_rollouts[tensors["input_ids"]][:, 1:]
        protocol = module("distributed.scheduler.protocol")
        return protocol.DataProto.from_dict(
            tensors={name: values[of_step].clone() for name, values in tensors.items()},
            non_tensors={"domain": np.full(self.job.steps[step_index].size, DOMAIN, object)},
            meta_info={"metrics": {}},
        )

    def _rows(
        self, of_prompts: Sequence[NDArray[Any]], of_responses: Iterable[NDArray[Any]]
    ) -> torch.Tensor:
        """Values of prompts, followed by their responses: [samples, sequence_length]."""
        rows = torch.full((len(of_prompts), self._width), float(PADDING_ID))
        for row, *parts in zip(rows, of_prompts, of_responses, strict=True):
            sequence = np.concatenate(parts)
            row[: len(sequence)] = torch.from_numpy(sequence)
        return rows


class RollTraining:
    """One run of the pipeline, with its gradients, forward passes and logs."""

    def __init__(
        self, rollouts: RollRollouts, rank: Rank, config: Any, trained: TrainedWorker
    ) -> None:
        self._rollouts, self._rank, self._config, self._trained = rollouts, rank, config, trained
        self._batch, self._job = rollouts.batch, rollouts.job
        self.logs: list[dict[str, float]] = []
        self.gradients: list[Gradient | None] = []
        self.passes: list[Integers] = []
        # The pipeline's own constructor would start clusters of Ray.
        pipelines = module("pipeline.rlvr.rlvr_pipeline")
        pipeline = object.__new__(pipelines.RLVRPipeline)
        vars(pipeline).update(self._state() | self._clusters())
        with self._replaced(pipelines):
            pipeline.run()

    def _state(self) -> dict[str, Any]:
        """The attributes that the constructor would set, except clusters."""
        config = self._config
        return {
            "pipeline_config": config,
            "state": module("utils.worker_state").WorkerState(),
            "kl_ctrl": module("utils.kl_controller").get_kl_controller(config.init_kl_coef),
            "running": {},
            "val_dataset": None,
            "resource_manager": None,
            "tracker": SimpleNamespace(log=self._keep),
            "tokenizer": SimpleNamespace(batch_decode=lambda *_, **__: []),
            "domain_batch_size": {DOMAIN: config.rollout_batch_size},
            "generate_schedulers": {DOMAIN: self._scheduler()},
            "val_generate_scheduler": self._scheduler(),
            "model_update_groups": [],
            "do_checkpoint": nothing,
        }

    def _clusters(self) -> dict[str, Any]:
        """The clusters of roles: one role is trained, and the other clusters are stubs."""
        config, batch = self._config, self._batch
        old = StubCluster(config.actor_train, token_table(batch, batch.old_log_probs))
        reference = StubCluster(config.reference, token_table(batch, batch.reference_log_probs))
        clusters: dict[str, Any] = {
            "actor_train": old,
            "actor_infer": StubCluster(config.actor_infer),
            "reward_model_cluster": None,
            "rewards": {},
            "use_ref_model": config.enable_reference,
            "references": {"default": reference},
            "reference": reference,  # the attribute's name before the release 0.3.0
        }
        if has_critic(self._job):
            # Padding has a value that an estimator must not read.
            elsewhere = 0.0 if gives_advantages(self._job) else PADDING_VALUE
            values = token_table(batch, given_values(batch), elsewhere)
            clusters["critic"] = StubCluster(config.critic, values)
        role = trained_model(self._job, "actor_train")
        clusters[role] = WorkerCluster(self._trained.worker, self._rank, given=clusters[role])
        return clusters

    def _scheduler(self) -> Any:
        """A stub of a domain's rollout scheduler, which returns a batch for each step."""

        def get_batch(*, global_step: int, **_: Any) -> Any:
            return self._rollouts.batch_of(global_step)

        ignored = ("pause_sampling", "get_scheduler_state", "shutdown")
        calls: dict[str, Any] = {"get_batch": get_batch, **dict.fromkeys(ignored, nothing)}
        remote = {name: SimpleNamespace(remote=call) for name, call in calls.items()}
        return SimpleNamespace(**remote)

    def _keep(self, values: dict[str, float], step: int) -> None:
        """Record the last epoch of a step; raises `Refused` if the step has no active token.

        A step whose gradient is NaN or infinite is skipped, and its gradient is None.
        """
        if values.get("mask/final_mask_sum_eq_0"):
            raise Refused("final_response_mask.sum() == 0! Current step will be skipped.")
        self.logs.append(module("utils.tracking")._strip_metric_tag(values))
        gradients, passes = self._trained.gradients.drain(), self._trained.passes.drain()
        self.gradients.append(gradients[-1] if gradients else None)
        self.passes += passes[len(passes) - len(passes) // max(len(gradients), 1) :]

    @contextmanager
    def _replaced(self, pipelines: Any) -> Iterator[None]:
        """Replace Ray's references by the objects themselves, and set given advantages."""
        real = pipelines.compute_token_reward
        of_tokens = token_table(self._batch, self._batch.advantages)

        def compute_token_reward(data: Any, *arguments: Any) -> Any:
            data, metrics = real(data, *arguments)
            data.batch["token_level_rewards"] = of_tokens[data.batch["input_ids"]][:, 1:]
            return data, metrics

        protocol = module("distributed.scheduler.protocol").DataProto
        with ExitStack() as stack:
            stack.enter_context(mock.patch("ray.get", lambda reference, timeout=None: reference))
            for home, name in ((pipelines, "batch_balance"), (protocol, "make_iterator")):
                requiring = _requiring_sizes(getattr(home, name))
                stack.enter_context(mock.patch.object(home, name, requiring))
            if gives_advantages(self._job):
                given = mock.patch.object(pipelines, "compute_token_reward", compute_token_reward)
                stack.enter_context(given)
            yield


def _requiring_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of ROLL that asserts documented sizes: raises `Refused` for other sizes."""

    def call(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*arguments, **named)
        except AssertionError as error:
            raise Refused(f"{function.__qualname__} declines the batch: {error}") from error

    return call


@dataclass(frozen=True, kw_only=True)
class TrainedWorker:
    """A worker, with the recorders of its model and its optimizer."""

    worker: Any
    passes: ForwardPasses
    gradients: GradientReader | Records[Gradient]


def new_worker(role: str, config: Any, engine_module: str, provider: Callable[..., Any]) -> Any:
    """A role's worker, initialised as its cluster would initialise it.

    The worker gets the model of ``provider`` instead of a checkpoint.
    """
    executor, own = module("distributed.executor.worker"), getattr(config, role)
    os.environ |= {"WORKER_NAME": f"{own.name}-0", "CLUSTER_NAME": own.name}
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


class WorkerCluster:
    """A cluster with one worker per rank; methods are dispatched as registered in ROLL.

    Forward passes without training are not run: their results are given.
    """

    def __init__(self, worker: Any, rank: Rank, given: StubCluster) -> None:
        self._worker, self._rank = worker, rank
        self.world_size = rank.world_size
        self.compute_log_probs, self.compute_values = given.compute_log_probs, given.compute_values
        self._rank_infos = all_gather(worker.get_rank_info())

    @property
    def dp_size(self) -> int:
        """The number of data-parallel ranks."""
        return int(self._rank_infos[0].dp_size)

    def get_rank_info(self, rank: int) -> Any:
        """The data- and context-parallel index of a rank."""
        return self._rank_infos[rank]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of all workers, bound as in ROLL's cluster."""
        decorator = module("distributed.scheduler.decorator")
        registered = getattr(getattr(self._worker, name), decorator.BIND_WORKER_METHOD_FLAG)
        functions = decorator.get_predefined_dispatch_fn(registered["dispatch_mode"])
        bound: Callable[..., Any] = decorator.func_generator(
            self, name, functions["dispatch_fn"], functions["collect_fn"], self._execute
        )
        return bound

    def _execute(self, name: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call the rank's own worker with its share, and return the results of all workers."""
        share = [each[self._rank.index] for each in arguments]
        options = {key: values[self._rank.index] for key, values in named.items()}
        with torch.enable_grad():  # ROLL's driver disables gradients only in its own process
            return all_gather(getattr(self._worker, name)(*share, **options))


class StubCluster:
    """A stub of a role's cluster, whose results are given token values, by id."""

    dp_size = world_size = 1

    def __init__(self, worker_config: Any, by_id: torch.Tensor | None = None) -> None:
        self.worker_config, self._by_id = worker_config, by_id

    def compute_log_probs(self, data: Any, **_: Any) -> Any:
        """Log-probabilities of response tokens and entropies of 0, like a forward pass.

        They are multiplied by the response mask, as in ROLL's `op_compute_log_probs`.
        """
        values = self._laid_out(data) * data.batch["response_mask"][:, 1:]
        return _answer(log_probs=values, entropy=torch.zeros_like(values))

    def compute_values(self, data: Any, **_: Any) -> Any:
        """Values at all positions, including padding."""
        return _answer(values=self._laid_out(data))

    def train_step(self, data: Any, **_: Any) -> Any:
        """Train nothing, and log nothing."""
        return module("distributed.scheduler.protocol").DataProto(meta_info={"metrics": {}})

    def load_states(self, *_: Any, **__: Any) -> None:
        """Do nothing: there are no states."""

    offload_states = load_states

    def _laid_out(self, data: Any) -> torch.Tensor:
        """The values of tokens, each at the position before its token: [samples, width - 1]."""
        assert self._by_id is not None
        return self._by_id[data.batch["input_ids"]][:, 1:]


def _answer(**tensors: torch.Tensor) -> Any:
    protocol = module("distributed.scheduler.protocol")
    return protocol.DataProto.from_dict(tensors=tensors, meta_info={"metrics": {}})
