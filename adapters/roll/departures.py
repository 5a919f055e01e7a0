"""How runs of ROLL under its adapter differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import NOTHING_LEARNED, PIPELINE_STAGES, ZEROED

ALL = parse_departures(
    """
    not_run: the rollout scheduler, reward workers, and forward passes of the old policy, of a
    reference policy and of a critic
        batches with rewards, log-probabilities and values are given where the pipeline requests
        them; `RLVRPipeline.run` runs from there
    not_run: the pipeline's constructor, checkpoints, and updates of an inference engine
        they start Ray clusters or come after the gradient; ROLL's own functions make the attributes
        that `run` reads, and its own workers train
    set: a batch of rollouts for each optimizer step
        ROLL shuffles a rank's samples before it cuts them into steps, which would mix a case's
    set: token rewards, after `compute_token_reward` has run, to the job's advantages, and gamma=0,
    except in checks on ROLL's own advantages
        they are signed powers of two, on which no weight depends; `compute_advantage` turns them
        into advantages and masks them
    set: an attention mask of 0 on masked tokens at the end of a response
        this pipeline masks no tokens there, and puts a reward at the last attended token
    set: the values of a critic that is trained to 0
        its returns are then token rewards, and its squared error has their gradient
    set: enable_old_logprobs_recompute=True if ratios are not 1
        otherwise ROLL uses the step's own log-probabilities instead of the given old ones
    set: settings of a `pg_variant`, as attributes of the worker's configuration
        ROLL documents them and reads them there, but its dataclass drops them from a file
    set: param_dtype=float32, reduce_dtype=float32
        the tolerance is derived from the dtype, which a report names
    set: the sign of `actor/policykl`, which ROLL logs as the new log-probability minus the old one,
    and 1 minus the share of tokens that a filter keeps
        the compared metrics are the opposite
    stubbed: Ray's calls of workers, by one worker per rank, whose results are gathered; the driver
    runs on every rank
        shares are dealt and results collected by the functions that ROLL registers with each method
    stubbed: the model, by one with a vocabulary of one token, and the functions that compute
    log-probabilities and entropies from logits, by themselves plus the probe
        ROLL's own functions run on the model's logits; weights are read through the added probe
    passed_by: a checkpoint's configuration and tokenizer
        the model is the adapter's and has no attention; slicing and gathering are ROLL's own
    set: workers and process groups are made once per world, and pipelines anew for each job
        their only state is the probe, which is 0
    stubbed: garbage collection after a worker's method, figures of device memory, and the patch of
    attention for Ulysses, by nothing
        a step's numbers are computed before, and the model has no attention
    stubbed: in versions before March 10, 2026, a class that transformers 5 renamed, by the one of
    the new name, and flash_attn, if it is not installed
        the class loads vision models, and flash_attn is never called
    stubbed: log files, trace targets, and packages of environments, rewards and downloads
        logged numbers are taken from the tracker
    """,
    NOTHING_LEARNED,
    ZEROED,
)

MEGATRON = parse_departures(
    """
    stubbed: the model that mcore_adapter builds from a checkpoint, by chunks of a model with one
    token
        mcore_adapter's own functions hold and slice it; ROLL wraps it in Megatron's data
        parallelism
    set: parameters in float32; ROLL's functions of logits get copies
        the tolerance is derived from the dtype, which a report names; the functions copy bfloat16
        logits to float32 themselves, and overwrite the copy
    stubbed: moving weights, gradients and optimizer states to host memory and back
        a step computes only on the device
    set: with dynamic batching, an attention mask of 1 on masked tokens at the end of a response,
    except in checks on ROLL's own advantages
        rows are cut to the attended tokens, and these are tokens of a case
    set: lr_decay_steps=1
        the learning rate is 0, and ROLL derives no decay from so few steps
    set: the row length and the number of micro-batches, in a worker that is made once
        the worker's strategy has copied them from configurations
    stubbed: on a machine without a GPU, torch's CUDA devices, by the CPU, and pinned memory
        the same operations in the same order, in float32
    """,
    PIPELINE_STAGES,
)
