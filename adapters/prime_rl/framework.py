"""The record of prime-rl: options of its trainer and its orchestrator, and what it documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Framework
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines.shells import ZEROED
from adapters.toolkit.settings import token_budget
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    DenominatorMask,
    DivergenceEstimator,
    EstimatorConventions,
    Lone,
    Mode,
)

if TYPE_CHECKING:
    from adapters.contract import Job


def _all_tokens(job: Job) -> int:
    """A token budget with which a rank has one micro-batch."""
    if job.layout.micro_batches != 1:
        raise Unsupported("micro-batches are cut by tokens, not by their number")
    lengths = [step.prompt_lengths + step.response_lengths for step in job.steps]
    return 1 + sum(int(of_step.sum()) for of_step in lengths)


PRIME_RL = Framework(
    title="prime-rl",
    scope="Of the trainer unless a row begins with `orchestrator`.",
    modes={
        "default": (Mode.TOKEN_MEAN, {}),
        "ipo": (Mode.TOKEN_MEAN, {"loss.type": "ipo"}),
    },
    objectives={
        Objective.POLICY: {},
        # It rejects a token whose probability has moved, up or down, whatever its advantage.
        Objective.REJECTION: {"loss.type": "ipo", "loss.kl_tau": 0.0},
        Objective.DPPO_TV: {
            "loss.dppo_mask_low": CONSTANTS.variation_low,
            "loss.dppo_mask_high": CONSTANTS.variation_high,
            "loss.kl_tau": 0.0,
        },
        Objective.GPG: {
            "loss.type": "custom",
            "loss.import_path": "adapters.prime_rl.driving.policy_gradient",
        },
        Objective.KL: {"orchestrator.algo.type": "opd"},
        Objective.SFT: {"orchestrator.algo.type": "sft"},
        Objective.GROUP_CENTRED: {"orchestrator.algo.type": "grpo"},
        Objective.MEAN_NORMALISED: {"orchestrator.algo.type": "max_rl"},
    },
    layout={
        "mb": {"orchestrator.seq_len": _all_tokens},
        "mbtokens": {
            "orchestrator.seq_len": lambda job: token_budget(job.steps, job.layout.dp),
        },
        "cp": {"model.cp": lambda job: job.layout.cp},
        Option.HYBRID_SHARDING: {"model.dp_replicate": 2},
        Option.NOT_SHARDED: {"model.dp_replicate": lambda job: job.layout.dp},
    },
    always={
        "max_steps": lambda job: len(job.steps),
        "rollout_transport.type": "filesystem",
        "optim.lr": 0.0,
        "optim.weight_decay": 0.0,
        "gc": None,
        "log.level": "error",
        "model.name": "probe",
        "model.attn": "flash_attention_2",
        "model.impl": "custom",
        "model.ep": 1,
        "model.ac_offloading": None,
        "model.optim_cpu_offload": False,
    },
    metrics={Metric.POLICY_LOSS: "loss/mean", Metric.REJECTED: "is_masked/mean"},
    # Tokens that a trust region masks are members of their component of the loss, which is divided
    # by the global count of its members. The divergence from a reference model is a policy gradient
    # with the log-ratio for an advantage. Metrics are averaged over sequences.
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL, "docs/algorithms.md, Default RL Loss"
        ),
        "kl": Documented(AuxiliaryAggregation.TOKEN_MEAN, "docs/algorithms.md, Loss Components"),
        "diagnostics": Documented(
            AuxiliaryAggregation.SAMPLE_MEAN, "docs/algorithms.md, Custom Loss"
        ),
        "of_groups": Documented(
            EstimatorConventions(std_epsilon=0.0), "docs/algorithms.md, the table of types"
        ),
        "compared": Documented(Compared.LAST_SAMPLES, "docs/algorithms.md, Default Advantage"),
        "lone_reward": Assumed(Lone.ZERO),
        "kl_estimator": Documented(
            DivergenceEstimator.K1_BY_RATIO, "docs/algorithms.md, Loss Components, ref_kl"
        ),
    },
    options=read_options("adapters.prime_rl"),
    departures=(*read_departures("adapters.prime_rl"), ZEROED),
)
