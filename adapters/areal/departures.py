"""How runs of AReaL under its adapter differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: rollouts, rewards and their workflows
        trajectories are given, one per sample; AReaL's actor and critic are entered where its
        trainer enters them
    not_run: the trainer's forward passes of the actor and of a reference policy
        log-probabilities are given, for a decoupled loss also those of the proximal policy
    set: advantages, after `compute_advantages` has run, to signed powers of two, except in checks
    on AReaL's own
        no weight depends on them; masks and log-probabilities are those that it returns
    set: rewards, and no divergence penalty (kl_ctl=0)
        both affect only AReaL's own advantages, which are checked from normalised rewards
    set: a critic's returns to the advantages, and its values and old values to 0
        the squared error then has the same gradient
    set: ppo_n_minibatches=1, and an update of its own for each optimizer step
        AReaL deals a rank's samples to mini-batches by length, which would mix the steps of a case
    set: learning rate 0, no weight decay, no gradient clipping
        they act after the gradient is read
    set: gradients to 0 after they are read and before the optimizer steps
        NaN would corrupt the probe even at a learning rate of 0
    set: dtype=float32
        the tolerance is derived from the dtype, which a report names
    set: the sign of `approx_kl`, which AReaL logs as the new log-probability minus the old one
        the compared metric is the old one minus the new one
    stubbed: the model, by one with a vocabulary of one token, and the function that computes
    log-probabilities from logits, by itself plus the probe
        AReaL's own function runs on the model's logits; weights are read through the added probe
    passed_by: a checkpoint's configuration and tokenizer
        the model is the adapter's and has no attention; slicing and gathering are AReaL's own
    stubbed: the controller's calls of workers, by one worker per rank; `_dispatch_tensors` deals
    the samples, on every rank
        each rank gets the share that it would be sent
    set: engines and process groups are made once per world, and actors anew for each job
        their only state is the probe, which is 0
    stubbed: torch.compile for log-probabilities and entropies, and numba if it is not installed,
    by nothing
        the same operations, not compiled
    stubbed: on a machine without a GPU, the gradient reduction of torch's all_gather by an
    all_reduce, because torch's own mixes up ranks over gloo
        the same operations in the same order, in float32
    stubbed: packages that serve rollouts or track a run, and AReaL's agent client
        no rollout engine listens, and logged numbers are taken from `export_stats`
    """
)

MEGATRON = parse_departures(
    """
    stubbed: mbridge, which builds a model and its configuration from a checkpoint
        Megatron's own data parallelism gets AReaL's configuration and wraps a small model of one
        token; AReaL has no other settings of the schedule or of losses
    stubbed: loading a checkpoint, and the critic's head that AReaL adds to a Megatron model, by
    nothing
        the probe starts at 0, and already is a critic's value
    stubbed: the pipeline stages: each has a probe and passes on token ids and entries
        Megatron's schedule sends them and their gradients as it does activations
    stubbed: AReaL's patches of mbridge's models for tree training and of Megatron-Bridge's vision
    models, by nothing
        tree training is off, as by default, and no such model is built
    stubbed: on a machine without a GPU, torch's CUDA devices, by the CPU
        the same operations in the same order, in float32
    """
)
