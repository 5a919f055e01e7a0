"""How runs of AReaL under its adapter differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: rollouts, rewards and their workflows
        trajectories are given, one of each sample; AReaL's actor and critic are entered where its
        trainer enters them
    not_run: the trainer's forward passes of the actor and of a reference policy
        log-probabilities are given; in a decoupled loss those of the proximal policy too
    set: advantages, after `compute_advantages` has run, to signed powers of two, unless AReaL's own
    are what is looked at
        no weight depends on them; masks and log-probabilities are those that it returns
    set: rewards, and no penalty on a divergence (kl_ctl=0)
        both are in AReaL's advantages, of which those from normalised rewards are looked at
    set: returns of a critic, to advantages, and values and old values, to 0
        its squared error then has their gradient
    set: ppo_n_minibatches=1, and an update for each step of several
        AReaL deals the samples of a rank to mini-batches by length; these are a case's
    set: learning rate 0, no weight decay, no clipping of gradients
        all come after the gradient that is read
    set: gradients, to 0 after they were read and before the optimizer steps
        NaN would spoil the probe even at a learning rate of 0
    set: dtype=float32
        the tolerance is derived from the dtype, which a report names
    set: the sign of `approx_kl`, which AReaL logs as the new log-probability minus the old one
        the metric that is compared is the old one minus the new one
    stubbed: the model, by one of one token, and the function that makes log-probabilities of
    logits, by itself plus the probe
        AReaL's own function runs on its logits; what is added is what weights are read by
    passed_by: the configuration and tokenizer of a checkpoint
        the model is ours, and has no attention; slices and gathering are AReaL's own
    stubbed: the controller's calls of workers, by one of each rank; it deals samples by
    `_dispatch_tensors`, which runs on every rank
        ranks get the share that they would be sent
    set: engines and process groups of a world are made once, and actors anew for each job
        they have no state but the probe's, which is 0
    stubbed: torch.compile, by nothing, for log-probabilities and entropies, and numba's compilation
    where it is not installed
        the same operations, not compiled
    stubbed: on a machine without a GPU, the sum of gradients of torch's all_gather, which torch
    itself makes over gloo from the wrong ranks, by an all_reduce
        the same operations in the same order, in float32
    stubbed: packages that serve rollouts or follow a run, and AReaL's client of agents
        no rollout engine listens, and what is logged is read off `export_stats`
    """
)

MEGATRON = parse_departures(
    """
    stubbed: mbridge, which makes a model and its configuration of a checkpoint
        Megatron's own data parallelism is configured with what AReaL hands over, around a small
        model of one token; AReaL has no setting of the schedule or of losses but these
    stubbed: weights of a checkpoint, and the head of a critic, which AReaL puts into a model of
    Megatron's: none
        the probe starts at 0, and is a critic's value already
    stubbed: the stages of a pipeline: each has a probe and hands on token ids and entries
        Megatron's schedule sends them, and their gradients back, as it does activations
    stubbed: AReaL's changes of mbridge's models for tree training, and of Megatron-Bridge's models
    of images: none
        tree training is off, as by default, and no such model is made
    stubbed: on a machine without a GPU, torch's CUDA devices, by the CPU
        the same operations in the same order, in float32
    """
)
