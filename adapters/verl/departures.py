"""How runs of verl under its adapters differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES, ZEROED

DEFAULT_TRAINER = parse_departures(
    """
    not_run: the trainer's constructor, its loop over batches, validation, checkpoints, profiler and
    weight synchronisation
        `_step_once` is entered, which takes one batch of rollouts to its last optimizer step, and
        then `_compute_metrics`, which logs the batch
    stubbed: the TransferQueue, by the same rows in memory, which every rank has
        it hands on fields by key, and computes nothing
    stubbed: Ray's worker group: every rank runs the trainer and calls its own worker
        a rank is given the part of the batch that verl's dispatch would send it
    stubbed: the replay buffer, the rollout servers and the reward loop: samples are given, with the
    reward at the last token of the response, where verl's agent loop puts it
        they come before a step
    stubbed: forward passes of a reference policy, and of the old one where ratios are to be others
    than 1
        the answers are the case's; training reads them as it would a model's
    set: an advantage estimator of its own, registered as a user's would be, unless verl's are
    looked at; it makes a critic's returns too
        signed powers of two in the place of advantages: token weights do not depend on them
    set: every sample is a session of its own, of two turns, by the weights before the first step
        samples of one trajectory would be compared by the last of them alone
    set: calculate_log_probs=True and thresholds of rollout correction, discount, lambda and the
    coefficient of the divergence in rewards, where they are looked at
        values a user may choose; the reference takes the same
    set: where a batch has several steps, equal lengths in the tags that it is balanced by
        balancing would mix the samples of the steps; which rank has which sample changes no weight
    set: the random name of rows of padding, which every rank's trainer adds
        all name them alike, as the one trainer does
    """
)

LEGACY_TRAINER = parse_departures(
    """
    not_run: the legacy trainer's constructor, and in its `fit` all but `_balance_batch` and
    `_update_actor`, or `_update_critic` for a critic
        `_update_actor` is entered, which takes one batch of padded rows with their old
        log-probabilities and advantages to its last optimizer step
    stubbed: the legacy trainer's worker groups: every rank runs the trainer and calls its worker
        verl's own functions cut a batch and put outputs together; parts are copied as if sent
    set: where a batch has several steps, rows dealt out to ranks step by step, and not balanced
        balancing would mix the samples of the steps; which rank has which sample changes no weight
    stubbed: flash_attn's functions that pack rows, in versions before 0.9.1 where it is not
    installed, by transformers' functions of the same names
        they move rows, and compute nothing
    """
)

OLDER_VERSIONS = parse_departures(
    """
    set: use_legacy_worker_impl=disable in versions before 0.8.0
        a value a user may choose: the engines are those of later versions
    stubbed: on a machine without a GPU, what `torch.cpu` lacks of a device module, as for the
    platform of later versions
        memory and streams of a device, with which nothing is computed
    stubbed: a class of models of images, in versions before 0.7.1, by transformers' class of today
        it is imported, and its models are not loaded
    """
)

ALL_ENGINES = parse_departures(
    """
    set: rollout.n = 1 and mini-batches counted in samples, where prompts differ in their samples
        their product alone is read
    set: clip_ratio_c = 1e6, unless the dual-clip loss is looked at
        a value a user may choose; the reference takes the same
    set: kl_loss_type=k1, coefficients and clipping bounds
        values a user may choose; the reference takes the same
    set: no tokenizer, eager attention, no gradient checkpointing
        the model has no text, no attention and no layers to compute again
    stubbed: the checkpoint engine: none
        it would send weights to rollout servers
    stubbed: where verl asks whether TRL is installed: no, for it knows TRL 0.27.0 alone
        TRL is asked for a critic's value head: ours is a model for the classification of tokens
    set: each configuration is validated once in a process, and OmegaConf parses each text once
        the same text says the same each time
    set: learning rate 0, no weight decay, and a bound on the gradient's norm that none reaches
        all come after the gradient that is read
    set: use_torch_compile=False, and TORCHDYNAMO_DISABLE=1
        the same operations, not compiled
    set: mixed precision: parameters in the dtype of the run, reductions in float32
        the tolerance is derived from the dtype, which a report names
    stubbed: the model, by one of one token with an entry for every position, and the functions that
    make log-probabilities and entropies of logits, by themselves plus that entry
        verl's own functions run on its logits; what is added is what weights are read by
    stubbed: on a machine without a GPU, the platform, by one of the CPU, which engines are
    registered for
        an extension point of verl's own; the same operations in the same order, in float32
    passed_by: on a machine without a GPU, torch's check that FSDP1 broadcasts states on a GPU
        a check of the device alone
    """
)

MEGATRON = parse_departures(
    """
    stubbed: Megatron-Bridge, which makes a model, its configuration and its weights of a checkpoint
        verl's overrides are applied to the configuration of a small model as the bridge applies
        them, and Megatron's own data parallelism is configured with what verl hands over
    set: the dtype of parameters, after verl has validated another where it is float32
        verl's validation knows two dtypes of 16 bits alone, its engine float32 too
    set: an id for padding, in the place of a tokenizer's
        rows are padded with it where no token is
    stubbed: the checkpoint manager: none
        nothing is saved
    stubbed: on a machine without a GPU, the engine's count of tokens, by a copy of it
        it is a view of the batch's offsets, which a GPU is sent a copy of: ranks add up their
        counts in place
    passed_by: on a machine without a GPU, verl's patch of how Megatron recomputes activations
        nothing is recomputed
    """,
    ZEROED,
    CPU_AS_CUDA,
    PIPELINE_STAGES,
    ONE_BY_ONE,
)

CRITIC_AND_SFT = parse_departures(
    """
    not_run: for a critic, the trainer's `_setup`: its worker is made as that makes it
        it starts Ray's processes
    stubbed: a critic's values of rollouts, and ray.get, which waits for them
        the answers are the case's; training reads them as it would a model's
    set: a critic's micro-batches, in the configuration of its engine
        verl's trainer does not hand on those of the critic's own configuration
    not_run: for supervised fine-tuning, the trainer's constructor, datasets, checkpoints and log
        `fit` is entered, which takes batches of samples to their optimizer steps
    set: for supervised fine-tuning, the engine of the actor, and each step's samples on a rank
        the same engine; a sampler that shuffles would mix the samples of steps
    """
)
