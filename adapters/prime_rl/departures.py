"""How runs of prime-rl under its adapter differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: the orchestrator: rollouts, advantages, filters of zero advantages
        samples are given; `prepare_batch` is entered, which its packer calls with the same options
    not_run: `clean_exit` around the trainer
        it ends the process after an error
    set: packing by the number of tokens, as without a model's configuration
        prime-rl packs by estimated operations where it can read one; both cut a step
    set: rollouts by files, in a folder of each rank
        prime-rl's own transport of a single node; what is sent is the same on all ranks
    set: advantages of tokens, temperatures of 1, and log-probabilities of rollouts, 64 below 0
        signed powers of two, on which no weight depends; ratios of new to old policy are 1
    set: in versions before July 2026, advantages of tokens in micro-batches that are packed
        their samples have one for all tokens; micro-batches have one for each, as the trainer reads
    stubbed: in versions before August 2026, the manager of several runs, the packer that waits for
    their samples on the first rank, and the monitor, by a list
        there is one run, whose samples are packed by prime-rl's `prepare_batch` beforehand
    set: token ids, one higher than the case's
        1 is prime-rl's padding
    set: loss.type=ipo with kl_tau=0 where tokens are rejected, of which the rollout policy was sure
        the default masks by the sign of advantages; both multiply a token's loss by 0, and the
        penalty on log-ratios would train rejected tokens too
    set: a custom loss for off_policy.gpg, advantages times log-probabilities
        a custom loss is the user's code; its interface and its reduction are prime-rl's
    set: weights of the component ref_kl, to the coefficient of the divergence
        prime-rl documents that a weight scales a token's loss
    set: learning rate 0, no weight decay, no clipping of gradients (torchtitan's), which before
    April 2026 is a function that does nothing
        all come after the gradient that is read
    set: gradients, to 0 after they were read and before the optimizer steps
        NaN would spoil the probe even at a learning rate of 0
    set: no offloading to the CPU, no garbage collection by steps
        there are no activations, and nothing is computed
    set: float32 in FSDP2's mixed precision, unless bfloat16 is asked for
        prime-rl computes in bfloat16 alone; the tolerance is derived from the dtype, which a report
        names
    set: the world, its monitors and its logger, to those of a new process; device meshes of a world
    are made once
        our processes run several trainers, a user's one
    stubbed: the model, by one whose log-softmax is the probe's, wrapped by prime-rl's `setup_fsdp`
        weights are read by it; log-probabilities of logits are the trainer's own, as with
        fused_lm_head_token_chunk_size=disabled
    stubbed: the broadcast of weights, and the counter of operations a second
        no inference engine listens, and speed is not looked at
    stubbed: in versions before August 2026, the configuration of an orchestrator
        the trainer reads one for each run from a file, and the only run here has none
    stubbed: kernels of models, of expert parallelism and of inference engines
        they run on GPUs alone, and the model has no layers
    stubbed: ring_flash_attn, which replaces the attention of models
        the model has no attention; slices and the gathering of log-probabilities are prime-rl's own
    stubbed: torch.compile, by nothing, for log-probabilities and entropies
        the same operations, not compiled
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU, and the sum of gradients
    of torch's all_gather, which torch itself makes over gloo from the wrong ranks, by an all_reduce
        the same operations in the same order, in float32
    """
)
