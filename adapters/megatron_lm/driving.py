"""Drives `megatron.training.training.train` with the forward step and the data of `train_rl.py`."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import contextmanager
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract import Job, Rank, Settings, Unsupported
from adapters.contract.batch.sequences import PADDING_ID
from adapters.engines import megatron_core
from adapters.engines.pretrained import table
from adapters.toolkit.imports import found
from adapters.toolkit.probe import CERTAIN_LOGIT, cycled, probe_capacity
from adapters.toolkit.settings import dealt, gives_advantages, last_epoch, shares, word
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Integers

GLOBALS = "megatron.training.global_vars"
LOOP, RL = "megatron.training.training", "megatron.rl.rl_utils"
REFERENCE = "is_reference"
"""The name of the model's buffer that is 1 if the reference policy's weights are loaded, else 0."""


class CaseLogProbs:
    """A job's log-probabilities by token id, which the cached models of a world read."""

    def start(self, batch: ProbedBatch) -> None:
        """Use the log-probabilities of a job's batch."""
        size = probe_capacity(batch.probe_size)
        self.old = table(batch, batch.old_log_probs, size)
        self.reference = table(batch, batch.reference_log_probs, size)
        self.new = batch.log_prob_table


CASE = CaseLogProbs()


def _scalar_log(**_: object) -> Any:
    """Collects Megatron-LM's TensorBoard scalars in ``steps``, without writing a file."""
    steps, nothing = defaultdict[int, dict[str, float]](dict), mock.Mock()

    def add_scalar(name: str, value: Any, step: int) -> None:
        steps[int(step)][name] = float(value)

    return SimpleNamespace(steps=steps, add_scalar=add_scalar, add_text=nothing, flush=nothing)


def train(job: Job, batch: ProbedBatch, settings: Settings, rank: Rank) -> Any:
    """Train all steps of a job on rollouts of one collection, as in `InOneRun.run`."""
    CASE.start(batch)
    megatron_core.join_grid(job.layout, rank)
    with parsed_arguments(words(settings)) as args:
        capacity = probe_capacity(batch.probe_size)
        key = (job.layout.options, args.calculate_per_token_loss, args.moe_z_loss_coeff, capacity)
        policy = cached(rank, key, lambda: _policy(args, capacity, rank))
        _run(job, batch, args, policy)
        writer = found(f"{GLOBALS}:get_tensorboard_writer")()  # only the last rank has a writer
        steps = {} if writer is None else writer.steps
        numbers = range(1, args.train_iters + 1)  # numbers of the iterations of this job
        return SimpleNamespace(
            gradients=last_epoch(policy.gradients.drain(), job),
            logs=last_epoch([steps.get(number, {}) for number in numbers], job),
            passes=last_epoch(policy.passes.drain(), job),
        )


def words(settings: Settings) -> list[str]:
    """Settings as words of a command line; settings that are False are left out."""
    return [word(name, value) for name, value in settings.items() if value is not False]


@contextmanager
def parsed_arguments(typed: list[str]) -> Iterator[Any]:
    """Megatron-LM's own arguments, which are global while the context is open."""
    arguments, variables = found("megatron.training.arguments"), found(GLOBALS)
    tensorboard: Any = found("torch.utils.tensorboard")
    with (
        mock.patch.object(sys, "argv", ["train_rl.py", *typed]),
        mock.patch.object(tensorboard, "SummaryWriter", _scalar_log),
        mock.patch.object(variables, "build_tokenizer", _tokenizer),
    ):
        variables.unset_global_variables()
        provider = found("megatron.inference.utils:add_inference_args")
        try:
            yield arguments.parse_and_validate_args(extra_args_provider=provider)
        finally:
            variables.unset_global_variables()


