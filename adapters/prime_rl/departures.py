"""How runs of prime-rl under its adapter differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: the orchestrator: rollouts, advantages, filters of zero advantages
        samples are given; `prepare_batch` is entered with the options that its packer passes
    not_run: `clean_exit` around the trainer
        it ends the process after an error
    set: packing by the number of tokens, as without a model configuration
        with one, prime-rl packs by estimated operations; both cut a step
    set: rollouts by files, in a folder per rank
        it is prime-rl's own transport for a single node; the same data is sent on all ranks
    set: token advantages, temperatures of 1, and rollout log-probabilities, 64 below 0
        advantages are signed powers of two, on which no weight depends; ratios of new to old policy
        are 1
    set: in versions before July 2026, token advantages in micro-batches that are already packed
        their samples have one for all tokens; the micro-batches that the trainer reads have one for
        each
    stubbed: in versions before August 2026, the manager of several runs, the packer that waits for
    their samples on the first rank, and the monitor, by a list
        there is one run, whose samples prime-rl's `prepare_batch` has already packed
    set: token ids, one higher than the case's
        1 is prime-rl's padding
    set: loss.type=ipo with kl_tau=0 for rejection, and rejected tokens that the rollout policy was
    sure of
        the default masks by the sign of advantages; both multiply a token's loss by 0, and the
        penalty on log-ratios would train on rejected tokens too
    set: a custom loss for off_policy.gpg, advantages times log-probabilities
        a custom loss is the user's code; its interface and its reduction are prime-rl's
    set: weights of the component ref_kl to the coefficient of the divergence
        prime-rl documents that a weight scales a token's loss
    set: learning rate 0, no weight decay, no gradient clipping (torchtitan's), which before April
    2026 is a function that does nothing
        they act after the gradient is read
    set: gradients to 0 after they are read and before the optimizer steps
        NaN would corrupt the probe even at a learning rate of 0
    set: no offloading to the CPU, no garbage collection by steps
        there are no activations, and they compute nothing
    set: float32 in FSDP2's mixed precision, unless bfloat16 is requested
        prime-rl computes only in bfloat16; the tolerance is derived from the dtype, which a report
        names
    set: the world, its monitors and its logger to those of a new process; device meshes are made
    once per world
        the adapter's processes run several trainers, a user's one
    stubbed: the model, by one whose log-softmax is the probe's, wrapped by prime-rl's `setup_fsdp`
        weights are read through it; the trainer's own code computes log-probabilities from logits,
        as with fused_lm_head_token_chunk_size=disabled
    stubbed: the weight broadcast, and the counter of operations per second
        no inference engine listens, and speed is not checked
    stubbed: in versions before August 2026, the orchestrator's configuration
        the trainer reads one per run from a file, and the only run here has none
    stubbed: kernels of models, of expert parallelism and of inference engines
        they run only on GPUs, and the model has no layers
    stubbed: ring_flash_attn, which replaces the attention of models
        the model has no attention; slicing and gathering of log-probabilities are prime-rl's own
    stubbed: torch.compile for log-probabilities and entropies, by nothing
        the same operations, not compiled
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU, and the gradient reduction
    of torch's all_gather by an all_reduce, because torch's own mixes up ranks over gloo
        the same operations in the same order, in float32
    """
)
