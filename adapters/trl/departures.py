"""How runs of TRL under its adapters differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import NOTHING_LEARNED, ZEROED

ALL = parse_departures(
    """
    stubbed: the model, by one of one token, and TRL's fused LM head, by itself plus an entry for
    every token
        TRL's own functions run on the model's states; what is added is what weights are read by
    set: clipping bounds and coefficients of terms
        values a user may choose; the reference takes the same
    set: no gradient checkpointing, no saving, no reports to services, no access to the hub
        there are no layers to compute again, and nothing else is computed
    set: bf16=False
        the tolerance is derived from the dtype, which a report names
    """,
    NOTHING_LEARNED,
    ZEROED,
)

GENERATING = parse_departures(
    """
    set: a reward function that returns the rewards of the case, and a tokenizer of two words, of
    which the end of text is the last token of samples that are not truncated
        no text is looked at; which token it is, the token before it tells
    stubbed: log-probabilities of the old policy and of the reference policy, which are what their
    models answer TRL
        the answers are the case's; ratios other than 1 come about by no other way in one step
    set: where a generation has the samples of several optimizer steps, their order
        TRL shuffles it, which would mix the samples of steps
    set: sizes of prompts: 2 samples of each or all of a generation, unless advantages are TRL's
        advantages that are given are compared with no others
    set: constant order of prompts
        it comes before rollouts
    """
)

GRPO = parse_departures(
    """
    set: a function for rollouts, which returns the samples of the case, with a mask of tokens that
    the policy has generated
        an extension point of TRL's own; generation comes before a step
    set: a subclass of the trainer that puts in advantages of tokens, unless TRL's are looked at
        TRL's loss takes them from subclasses; signed powers of two, on which no weight depends
    set: num_iterations=2 where ratios are to be others than 1, and the last iteration observed
        TRL asks for log-probabilities of the old policy only where it may have changed
    set: use_vllm=True where rollout and old policy are compared, and the engine of vLLM stubbed
        it would generate, and be sent weights
    """
)

RLOO = parse_departures(
    """
    stubbed: tokenising prompts and generating completions, by the samples of the case
        both come before a step, and TRL has no extension point for them; it pads and masks what
        they return
    set: a subclass of the trainer that puts in an advantage of each sample, unless TRL's are looked
    at
        signed powers of two, on which no weight depends
    set: beta=0.0, no penalty on the divergence from a reference policy
        the penalty is a part of rewards, and has no gradient
    """
)

ASYNC = parse_departures(
    """
    set: a rollout worker that has put the samples of the case into its queue, and a transfer of
    weights to nowhere
        both are extension points of TRL's own; generation and rewards come before a step
    set: prompts, which samples of a group share up to the last token
        a user's share all of it; TRL packs the token before they differ for each sample
    set: more samples in the queue, which no step trains on
        TRL's data loader reads a micro-batch ahead
    set: token_budget=0, so that micro-batches have equally many samples
        with a budget, the samples of a step would depend on those of later steps
    set: max_staleness above the number of steps
        the samples of all steps are in the queue from the beginning
    stubbed: the theoretical speed of the device, which TRL asks CUDA for
        it is logged alone
    stubbed: the thread that sends rollouts to a service
        reports go to no service; threads would add up over jobs
    """
)

FSDP2 = parse_departures(
    """
    set: on a machine without a GPU, the type of distributed training that Accelerate takes GPUs for
        it shards models on GPUs alone; torch's FSDP2 is the same on gloo
    """
)

DEEPSPEED = parse_departures(
    """
    set: on a machine without a GPU, the type of distributed training that Accelerate takes GPUs for
        it gives GPUs alone DeepSpeed, which has an accelerator for CPUs of its own
    stubbed: DeepSpeed's collectives through shared memory, which it would compile C++ for
        gloo has the same
    set: DeepSpeed's counts of parameters and modules, to 0 before each job
        ZeRO 3 compares them over ranks, which have run other numbers of jobs
    """
)
