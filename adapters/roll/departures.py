"""How runs of ROLL under its adapter differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import NOTHING_LEARNED, PIPELINE_STAGES, ZEROED

ALL = parse_departures(
    """
    not_run: the scheduler of rollouts, reward workers, and forward passes of the old policy, of a
    reference policy and of a critic's values
        batches with rewards, log-probabilities and values are given where the pipeline asks for
        them; `RLVRPipeline.run` runs from there
    not_run: the constructor of the pipeline, checkpoints, and the update of an inference engine
        they start clusters of Ray or come after the gradient; the attributes that `run` reads are
        made by ROLL's own functions, and training by its own workers
    set: a batch of rollouts for each optimizer step
        ROLL shuffles the samples of a rank before it cuts them into several; these are a case's
    set: rewards of tokens, after `compute_token_reward` has run, to the advantages of the job, and
    gamma=0, unless ROLL's own advantages are looked at
        signed powers of two, on which no weight depends; `compute_advantage` makes them advantages
        and masks them
    set: an attention mask of 0 on masked tokens at the end of a response
        this pipeline masks no tokens there, and puts a reward at the last token that is attended
    set: values of a critic that is trained, to 0
        its returns are then rewards of tokens, and its squared error has their gradient
    set: enable_old_logprobs_recompute=True where ratios are not 1
        otherwise the step's own log-probabilities are those of the old policy, which are given
    set: settings of a `pg_variant`, as attributes of the worker's configuration
        ROLL documents them and reads them there, and its dataclass drops them from a file
    set: param_dtype=float32, reduce_dtype=float32
        the tolerance is derived from the dtype, which a report names
    set: the sign of `actor/policykl`, which ROLL logs as the new log-probability minus the old one,
    and 1 minus the share of tokens that a filter keeps
        the metrics that are compared are the opposite
    stubbed: Ray's calls of workers, by one of each rank, whose results are gathered; the driver
    runs on every rank
        shares are dealt and results collected by the functions that ROLL registers with each method
    stubbed: the model, by one of one token, and the functions that make log-probabilities and
    entropies of logits, by themselves plus the probe
        ROLL's own functions run on its logits; what is added is what weights are read by
    passed_by: the configuration and tokenizer of a checkpoint
        the model is ours, and has no attention; slices and gathering are ROLL's own
    set: workers and process groups of a world are made once, and pipelines anew for each job
        they have no state but the probe's, which is 0
    stubbed: garbage collection after a worker's method, figures of device memory, and the patch of
    attention for Ulysses, by nothing
        a step's numbers are made before, and the model has no attention
    stubbed: in versions before March 10, 2026, a class that transformers 5 has renamed, by the one
    of the new name, and flash_attn, where it is not installed
        the one loads models of images, and of the other nothing is called
    stubbed: files that log lines are written to, where traces are sent to, and packages of
    environments, rewards and downloads
        what is logged is read off the tracker
    """,
    NOTHING_LEARNED,
    ZEROED,
)

MEGATRON = parse_departures(
    """
    stubbed: the model that ROLL's package for Megatron makes of a checkpoint, by chunks of one of
    one token
        the package's own functions hold and slice it; ROLL puts it into Megatron's data parallelism
    set: parameters in float32; ROLL's functions of logits are given copies
        the tolerance is derived from the dtype, which a report names; the functions make a copy in
        float32 themselves of logits in bfloat16, and overwrite it
    stubbed: moves of weights, gradients and states of the optimizer to the host's memory and back
        a step computes on the device alone
    set: with dynamic batching, an attention mask of 1 on masked tokens at the end of a response,
    unless ROLL's own advantages are looked at
        rows are cut to the tokens that are attended, and these are tokens of a case
    set: lr_decay_steps=1
        of a learning rate of 0, for which ROLL derives no decay from so few steps
    set: the length of rows and the number of micro-batches, in a worker that is made once
        the worker's strategy has copied them from configurations
    stubbed: on a machine without a GPU, torch's CUDA devices, by the CPU, and pinned memory
        the same operations in the same order, in float32
    """,
    PIPELINE_STAGES,
)
