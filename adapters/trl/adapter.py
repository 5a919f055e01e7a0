"""The adapter that TRL's engines share, from rollouts to the optimizer's gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from adapters.contract.adapter import Adapter, Rank, Unsupported
from adapters.contract.configuration import Setting
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Layout, Option
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.calls import Candidates, places, refusals_of_configuration
from adapters.trl import departures, importing, objectives
from reference.aggregation import (
    AuxiliaryAggregation,
    Conventions,
    DenominatorMask,
    DivergenceEstimator,
    EstimatorConventions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.trl.objectives import Settings

CONVENTIONS = Conventions(
    denominator_mask=DenominatorMask.ORIGINAL,
    entropy=AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
    kl=AuxiliaryAggregation.WITH_POLICY_LOSS,
    diagnostics=AuxiliaryAggregation.TOKEN_MEAN,
    of_groups=EstimatorConventions(std_epsilon=1e-4),
    kl_estimator=DivergenceEstimator.K3_BY_RATIO,
    logged_entropy=AuxiliaryAggregation.TOKEN_MEAN,
    logged_kl=AuxiliaryAggregation.TOKEN_MEAN,
)
"""The conventions that TRL documents. An entropy bonus is the mean entropy of a micro-batch's
tokens, whatever the loss type, and a divergence is a part of each token's loss (comments in
`trainer/grpo_trainer.py`, ``_compute_loss``, and `trainer/grpo_config.py`, ``entropy_coef``); the
latter is estimated by k3, times the ratio if ``use_bias_correction_kl`` is on. Logged entropies,
divergences and clip ratios are averages over the tokens of completions (docs/source/
grpo_trainer.md, Logged metrics). Ratios to vLLM's policy that are masked are 0 (the same page), and
denominators count the mask of completions."""

RULES = {
    "default_mode": "trl/trainer/grpo_config.py (loss_type)",
    "divisor_by_default": "trl/trainer/grpo_config.py (dr_grpo in loss_type: the constant is"
    " max_completion_length, which defaults to 512)",
    "mode_in_file": "trl/scripts/utils.py (TrlParser)",
}
"""Rules of configurations that TRL states, by name."""

PERMITTED = {
    "divisor_missing": RULES["divisor_by_default"],
    "divisor_missing_in_file": RULES["divisor_by_default"],
    **dict.fromkeys(
        ("divisor_of_another_mode", "divisor_of_another_mode_in_file"),
        "trl/trainer/grpo_config.py (max_completion_length is the length to generate)",
    ),
}
"""Rules of other frameworks whose opposite TRL states."""


class TrlAdapter(Adapter):
    """Drives huggingface/trl."""

    name = "trl"
    package = "trl"
    distribution = "trl"
    tree = ("trl",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("accelerate", "transformers")
    mode_names: ClassVar[Mapping[str, str]] = objectives.NAMES_OF_MODES

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, and generations of more and fewer micro-batches."""
        plain = [
            Layout(dp=dp, micro_batches=micro_batches)
            for dp in (1, 2, 4)
            for micro_batches in (1, 2)
        ]
        return [
            *plain,
            Layout(micro_batches=4),
            Layout(dp=2, micro_batches=2, options=(Option.SHARED_GENERATION,)),
            Layout(dp=2, micro_batches=2, options=(Option.SPLIT_GENERATION,)),
            Layout(dp=2, micro_batches=2, options=(Option.MASKED_TRUNCATION,)),
        ]

    def load(self, source: Path | None) -> None:
        """Import TRL and its trainers."""
        importing.import_trl(source)

    def describe(self) -> Description:
        """Describe TRL."""
        from adapters.trl import startup, trainer, versions

        return Description(
            modes=versions.modes(),
            default_mode=versions.default_mode(),
            depths=frozenset({Depth.STEP}),
            objectives=versions.objectives(),
            metrics=frozenset(trainer.NAMES),
            options=frozenset(
                {
                    Option.SHARED_GENERATION,
                    Option.SPLIT_GENERATION,
                    Option.MASKED_TRUNCATION,
                }
            ),
            configurations={
                Setting.CONFIG_FILE: (),
                **{setting: (name,) for setting, name in startup.TYPED.items()},
            },
            records_forward_passes=True,
            conventions=replace(CONVENTIONS, kl_estimator=versions.kl_estimator()),
            rules=RULES,
            places=places(_candidates()),
            permits=PERMITTED,
            departures=departures.ALL_ENGINES,
        )

    def enter_world(self, rank: Rank) -> None:
        """Let the next trainer find this rank's world."""
        from adapters.engines import accelerate

        accelerate.enter_world(rank)

    def settings_of_engine(self) -> Settings:
        """The engine's own settings."""
        return {}

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch in one run of the trainer."""
        from adapters.toolkit.probe import probe_capacity
        from adapters.trl import versions
        from adapters.trl.configuration import settings
        from adapters.trl.rollouts import Rollouts
        from adapters.trl.schedule import schedule_of
        from adapters.trl.trainer import Training

        if importing.needs_triton():
            raise Unsupported("this version's LM head runs on Triton alone, which is not installed")
        batch = ProbedBatch(job.steps, job.objective, versions.kl_estimator())
        schedule = schedule_of(job, objectives.iterations(job))
        chosen = settings(job, schedule) | self.settings_of_engine()
        rollouts = Rollouts(batch, job, schedule, rank.index)
        self.enter_world(rank)
        with rank.framework(), refusals_of_configuration(job):
            training = Training(job, rollouts, probe_capacity(batch.probe_size + 1), chosen)
        passes = training.passes.drain()
        return Observation(
            token_weights=batch.weights_of_steps(training.gradients),
            reported=training.reported,
            forward_passes=batch.forward_passes(passes),
            rows=batch.rows(passes),
        )

    def leave_world(self) -> None:
        """Forget what Accelerate keeps of the world."""
        from adapters.engines import accelerate

        accelerate.leave_world()


def _candidates() -> Candidates:
    """Where TRL counts, divides, logs and validates."""
    trainer = importing.module("trainer.grpo_trainer").GRPOTrainer
    config = importing.module("trainer.grpo_config").GRPOConfig
    return {
        CodeLocation.TOKEN_COUNT: ((trainer, "_generate_and_score_completions"),),
        CodeLocation.TOKEN_DIVISION: ((trainer, "_compute_loss"), (trainer, "compute_loss")),
        CodeLocation.LOG: ((trainer, "log"),),
        CodeLocation.ARGUMENTS: ((config, "__post_init__"),),
    }
