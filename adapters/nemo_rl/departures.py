"""How runs of NeMo-RL under its adapter differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: `setup`, data sets, environments and rollouts
        a batch of rollouts is given to `grpo_train` or `sft_train`
    not_run: `grpo_train_sync`, `async_grpo_train` and the single controller
        the default trainer runs (data_plane.enabled=false)
    set: each sample as a prompt of its own (num_generations_per_prompt=1), and one trainer step for
    each optimizer step
        samples are a case's; where NeMo-RL computes advantages, all optimizer steps of a batch
        come from one
    set: masked tokens of a response as an environment's turns, and a sample without active tokens
    as one with a loss multiplier of 0
        NeMo-RL masks tokens and samples in this way
    set: a prompt as a conversation with an earlier turn of the policy, except in SFT
        no turn of a prompt is trained on
    set: log-probabilities of the policy, the reference policy and the rollouts, 64 below 0
        ratios are a case's; if all are 1, the old log-probabilities are the policy's own
    stubbed: the advantage estimator, by the job's advantages, except in checks on NeMo-RL's own
        they are signed powers of two, on which no weight depends
    set: prompts to one token where NeMo-RL's estimators group samples by prompt
        token ids of probed samples all differ, in prompts too
    set: learning rate 0, no weight decay, no gradient clipping
        they act after the gradient is read
    set: gradients to 0 after they are read and before the optimizer steps
        NaN would corrupt the probe even at a learning rate of 0
    set: precision=float32
        the tolerance is derived from the dtype, which a report names
    set: row lengths to multiples of 2 · cp under context parallelism
        the documentation of `shard_by_batch_size` requires it
    set: no validation, no checkpoints
        both happen between steps
    stubbed: Ray's worker group, by one worker per rank, which is called with its share of the data
        NeMo-RL's policy deals the shares; results are gathered from all ranks
    stubbed: the model, by one whose log-softmax is the probe's, sharded by the worker itself
        weights are read through it; NeMo-RL's own code computes log-probabilities from logits
    set: workers and process groups are made once per world
        their only state is the probe, which is 0
    stubbed: the rollout engine, the logger, and the memory tracker
        nothing listens, and logged numbers are those handed to the logger
    passed_by: moving a model between devices, and binding processes to a GPU's cores
        the model stays where it is
    stubbed: packages that track a run, read images and sound or measure GPUs, and the data sets
        that use them
        no step uses them
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU
        the same operations in the same order, in float32
    """
)
