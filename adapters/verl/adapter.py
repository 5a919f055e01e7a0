"""The adapter that verl's engines share, from a batch of rollouts to the optimizer's gradient.

Every rank runs the trainer itself, as `trainers` describes. verl's worker builds its engine around
our model, which carries the probe, through verl's own extension points.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.configuration import FaultInjection, Setting
from adapters.contract.description import Assumed, Departure, Description, Documented
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Option
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.settings import has_critic, trained_model
from adapters.toolkit.worlds import cached, observation
from adapters.verl import configuration, departures, importing, objectives
from adapters.verl.sizes import of_last_epoch
from adapters.verl.worker import configure_anew
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    LoggedMean,
    Mode,
    TokenSet,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from adapters.contract.description import Convention
    from adapters.contract.layout import Layout

SKIPPING = EstimatorConventions(transitions=TokenSet.ACTIVE, rewarded=TokenSet.RESPONSE)
OF_ACTIVE_TOKENS = LoggedMean(mode=Mode.TOKEN_MEAN)

CONVENTIONS: Mapping[str, Convention] = {
    "denominator_mask": Documented(
        DenominatorMask.MODIFIED,
        "docs/algo/rollout_corr.md, Rejection Sampling (Separate Mechanism)",
    ),
    "empty_units": Assumed(EmptyUnits.COUNTED),
    "entropy": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
    "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
    "diagnostics": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
    "rejected": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "value_loss": Documented(
        AuxiliaryAggregation.WITH_POLICY_LOSS,
        "verl/trainer/config/critic/critic.yaml, loss_agg_mode",
    ),
    "of_returns": Documented(SKIPPING, "tests/trainer/ppo/test_reinforce_pp_multiturn_on_cpu.py"),
    "of_values": Documented(SKIPPING, "tests/trainer/ppo/test_core_algos_on_cpu.py"),
    "logged_advantages": Assumed(OF_ACTIVE_TOKENS),
    "logged_values": Assumed(OF_ACTIVE_TOKENS),
}
"""What the modes leave open. The assumed ones come from ``ppo_loss`` in `workers/utils/losses.py`,
which aggregates entropy and divergence like the policy loss and averages diagnostics over
micro-batches, and from ``compute_data_metrics`` in `trainer/ppo/metric_utils.py`. A sample's reward
is at its last token (`experimental/agent_loop`). ``agg_loss`` in `trainer/ppo/core_algos.py`
excludes fully masked sequences from its sums, and its comments say so; its divisor is
``global_batch_size``, which trainers set to the configured size of a mini-batch."""

CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_agg_mode",),
    Setting.DIVISOR: ("loss_scale_factor",),
    Setting.ENTROPY: ("entropy_coeff",),
    Setting.KL: ("use_kl_loss",),
    Setting.BATCH_SIZE: ("mini_batch_size",),
}
"""The settings that configurations may change, and verl's names for them."""

RULES = {
    "default_mode": "verl/trainer/config/actor/actor.yaml (loss_agg_mode)",
    "divisor_by_default": "verl/workers/config/actor.py (ActorConfig: if loss_scale_factor is None,"
    " response_length)",
}
"""Rules for configurations that verl states, by name."""

PERMITTED = {"divisor_missing": RULES["divisor_by_default"]}
"""Rules of other frameworks whose opposite verl states."""

DELIBERATE = {
    "filling_rows_counted": Assumed(
        "global_batch_size is the configured size of a mini-batch, padded or not"
    ),
    "padding_micro_batches_averaged": Assumed(
        "metrics of the policy loss are means over micro-batches, padding-only ones included"
    ),
}
"""Mistakes of the catalogue that verl makes on purpose, by name: ``_update_actor`` in
`trainer/ppo/v1/trainer_base.py` and ``ppo_loss`` in `workers/utils/losses.py`. verl says that
padding rows contribute nothing (`trainer/ppo/padding_utils.py`), which is true of their tokens."""


