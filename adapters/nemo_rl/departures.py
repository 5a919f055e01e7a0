"""How runs of NeMo-RL under its adapter differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: `setup`, data sets, environments and rollouts
        a batch of rollouts is given; `grpo_train` and `sft_train` are entered with it
    not_run: `grpo_train_sync`, `async_grpo_train` and the single controller
        the trainer that runs is the default one (data_plane.enabled=false)
    set: each sample as a prompt of its own (num_generations_per_prompt=1), one step of the trainer
    for each optimizer step
        samples are a case's; where NeMo-RL computes advantages, all optimizer steps of a batch are
        cut out of one
    set: masked tokens of a response as turns of an environment, and a sample without active tokens
    as one with a multiplier of its loss of 0
        by these NeMo-RL masks tokens and samples
    set: a prompt as a conversation with an earlier turn of the policy, but in SFT
        no turn of a prompt is trained
    set: log-probabilities of the policy, the reference policy and the rollouts, 64 below 0
        ratios are a case's, where all are 1 the policy's own
    stubbed: the estimator of advantages, by the job's advantages, where they are not NeMo-RL's
        signed powers of two, on which no weight depends
    set: prompts that NeMo-RL's estimators tell groups by, to one token
        token ids of probed samples are all different, also in prompts
    set: learning rate 0, no weight decay, no clipping of gradients
        all come after the gradient that is read
    set: gradients, to 0 after they were read and before the optimizer steps
        NaN would spoil the probe even at a learning rate of 0
    set: precision=float32
        the tolerance is derived from the dtype, which a report names
    set: lengths of rows as multiples of 2 · cp where there is context parallelism
        the documents of `shard_by_batch_size` want it
    set: no validation, no checkpoints
        both come between steps
    stubbed: Ray's group of workers, by one of each rank, which is called with its share of data
        the shares are those that NeMo-RL's policy deals; results are gathered from all ranks
    stubbed: the model, by one whose log-softmax is the probe's, sharded by the worker itself
        weights are read by it; log-probabilities of logits are NeMo-RL's own
    set: workers and process groups of a world are made once
        they have no state but the probe's, which is 0
    stubbed: the engine of rollouts, the logger, and the tracker of memory
        none listens, and what is logged is read off what the logger is handed
    passed_by: the moves of a model between devices, and binding processes to the cores of a GPU
        the model stays where it is
    stubbed: packages that follow a run, read images and sound or measure GPUs, and the data sets
        that are read by them
        none is used by a step
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU
        the same operations in the same order, in float32
    """
)
