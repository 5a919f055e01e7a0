"""The record of prime-rl: options of its trainer and its orchestrator, and what it documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, parse_options
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, Metric, Objective
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
    options=parse_options(
        """
        loss.type, loss.import_path | the loss of the component `rl` | `default`, unless a check
            needs another; `custom` is the user's code
        loss.kwargs | arguments of a user's loss | ours has none
        loss.dppo_mask_low, loss.dppo_mask_high | the trust region of the default loss
        loss.ipo_threshold | the trust region of `ipo` | `rejection` has its default
        loss.adv_tau | a factor on advantages | advantages are given
        loss.kl_tau | the penalty on log-ratios | with 0. Elsewhere it has no gradient where ratios
            are 1, and no formula in the reference: a test of the adapter holds it against
            prime-rl's documents
        orchestrator.algo.type | the component of a sample's tokens, and how advantages are computed
            | elsewhere the component `rl`, with given advantages. Components are not mixed in a
            step, as `echo` does
        orchestrator.seq_len | the tokens of a micro-batch
        orchestrator.batch_size | the samples of a step | `weights` has steps of 1 to 32 samples
        orchestrator.train.filter_zero_advantages | tokens of advantage 0 are left out of the sum
            and of the count | it comes before a step, and no advantage is 0
        model.cp | sequences split over ranks
        model.cp_style | how attention sees a whole sequence | the model has no attention
        model.dp_replicate | shards that are replicated
        model.ep, model.lora, model.quantization | layers of the model | the probe's model has none
        model.fused_lm_head_token_chunk_size | log-probabilities in chunks | the probe is in the
            plain logits
        model.optimization_dtype, model.reduce_dtype | precision | `weights` has the defaults, with
            `--dtype=bfloat16` as prime-rl computes
        model.fsdp_cpu_offload, model.optim_cpu_offload, model.full_offload | where parameters and
            the optimizer are kept | on GPUs alone
        optim.max_norm | the norm of the gradient | the gradient is read before it
        """
    ),
    departures=parse_departures(
        """
        not_run: the orchestrator, except that it scores a group of rollouts by the algorithms
        `grpo` and `max_rl` where advantages are looked at: rollouts, filters of zero advantages
            samples are given; `prepare_batch` is entered with the options that its packer passes
        not_run: `clean_exit` around the trainer
            it ends the process after an error
        set: packing by the number of tokens, as without a model configuration
            with one, prime-rl packs by estimated operations; both cut a step
        set: rollouts by files, in a folder per rank
            it is prime-rl's own transport for a single node; the same data is sent on all ranks
        set: token advantages, temperatures of 1, and rollout log-probabilities, 64 below 0
            advantages are signed powers of two, on which no weight depends; ratios of new to old
            policy are 1
        set: in versions before July 2026, token advantages in micro-batches that are already packed
            their samples have one for all tokens; the micro-batches that the trainer reads have one
            for each
        stubbed: in versions before August 2026, the manager of several runs, the packer that waits
        for their samples on the first rank, and the monitor, by a list
            there is one run, whose samples prime-rl's `prepare_batch` has already packed
        set: token ids, one higher than the case's
            1 is prime-rl's padding
        set: loss.type=ipo with kl_tau=0 for rejection, and rejected tokens that the rollout policy
        was sure of
            the default masks by the sign of advantages; both multiply a token's loss by 0, and the
            penalty on log-ratios would train on rejected tokens too
        set: a custom loss for off_policy.gpg, advantages times log-probabilities
            a custom loss is the user's code; its interface and its reduction are prime-rl's
        set: weights of the component ref_kl to the coefficient of the divergence
            prime-rl documents that a weight scales a token's loss
        set: learning rate 0, no weight decay, no gradient clipping (torchtitan's), which before
        April 2026 is a function that does nothing
            they act after the gradient is read
        set: no offloading to the CPU, no garbage collection by steps
            there are no activations, and they compute nothing
        set: float32 in FSDP2's mixed precision, unless bfloat16 is requested
            prime-rl computes only in bfloat16; the tolerance is derived from the dtype, which a
            report names
        set: the world, its monitors and its logger to those of a new process; device meshes are
        made once per world
            the adapter's processes run several trainers, a user's one
        stubbed: the model, by one whose log-softmax is the probe's, wrapped by prime-rl's
        `setup_fsdp`
            weights are read through it; the trainer's own code computes log-probabilities from
            logits, as with fused_lm_head_token_chunk_size=disabled
        stubbed: the weight broadcast, and the counter of operations per second
            no inference engine listens, and speed is not checked
        stubbed: kernels of models, of expert parallelism and of inference engines
            they run only on GPUs, and the model has no layers
        stubbed: ring_flash_attn, which replaces the attention of models
            the model has no attention; slicing and gathering of log-probabilities are prime-rl's
            own
        stubbed: torch.compile for log-probabilities and entropies, by nothing
            the same operations, not compiled
        stubbed: on a machine without a GPU, torch's CUDA device, by the CPU, and the gradient
        reduction of torch's all_gather by an all_reduce, because torch's own mixes up ranks over
        gloo
            the same operations in the same order, in float32
        """,
        ZEROED,
    ),
)
