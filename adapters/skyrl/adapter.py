"""The adapter that SkyRL's engines share, from rollouts to the chunk that a worker trains on.

Every rank runs the trainer itself: it converts the same rollouts, normalises advantages, cuts them
into mini-batches and data-parallel chunks with SkyRL's code, and passes its chunk to SkyRL's
worker. We supply a model that carries the probe, a seam where SkyRL computes log-probabilities, a
dispatch that calls the worker instead of a Ray actor, and an optimizer that reads the gradient.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.configuration import FaultInjection, Setting
from adapters.contract.conventions import Assumed, Documented
from adapters.contract.description import CodeLocation, Description, code_location
from adapters.contract.job import Depth, Job, LogEntry, Observation, PendingReduction, Unsupported
from adapters.contract.probed_batch import ProbedBatch
from adapters.skyrl import configuration, departures, trainer
from adapters.skyrl.importing import STUBBED, import_skyrl, module, ppo_utils
from adapters.toolkit.calls import places, refusals_of_configuration
from adapters.toolkit.settings import has_critic, trained_model
from adapters.toolkit.worlds import observation
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    EstimatorConventions,
    LoggedMean,
    Mode,
    TokenSet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract.conventions import Convention
AT_THE_LAST_TOKEN = EstimatorConventions(rewarded=TokenSet.RESPONSE, whitened=TokenSet.RESPONSE)

CONVENTIONS: Mapping[str, Convention] = {
    "denominator_mask": Documented(
        DenominatorMask.ORIGINAL,
        "docs/content/docs/algorithms/off_policy_correction.mdx, Token Masking",
    ),
    "entropy": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
    "kl": Assumed(AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN),
    "diagnostics": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
    "of_groups": Assumed(
        EstimatorConventions(whitened=TokenSet.RESPONSE, lost_degrees_of_freedom=0)
    ),
    "of_returns": Assumed(AT_THE_LAST_TOKEN),
    "of_values": Assumed(AT_THE_LAST_TOKEN),
    "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN, tokens=TokenSet.RESPONSE)),
}
"""What the modes leave open. Masking a token by a correction does not change other tokens.
The assumed ones come from the workers, which add a micro-batch's mean entropy over tokens and mean
divergence over sequences to its loss and average them over data-parallel ranks and over the
micro-batches that have samples; from ``reduce_metrics``, which averages other metrics over
micro-batches; and from ``compute_advantages_and_returns``."""

GROUPS = ("group", "prompt", "n_samples_per_prompt")

CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_reduction",),
    Setting.DIVISOR: ("max_seq_len",),
    Setting.ENTROPY: ("entropy",),
    Setting.KL: ("kl",),
    Setting.BATCH_SIZE: ("batch", *GROUPS),
    Setting.CORRECTION: ("tis", "correction"),
    FaultInjection.GROUP_INCOMPLETE: GROUPS,
}
"""What SkyRL's configuration and its users' generators may set, with SkyRL's names. Group
boundaries are missing because only `compute_prompt_boundaries` sets them."""

PERMITTED = {
    "divisor_of_another_mode": "docs/content/docs/harbor and examples/train_integrations/harbor,"
    " which tell users to set max_seq_len in every mode"
}
"""Rules of other frameworks whose opposite SkyRL states."""

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
    mode_names: ClassVar[Mapping[str, str]] = {
        name: mode for mode, name in configuration.LOSS_REDUCTIONS.items()
    }

    @abstractmethod
    def load_engine(self) -> None:
        """Import the engine's worker and put the seams where it uses logits."""

    @abstractmethod
    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """The engine's settings in SkyRL's configuration, by path."""

    @abstractmethod
    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, which collects gradients in ``gradients``."""

    def critic(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's critic worker on this rank, for engines with the objective `VALUE`."""
        raise NotImplementedError

    def load(self, source: Path | None) -> None:
        """Import SkyRL and its engine."""
        import_skyrl(source)
        self.load_engine()

    def describe(self) -> Description:
        """Describe SkyRL by what its reduction function and configuration accept."""
        known = Depth if configuration.scales_advantages() else (Depth.LOSS, Depth.STEP)
        return Description(
            modes=configuration.modes(),
            default_mode=configuration.default_mode(),
            depths=frozenset(known),
            objectives=configuration.objectives(),
            metrics=frozenset({*trainer.NAMES, *trainer.NAMES_OF_ROLLOUTS}),
            configurations=CONFIGURATIONS,
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=self._places(),
            rules=_rules(),
            permits=PERMITTED,
            stubs=tuple(STUBBED),
            departures=departures.ALL_ENGINES,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one rollout."""
        batch = ProbedBatch(job.steps, job.objective)
        rollouts = trainer.Rollouts(batch, job)
        with rank.framework():
            config = configuration.configure(job, self.settings(job, rank.dtype))
        if job.depth is Depth.REDUCER:
            with rank.framework():
                gradient = trainer.reduce(config, rollouts)
            return Observation(token_weights=batch.split(batch.weights(gradient)))
        workers = {"policy": self.worker(config, job, batch.probe_size, rank)}
        trained = trained_model(job, "policy")
        if has_critic(job):
            workers["critic"] = self.critic(config, job, batch.probe_size, rank)
        dispatch = trainer.Dispatch(workers, rollouts)
        with rank.framework(), refusals_of_configuration(job):
            of_rollouts = trainer.train(config, dispatch, rollouts)
        whole = job.depth is Depth.STEP
        return observation(
            batch,
            workers[trained].gradients.drain(),
            dispatch.forward_passes,
            dispatch.reported | of_rollouts if whole else {},
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
        strategy.all_reduce = partial(base.all_reduce, strategy)  # the same for all its engines
        with rank.framework():
            reduced = utils.reduce_metrics(values, sum_loss_metrics=True)
            return utils.all_reduce_metrics(
                reduced, strategy, group=dist.group.WORLD, sum_loss_metrics=True
            )

    def _places(self) -> dict[CodeLocation, str]:
        dispatch = module("backends.skyrl_train.distributed.dispatch").MeshDispatch
        staging = (dispatch, "stage_chunks"), (dispatch, "dispatch_from_staged")
        reducer = configuration.SCALING if configuration.scales_advantages() else "reduce_loss"
        return places(
            {
                CodeLocation.TOKEN_COUNT: ((ppo_utils(), reducer),),
                # One commit uses another name.
                CodeLocation.LOG: ((module(WORKER_UTILS), "reduce_metrics"),),
                CodeLocation.ARGUMENTS: ((module("train.utils.utils"), "validate_cfg"),),
                # In older versions each rank cuts its part out of the whole batch.
                CodeLocation.SHARDING: staging,
            }
        )


def _rules() -> dict[str, str]:
    """The rules that SkyRL states, each with the function that enforces it."""
    validate = module("train.utils.utils").validate_cfg
    functions = {
        "default_mode": module("train.config").AlgorithmConfig,
        "group_incomplete": module("train.utils.trainer_utils").validate_generator_output,
    }
    if "max_seq_len" in inspect.getsource(validate):  # older versions derive it from lengths
        functions["divisor_missing"] = validate
    return {rule: code_location(function) for rule, function in functions.items()}


def _require_dictionary(entry: LogEntry, first: LogEntry) -> None:
    """Raise `Unsupported` unless an entry is a dictionary of numbers, as SkyRL's are."""
    if entry.normalizers is not None or entry.count != 1:
        raise Unsupported("no divisors in log entries: SkyRL's have one number per key")
    if len(entry.keys) != len(entry.values):
        raise Unsupported("no log entries with separate keys and values: SkyRL's are dictionaries")
    if entry.keys != first.keys and set(entry.keys) == set(first.keys):
        raise Unsupported("no order of keys in log entries: SkyRL's are dictionaries")
