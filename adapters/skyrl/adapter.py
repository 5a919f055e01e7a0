"""The adapters of SkyRL's engines, from rollouts to the chunk that a worker trains on.

Every rank runs the trainer itself. With SkyRL's code it converts the same rollouts, normalises
advantages, cuts the rollouts into mini-batches and data-parallel chunks, and passes its own chunk
to SkyRL's worker. Our dispatch calls the worker instead of a Ray actor.
"""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Description, Framework, Metric, Rank, code_location
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Depth, Job, LogEntry, Observation, PendingReduction, Unsupported
from adapters.engines.shells import OnMegatron
from adapters.skyrl import driving, importing
from adapters.skyrl.framework import FSDP, MEGATRON, SKYRL
from adapters.skyrl.importing import module, ppo_utils
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.settings import has_critic, has_kl_term, trained_model
from adapters.toolkit.worlds import observation
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


SCALING = "apply_loss_reduction_to_advantages_minibatch"
"""SkyRL's function that reduces by scaling advantages; older versions reduce the loss itself."""

WORKER_UTILS = "backends.skyrl_train.workers.worker_utils"


class SkyRLAdapter(Adapter):
    """Drives NovaSky-AI/SkyRL, the `skyrl` package, from 0.2.0 on."""

    name = "skyrl"
    package = "skyrl"
    versions = "SkyRL since 0.2.0"
    distribution = "skyrl"
    tree = ("skyrl", "skyrl-gym")
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    recipes = "adapters.skyrl.recipe:read"
    framework: ClassVar[Framework] = SKYRL

    @property
    def engine_module(self) -> Any:
        """The module of the engine, which imports torch.

        ``add_seams`` adds the probe where the engine uses logits. ``precision`` returns the
        settings for parameters of a dtype. ``worker`` makes SkyRL's worker of the policy or of the
        critic on this rank, which collects gradients in ``gradients``, and the token ids given to
        its model in ``passes``.
        """
        return importlib.import_module(f"adapters.skyrl.{self.engine}")

    def load(self, source: Path | None) -> None:
        """Import SkyRL and its engine."""
        importing.import_skyrl(source)
        self.engine_module.add_seams()

    def describe(self) -> Description:
        """Describe SkyRL by the options and values that its configuration accepts."""
        scales_advantages = hasattr(ppo_utils(), SCALING)
        default = module("train.config").AlgorithmConfig().loss_reduction
        return self.framework.description(
            partial(importing.offers, self.framework.always),
            importing.option_names(),
            importing.default,
            default_mode=Mode(self.mode_names[default]),
            depths=frozenset(Depth if scales_advantages else (Depth.LOSS, Depth.STEP)),
            rules=_rules(),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one rollout."""
        batch = ProbedBatch.of(job)
        rollouts = driving.SkyRLRollouts(batch, job)
        with rank.framework():
            of_rank = self.engine_module.precision(rank.dtype)
            config = driving.configured(self.framework, job, of_rank)
        if job.depth is Depth.REDUCER:
            with rank.framework():
                gradient = driving.reduce(config, rollouts)
            return Observation(token_weights=batch.split(batch.weights(gradient)))
        models = ("policy", "critic") if has_critic(job) else ("policy",)
        workers = {
            model: self.engine_module.worker(model, config, job, batch.probe_size, rank)
            for model in models
        }
        dispatch = driving.Dispatch(workers, rollouts)
        with rank.framework(), refusals_of_configuration(job):
            log = driving.train(config, dispatch, rollouts)
        whole = job.depth is Depth.STEP
        reported = self.framework.reported(dispatch.statuses) | self.framework.reported([log])
        if not has_kl_term(job):  # engines then report 0 without computing the metric
            reported.pop(Metric.KL, None)
        return observation(
            batch,
            workers[trained_model(job, "policy")].gradients.drain(),
            dispatch.forward_passes,
            reported if whole else {},
            pending_reduction=PendingReduction.REPLICATED if whole else PendingReduction.MEAN,
        )

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Reduce entries over micro-batches and one rank, as a worker does."""
        import torch.distributed as dist

        values: dict[str, list[float]] = defaultdict(list)
        for entry in entries:
            _require_dictionary(entry, entries[0])
            for key, value in zip(entry.keys, entry.values, strict=True):
                values[key].append(value)
        utils, strategy = module(WORKER_UTILS), SimpleNamespace(world_size=1)
        base = module("backends.skyrl_train.distributed.strategy").DistributedStrategy
        # SkyRL's engines share this reduction.
        strategy.all_reduce = partial(base.all_reduce, strategy)
        with rank.framework():
            reduced = utils.reduce_metrics(values, sum_loss_metrics=True)
            return utils.all_reduce_metrics(
                reduced, strategy, group=dist.group.WORLD, sum_loss_metrics=True
            )


class SkyRLFsdpAdapter(SkyRLAdapter):
    """SkyRL with its FSDP engine."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")
    framework = FSDP


class SkyRLMegatronAdapter(OnMegatron, SkyRLAdapter):
    """SkyRL with its Megatron engine.

    The worker initialises its process groups and its model with its own code and its default data
    parallelism: the distributed optimizer and averaging in the collective. Our model replaces the
    one that Megatron-Bridge would build from a checkpoint.
    """

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")
    framework = MEGATRON


def _rules() -> dict[str, str]:
    """The rules that SkyRL states, each with the function that enforces it."""
    validate = module("train.utils.utils").validate_cfg
    divergence = ppo_utils().compute_approx_kl
    functions = {
        # SkyRL's own comment in this function: "can leak `nan` from masked positions"
        "poison.reference_log_probs": divergence,
        "poison.logged_reference_log_probs": divergence,
        "default_mode": module("train.config").AlgorithmConfig,
        "group_incomplete": module("train.utils.trainer_utils").validate_generator_output,
    }
    # older versions derive max_seq_len from lengths
    if "max_seq_len" in inspect.getsource(validate):
        functions["divisor_missing"] = validate
    return {rule: code_location(function) for rule, function in functions.items()}


def _require_dictionary(entry: LogEntry, first: LogEntry) -> None:
    """Raise `Unsupported` unless an entry is a dictionary of numbers, as SkyRL's entries are."""
    if entry.normalizers is not None or entry.count != 1:
        raise Unsupported("no divisors in log entries: SkyRL's have one number per key")
    if len(entry.keys) != len(entry.values):
        raise Unsupported("no log entries with separate keys and values: SkyRL's are dictionaries")
    if entry.keys != first.keys and set(entry.keys) == set(first.keys):
        raise Unsupported("no order of keys in log entries: SkyRL's are dictionaries")
