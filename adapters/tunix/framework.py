"""The record of tunix: fields of its configurations, and its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Configurable, Framework, parse_options
from adapters.contract.job import Setting, Unsupported
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.grpo import CLIPPED, OF_VALUES, PENALTY
from adapters.toolkit.settings import samples_per_step, whole_divisor
from reference.aggregation import AuxiliaryAggregation, DivergenceEstimator, EmptyUnits, Mode

if TYPE_CHECKING:
    from adapters.contract import Job

TESTS = "tests/rl/common_test.py (test_aggregate_loss_values)"
CONFIG = "tunix/rl/grpo/grpo_learner.py (GRPOConfig)"


def samples_of_prompt(job: Job) -> int:
    """The samples of a prompt: 2 or all of a micro-batch, or those of the case's prompts.

    The case's are taken where advantages are compared within a prompt. Raises `Unsupported` if a
    micro-batch would not have whole prompts.
    """
    size = generations_of_prompt(job, replace(schedule_of(job), per_generation=1))
    if size < 2:
        raise Unsupported("no num_generations of 1")
    return size


def _prompts(samples: int, job: Job) -> int:
    return samples // samples_of_prompt(job)


def _micro_batch(job: Job) -> int:
    schedule = schedule_of(job)
    return _prompts(schedule.micro_batch_size * schedule.ranks, job)


def _width(job: Job) -> int:
    """The longest response that is generated, which is the divisor of `constant`."""
    longest = max(int(step.response_lengths.max()) for step in job.steps)
    width = whole_divisor(job, "max_tokens_to_generate") or longest
    if width < longest and width > 1:
        raise Unsupported(f"no response of {longest} tokens with max_tokens_to_generate={width}")
    return max(width, longest)


TUNIX = Framework(
    title="tunix",
    scope="Fields of `GRPOConfig`, `RLTrainingConfig` and `RolloutConfig`.",
    modes={
        "sequence-mean-token-mean": (
            Mode.SAMPLE_MEAN,
            {"loss_agg_mode": "sequence-mean-token-mean"},
        ),
        "token-mean": (Mode.TOKEN_MEAN, {"loss_agg_mode": "token-mean"}),
        "sequence-mean-token-scale": (
            Mode.CONSTANT,
            {"loss_agg_mode": "sequence-mean-token-scale", "max_tokens_to_generate": _width},
        ),
        "seq-mean-token-sum": ("constant:1", {"loss_agg_mode": "seq-mean-token-sum"}),
        "sequence-mean-token-sum-norm": (
            "constant:1",
            {"loss_agg_mode": "sequence-mean-token-sum-norm"},
        ),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.TIS_TOKEN: {
            **CLIPPED,
            "sampler_is": "token",
            "sampler_is_threshold": CONSTANTS.truncation,
        },
        Objective.GSPO: {**CLIPPED, "loss_algo": "gspo-token"},
        Objective.KL: PENALTY,
        Objective.GROUP_NORMALISED: {"advantage_estimator": "grpo"},
        Objective.GROUP_CENTRED: {"advantage_estimator": "drgrpo"},
        Objective.LEAVE_ONE_OUT: {"advantage_estimator": "rloo"},
    },
    layout={
        "dp": {"mesh.shape": lambda job: (job.layout.dp,)},
        "accumulated": {"train_micro_batch_size": _micro_batch},
    },
    always={
        "beta": 0.0,
        "temperature": 1.0,
        "num_generations": samples_of_prompt,
        "mini_batch_size": lambda job: _prompts(samples_per_step(job.steps), job),
        "max_tokens_to_generate": _width,
        "max_steps": lambda job: len(job.steps),
        "eval_every_n_steps": lambda job: len(job.steps) + 1,
    },
    configurations={
        Setting.MODE: Configurable({"loss_agg_mode": ""}, ("loss_agg_mode",)),
        Setting.KL: Configurable(PENALTY, ("beta",)),
    },
    rules={"default_mode": CONFIG},
    metrics={
        Metric.POLICY_LOSS: "loss",
        Metric.LOSS: "loss",
        Metric.CLIP_FRACTION: "pg_clipfrac",
        Metric.KL: "kl",
    },
    # The documents name the logged numbers (docs/metrics.md) and do not say what they are means of.
    conventions={
        "empty_units": Documented(EmptyUnits.EXCLUDED, TESTS),
        "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl_estimator": Documented(
            DivergenceEstimator.K1, "tunix/rl/common.py (compute_kl_divergence)"
        ),
        "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    },
    options=parse_options(
        """
        loss_agg_mode | the mode | `seq-mean-token-sum` with `--modes=constant:1`;
            `sequence-mean-token-sum-norm` by a test of the adapter
        max_tokens_to_generate | the divisor of `sequence-mean-token-scale`, which is the padded
            width | no option sets the `norm` that it could be instead
        epsilon | the lower clipping bound, and the upper one unless `epsilon_high` is set
        epsilon_high | the upper clipping bound | an attribute: the constructor does not take it
        epsilon_c | a bound on ratios of negative advantages | not looked at: it is documented
            nowhere
        loss_algo | ratios of tokens or of sequences | `gspo-token`, `grpo`
        policy_loss_fn | the policy loss | `grpo`; `ppo` and others have a learner of their own
        algo_variant | the name of the algorithm | it chooses nothing in the learner
        sampler_is, sampler_is_threshold | truncated importance sampling
        use_rollout_logps | whose log-probabilities those of the old policy are | they are given
        beta | the divergence in the loss
        kl_loss_mode | its estimator | `kl`, the default; the others are not looked at yet
        kl_clamp_value | a bound on it | it is off, the default
        advantage_estimator | how rewards are compared | `gae` needs a critic
        reward_manager | how rewards are summed | there is one
        num_generations | the samples of a prompt | `advantages` for those of a case, 2 elsewhere
        num_iterations | how often a batch is trained on | log-probabilities of the old policy are
            given, and ratios other than 1 need no second time
        mini_batch_size | the prompts of an optimizer step | `weights` for those of a case
        train_micro_batch_size | the prompts of a micro-batch | it is left out where a step has one,
            as by default
        gradient_accumulation_steps | micro-batches | tunix derives it from the two above
        rollout_micro_batch_size, compute_logps_micro_batch_size | other micro-batches | they come
            before a step
        compute_logps_chunk_size | logits of one pass | it is off, the default
        max_seq_token_per_tpu, max_segments_per_packed_row | packed rows | not looked at yet
        mesh.shape, data_sharding_axis | devices | the axis is `fsdp`, the default
        temperature | what logits are divided by | it is 1
        actor_optimizer, critic_optimizer | the optimizer | its gradients are what is read
        max_steps, eval_every_n_steps, checkpoint_root_directory, checkpointing_options,
            metrics_logging_options, profiler_options, perf_metrics_options,
            max_inflight_computations, metrics_prefix, pbar_description | the run | they change no
            gradient
        """
    ),
    departures=parse_departures(
        """
        not_run: the command line, which makes the same configurations
            the learner is made as tunix's examples make it
        stubbed: the model, by one whose logits are 64 for padding and an entry for the next token
            tunix's own log-softmax runs on them; weights are read through the entries
        stubbed: the rollout engine and the tokenizer, by one that returns the case's samples
            generation comes before a step
        set: with sampler_is, log-probabilities of the rollout policy by which the ratio to the
        policy is the case's ratio of the old policy to that of the rollouts
            tunix compares the rollout policy with the policy before it is trained
        set: a subclass of the learner that sets loss masks, log-probabilities of the old and the
        reference policy and, except in checks on its own advantages, advantages of tokens
            the loss takes them of each token; advantages are signed powers of two, on which no
            weight depends
        set: an optimizer that keeps gradients and changes nothing
            it has the gradient that any optimizer would get
        set: temperature=1.0
            logits are divided by it, and so would be every weight
        set: epsilon_high as an attribute of the configuration
            its documentation has it and its constructor does not take it; the loss reads it
        set: num_generations: 2 samples of a prompt or all of a micro-batch, except in checks on
        its own advantages
            given advantages are not compared within a prompt
        set: XLA devices of the host's CPU
            XLA partitions the step over them as over TPUs
        """,
        OF_VALUES,
    ),
)