class VerlAdapter(Adapter):
    """Drives volcengine/verl from 0.7.1 on."""

    name = "verl"
    package = "verl"
    versions = "verl since 0.7.1"
    distribution = "verl"
    tree = ("verl",)
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    mode_names: ClassVar[Mapping[str, str]] = {
        **{name: mode for mode, name in configuration.LOSS_AGG_MODES.items()},
        "seq-mean-token-sum": "constant:1",
    }

    @abstractmethod
    def settings(self, job: Job, dtype: str) -> Mapping[str, object]:
        """The engine's settings in verl's configuration, by path."""

    @abstractmethod
    def divisor(self, layout: Layout) -> int:
        """The number of ranks that divides mini-batches, as verl validates."""

    @abstractmethod
    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """verl's worker of a role on this rank, the ``actor`` or the ``critic``.

        It collects gradients in ``gradients`` and the model's inputs in ``passes``.
        """

    def worker(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """The worker of a role, configured; the jobs of a world share those that fit."""
        key = self.engine, role, layout.cp, layout.format, layout.options, capacity
        worker = cached(rank, key, lambda: self.make(role, config, layout, capacity, rank))
        configure_anew(role, worker, config)
        return worker

    def load(self, source: Path | None) -> None:
        """Import verl, its engines and its trainer, with the probe."""
        importing.import_verl(source)
        from adapters.verl.model import put_the_probe_in

        put_the_probe_in()

    def describe(self) -> Description:
        """Describe verl by what its aggregation and its registries support."""
        return Description(
            modes=frozenset(configuration.LOSS_AGG_MODES),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=objectives.objectives(),
            metrics=_metrics(),
            options=frozenset(
                {Option.TWO_EPOCHS, Option.LEGACY_TRAINER}
                if importing.has_default_trainer()
                else {Option.TWO_EPOCHS}
            ),
            configurations=CONFIGURATIONS,
            records_forward_passes=True,
            declared=CONVENTIONS,
            rules=RULES,
            permits=PERMITTED,
            deliberate=DELIBERATE,
            fixed_modes=objectives.FIXED_MODES,
            departures=(
                *_departures_of_trainers(),
                *departures.CRITIC_AND_SFT,
                *departures.ALL_ENGINES,
            ),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one trainer's step."""
        from adapters.toolkit.probe import probe_capacity

        batch = ProbedBatch(job.steps, job.objective)
        capacity = probe_capacity(batch.probe_size + 1)
        with rank.framework(), refusals_of_configuration(job):
            settings = dict.fromkeys(configuration.paths_of_capacity(job), capacity)
            config = configuration.configure(
                job, {**settings, **self.settings(job, rank.dtype)}, self.divisor(job.layout)
            )
            roles = ("actor", "critic") if has_critic(job) else ("actor",)
            workers = {
                role: self.worker(role, config, job.layout, capacity, rank) for role in roles
            }
            reported = _training(job)(config, workers, batch, job)
        trained = workers[trained_model(job, "actor")]
        passes = of_last_epoch(trained.passes.drain(), job)
        gradients = of_last_epoch(trained.gradients.drain(), job)
        skipped = frozenset(i for i, one in enumerate(gradients) if one is None)
        return observation(batch, gradients, passes, reported, skipped_steps=skipped)


def _metrics() -> frozenset[Metric]:
    """The metrics that this version logs; rollout metrics of the legacy trainer are not read."""
    from adapters.verl.trainers.default import NAMES_OF_ROLLOUTS
    from adapters.verl.trainers.worker_groups import NAMES

    of_loss = importing.module("workers.utils.losses").ppo_loss.__code__.co_consts
    logs_entropy = NAMES[Metric.ENTROPY] in of_loss  # since January 2026
    of_rollouts = NAMES_OF_ROLLOUTS if importing.has_default_trainer() else {}
    missing = set() if logs_entropy else {Metric.ENTROPY}
    return frozenset({*NAMES, *of_rollouts} - missing)


def _departures_of_trainers() -> tuple[Departure, ...]:
    """Those of both trainers, or of the legacy one if there is no other."""
    if importing.has_default_trainer():
        return (*departures.DEFAULT_TRAINER, *departures.LEGACY_TRAINER)
    return (*departures.LEGACY_TRAINER, *departures.OLDER_VERSIONS)


def _training(job: Job) -> Callable[..., Mapping[Metric, tuple[float | None, ...]]]:
    """The function that drives the trainer of a job."""
    from adapters.verl.trainers import default, legacy, sft

    if Option.LEGACY_TRAINER in job.layout.options or not importing.has_default_trainer():
        return legacy.train
    return sft.train if job.objective is Objective.SFT else default.train
