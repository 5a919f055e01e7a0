"""The adapter of `GRPOTrainer`, for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Assumed, CodeLocation, Documented, Job
from adapters.contract.job import Setting
from adapters.trl import departures, importing
from adapters.trl.adapter import TrlAdapter
from adapters.trl.grpo import objectives
from adapters.trl.grpo.configuration import TYPED, settings
from reference.aggregation import AuxiliaryAggregation, DenominatorMask, EstimatorConventions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.description import Convention
    from adapters.toolkit.calls import Candidates
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule
    from adapters.trl.training import Training

CONVENTIONS: Mapping[str, Convention] = {
    "denominator_mask": Documented(
        DenominatorMask.ORIGINAL, "trl/trainer/grpo_config.py, vllm_importance_sampling_mode"
    ),
    "entropy": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
    "kl": Documented(
        AuxiliaryAggregation.WITH_POLICY_LOSS, "docs/source/grpo_trainer.md, Computing the loss"
    ),
    "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "of_groups": Assumed(EstimatorConventions(std_epsilon=1e-4)),
    "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
}
"""What the modes leave open. Ratios to vLLM's policy outside of the bounds are set to 0 and stay in
the mean, and the divergence is part of each token's loss. TRL's documents call the entropy bonus
the mean entropy of tokens, and logged entropies, divergences and clip ratios averages over
completions (docs/source/grpo_trainer.md); they do not say whether they are pooled over a step."""

ESTIMATOR = "trl/trainer/grpo_config.py, use_bias_correction_kl"
"""Where TRL documents the estimator: k3, times the ratio if the option is on."""

RULES = {
    "default_mode": "trl/trainer/grpo_config.py (loss_type)",
    "divisor_by_default": "trl/trainer/grpo_config.py (dr_grpo in loss_type: the constant is"
    " max_completion_length, which defaults to 512)",
    "mode_in_file": "trl/scripts/utils.py (TrlParser)",
}
"""Rules for configurations that TRL states, by name."""

PERMITTED = {
    "divisor_missing": RULES["divisor_by_default"],
    "divisor_missing_in_file": RULES["divisor_by_default"],
    **dict.fromkeys(
        ("divisor_of_another_mode", "divisor_of_another_mode_in_file"),
        "trl/trainer/grpo_config.py (max_completion_length is the length to generate)",
    ),
}
"""Rules of other frameworks whose opposite TRL states."""


class GrpoAdapter(TrlAdapter):
    """Drives `GRPOTrainer`."""

    mode_names: ClassVar[Mapping[str, str]] = objectives.NAMES_OF_MODES

    departures = (*departures.GENERATING, *departures.GRPO)

    def found(self) -> dict[str, Any]:
        """What the version has, and what its configuration may set."""
        return {
            "modes": objectives.modes(),
            "default_mode": objectives.default_mode(),
            "objectives": objectives.objectives(),
            "configurations": {
                Setting.CONFIG_FILE: (),
                **{setting: (name,) for setting, name in TYPED.items()},
            },
            "rules": RULES,
            "permits": PERMITTED,
        }

    def declared(self) -> Mapping[str, Convention]:
        """The conventions of all versions, with the version's estimator of the divergence."""
        return {**CONVENTIONS, "kl_estimator": Documented(objectives.kl_estimator(), ESTIMATOR)}

    def iterations(self, job: Job) -> int:
        """Several if ratios must not be 1."""
        return objectives.iterations(job)

    def settings(self, job: Job, schedule: Schedule) -> Settings:
        """The settings for a job; raises `Unsupported`."""
        return settings(job, schedule)

    def trainings(self) -> type[Training]:
        """Runs of `GRPOTrainer`."""
        from adapters.trl.grpo.trainer import GrpoTraining

        return GrpoTraining

    def candidates(self) -> Candidates:
        """The functions in which the trainer counts, divides, logs and validates."""
        trainer = importing.module("trainer.grpo_trainer").GRPOTrainer
        config = importing.module("trainer.grpo_config").GRPOConfig
        return {
            CodeLocation.TOKEN_COUNT: ((trainer, "_generate_and_score_completions"),),
            CodeLocation.TOKEN_DIVISION: ((trainer, "_compute_loss"), (trainer, "compute_loss")),
            CodeLocation.LOG: ((trainer, "log"),),
            CodeLocation.ARGUMENTS: ((config, "__post_init__"),),
        }
