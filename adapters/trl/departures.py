"""How runs of TRL under its adapters differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import NOTHING_LEARNED, ZEROED

ALL = parse_departures(
    """
    stubbed: the model, by one with a vocabulary of one token, and TRL's fused LM head, by itself
    plus an entry for every token
        TRL's own functions run on the model's states; weights are read through the entry
    set: clipping bounds and coefficients of terms
        a user may choose these values; the reference uses the same ones
    set: no gradient checkpointing, no saving, no reports to services, no access to the hub
        there are no layers to recompute, and the others compute nothing
    set: bf16=False
        the tolerance is derived from the dtype, which a report names
    """,
    NOTHING_LEARNED,
    ZEROED,
)

GENERATING = parse_departures(
    """
    set: a reward function that returns the case's rewards, and a tokenizer of two words; the last
    token of samples that are not truncated is its end of text
        the text is never used; each token id follows from the previous one
    stubbed: log-probabilities of the old policy and of the reference policy, as their models'
    outputs
        they are the case's; one step has no other way to ratios other than 1
    set: the order of a generation's samples, if it has those of several optimizer steps
        TRL shuffles it, which would mix the samples of steps
    set: prompt sizes: 2 samples of each or all of a generation, except in checks on TRL's own
    advantages
        given advantages are not compared within a prompt
    set: constant order of prompts
        it comes before rollouts
    """
)

GRPO = parse_departures(
    """
    set: a rollout function, which returns the case's samples with a mask of tokens that the policy
    has generated
        it is TRL's own extension point; generation comes before a step
    set: a subclass of the trainer that sets token advantages, except in checks on TRL's own
        TRL's loss supports such subclasses; they are signed powers of two, on which no weight
        depends
    set: num_iterations=2 for ratios other than 1; only the last iteration is observed
        TRL asks for log-probabilities of the old policy only if it may have changed
    set: use_vllm=True where rollout and old policy are compared; vLLM's engine is a stub
        it would generate, and receive weights
    """
)

RLOO = parse_departures(
    """
    stubbed: tokenising prompts and generating completions, by the case's samples
        both come before a step, and TRL has no extension point for them; TRL pads and masks the
        results
    set: a subclass of the trainer that sets each sample's advantage, except in checks on TRL's own
        they are signed powers of two, on which no weight depends
    set: beta=0.0, no penalty on the divergence from a reference policy
        the penalty is part of the rewards, and has no gradient
    """
)

ASYNC = parse_departures(
    """
    set: a rollout worker that has filled its queue with the case's samples, and a weight transfer
    that does nothing
        both are TRL's own extension points; generation and rewards come before a step
    set: prompts that samples of a group share up to the last token
        a user's samples share all of it; TRL packs the token before they differ once per sample
    set: more samples in the queue, which no step trains on
        TRL's data loader reads a micro-batch ahead
    set: token_budget=0, so that micro-batches have the same number of samples
        with a budget, the samples of a step would depend on those of later steps
    set: max_staleness above the number of steps
        the samples of all steps are in the queue from the beginning
    stubbed: the device's theoretical speed, which TRL requests from CUDA
        it is only logged
    stubbed: the thread that sends rollouts to a service
        nothing is reported to a service; threads would accumulate over jobs
    """
)

FSDP2 = parse_departures(
    """
    set: on a machine without a GPU, the distributed type that Accelerate chooses on GPUs
        Accelerate shards models only on GPUs; torch's FSDP2 is the same on gloo
    """
)

DEEPSPEED = parse_departures(
    """
    set: on a machine without a GPU, the distributed type that Accelerate chooses on GPUs
        Accelerate uses DeepSpeed only on GPUs; DeepSpeed has its own accelerator for CPUs
    stubbed: DeepSpeed's shared-memory collectives, which it would compile C++ for
        gloo's are equivalent
    set: DeepSpeed's counts of parameters and modules, to 0 before each job
        ZeRO 3 compares them over ranks, which have run different numbers of jobs
    """
)