class AnyId(int):
    """An end-of-text id that equals every id, so that older versions see no response as cut off."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        """Equal any id of a response. Tensors are still compared with the number itself."""
        return True


def _tokenizer(args: Any) -> Any:
    """A tokenizer whose end-of-text id does not occur in tensors."""
    args.padded_vocab_size = 1
    return SimpleNamespace(
        library="ids",
        pad=PADDING_ID,
        eod=AnyId(-1),
        bos=None,
        vocab_size=args.padded_vocab_size,
        detokenize=lambda _: "",
    )


def _policy(args: Any, capacity: int, rank: Rank) -> Any:
    """The model in data parallelism with its optimizer."""
    loop = found(LOOP)
    bare: list[Any] = []

    def provider(vp_stage: int | None = None, pg_collection: Any = None, **_: object) -> Any:
        if not bare:
            config = found("megatron.training.arguments:core_transformer_config_from_args")(args)
            bare.extend(megatron_core.probed_model(config, capacity, rank, _head(bare)))
            for chunk in bare:
                chunk.pg_collection = pg_collection
                chunk.register_buffer(REFERENCE, torch.zeros(1))
                chunk._register_state_dict_hook(_copied)
        return bare[vp_stage or 0]

    kind = found("megatron.core.enums:ModelType").encoder_or_decoder
    # The order of these arguments differs between versions, so they are passed by name.
    given = {"model_type": kind, "model_provider_func": provider}
    chunks, optimizer, scheduler = loop.setup_model_and_optimizer(**given)
    policy: Any = megatron_core.wrapped_policy(chunks, bare)
    policy.optimizer, policy.scheduler = optimizer, scheduler
    policy.gradients = megatron_core.gradients_of_steps(optimizer, policy)
    return policy


def _copied(_: Any, state: dict[str, Any], *__: object) -> dict[str, Any]:
    """A copy of a state dictionary; on a GPU, Megatron-LM makes one by moving it to the CPU."""
    return {name: value.clone() for name, value in state.items()}


def _head(chunks: list[Any]) -> Any:
    """A head whose logits' log-softmax is `CASE`'s log-probability, minus `CERTAIN_LOGIT`."""

    def head(ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
        predicted = ((ids + 1) % len(probe)).unsqueeze(-1)
        if torch.is_grad_enabled():
            values = probe[predicted] + cycled(CASE.new, predicted)
        else:
            is_reference = bool(getattr(chunks[-1], REFERENCE))
            values = (CASE.reference if is_reference else CASE.old)[predicted]
        logits = torch.zeros(*ids.shape, len(probe))
        logits[..., PADDING_ID] = CERTAIN_LOGIT
        return logits.scatter(-1, predicted, values) + logit

    return head


def _run(job: Job, batch: ProbedBatch, args: Any, policy: Any) -> None:
    """Run Megatron-LM's loop over the iterations of a job."""
    loop, rl = found(LOOP), found(RL)
    args.do_train, args.do_valid, args.do_test = True, False, False
    args.iteration, args.num_floating_point_operations_so_far = 0, 0
    rl._rl_runtime_state = rl.RLRuntimeState()
    reruns = found("megatron.core.rerun_state_machine")
    reruns.destroy_rerun_state_machine()
    reruns.initialize_rerun_state_machine(mode=reruns.RerunMode(args.rerun_mode))
    collected = _rollouts(job, batch, args)
    core = found("megatron.core.utils:get_model_config")(policy.chunks[0])
    core.no_sync_func = core.grad_sync_func = None  # as in a new model: jobs set both
    has_ledger = hasattr(rl, "FinishedRequestRecord")
    returned: Any = (collected, {}) if has_ledger else collected
    replacing: dict[str, Any] = {"get_environment_rollouts": lambda *_: returned}
    if gives_advantages(job):
        flat = [reward for group in collected for reward in group]
        replacing["calculate_grpo_advantages"] = lambda *_: [one.reward for one in flat]
    with (
        mock.patch.multiple(rl, **replacing),
        mock.patch.object(loop, "load_checkpoint", _loader()),
    ):
        trained = policy.chunks, policy.optimizer, policy.scheduler
        forward = found("train_rl:forward_step")
        loop.train(forward, *trained, None, None, None, core, {}, None)


def _loader() -> Any:
    """A stub of checkpoint loading: first of the pretrained policy, then of the trained one."""
    loads = [1.0, 0.0]

    def load(chunks: list[Any], *_: object, **__: object) -> None:
        value = loads.pop(0)
        for chunk in chunks:
            getattr(found("megatron.core.utils:unwrap_model")(chunk), REFERENCE).fill_(value)

    return load


def _rollouts(job: Job, batch: ProbedBatch, args: Any) -> list[list[Any]]:
    """The groups of one collection; failed episodes replace missing rollouts."""
    kind, given = found(f"{RL}:TokenRollout"), gives_advantages(job)
    rewards = batch.sample_advantages if given else batch.rewards

    def rollout(samples: list[int]) -> Any:
        masks = [batch.original_masks[one] for one in samples]
        columns = [batch.rollout_log_probs[one] - CERTAIN_LOGIT for one in samples]
        log_probs = [values[mask] for values, mask in zip(columns, masks, strict=True)]
        return kind(
            trajectory=[batch.sequences[one].tolist() for one in samples],
            generation_mask=[
                [*[False] * len(batch.prompts[one]), *batch.original_masks[one].tolist()]
                for one in samples
            ],
            logprobs=[values.tolist() for values in log_probs],
            reward=float(rewards[samples[0]]) if samples else 0.0,
            generation_cap=sum(map(int, masks[0])) if masks else None,
            policy_epoch=[[(0, 0)]] * len(samples),  # required and logged by older versions
            kv_cache_epoch=[[(0, 0)]] * len(samples),
            num_evictions=[0] * len(samples),
        )

    names = np.arange(len(rewards)) if given else batch.groups
    groups = [
        [rollout(samples) for samples in _runs(group, names if given else batch.trajectories)]
        for group in _runs(dealt(shares(job)).tolist(), names)
    ]
    if len(groups) > len(np.unique(names)):
        raise Unsupported("no prompt whose samples are dealt to several ranks and steps")
    size = args.grpo_group_size
    groups += [[] for _ in range(args.grpo_prompts_per_step - len(groups))]
    if not hasattr(kind, "is_placeholder") and any(len(group) < size for group in groups):
        raise Unsupported("no missing rollouts: this version has no placeholder for a failed one")
    return [[*group, *[rollout([])] * (size - len(group))] for group in groups]


def _runs(samples: list[int], names: Integers) -> list[list[int]]:
    """Runs of consecutive samples with the same name."""
    return [[*run] for _, run in groupby(samples, key=lambda sample: names[sample])]
