"""How runs of slime and miles differ from a user's, besides `Description.stubs`, and why."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import PIPELINE_STAGES

ALL_ENGINES = parse_departures(
    """
    not_run: the trainer's loop around the actor's train: rollouts, evaluation, saving, weight
    updates
        samples are given as the rollout side hands them on, and weights stay as they are
    not_run: the actor's init: process groups, model, optimizer, checkpoints
        each of them is made by the adapter; what the actor then does with them is its own
    not_run: a forward pass of a reference policy
        its log-probabilities are given, as are all quantities that a weight is read from
    not_run: a critic's forward pass, where advantages come from its values
        they are given, and it is the same pass that is run where the critic is trained
    set: no log-probabilities of the rollouts, unless tokens are to be rejected or corrected, or
    advantages come from rewards
        nothing else is computed from them
    stubbed: the model: one parameter for each token of the batch, the probe, and no attention
        a weight is the derivative by a token's log-probability, wherever logits come from
    stubbed: calculate_log_probs_and_entropy: runs on a vocabulary of one; then the probe is added
        so that values are known and the derivative by each of them can be read
    stubbed: compute_advantages_and_returns: writes the adapter's advantages and returns, unless
    those that come from rewards are looked at
        which estimator is used is a user's choice, and no aggregation asks for it
    stubbed: the tracker that metrics are logged to: the numbers are taken
        they are what the framework hands over
    stubbed: the object store between rollouts and training: objects are handed on as they are
        it changes no values
    stubbed: the heartbeat, the weight updater, the copies of weights on the CPU, and an actor's
    sleep between rollouts: do nothing
        weights do not change, nobody waits for signs of life, and memory is not scarce
    stubbed: CUDA, where there is none: its device is the CPU, and it has nothing to wait for
        dtypes and the order of operations are the framework's all the same
    passed_by: options of inference servers and their validation
        no train step reads them
    """
)

MEGATRON = parse_departures(
    """
    set: --debug-train-only
        no inference servers are started; the train step does not ask for it
    set: --num-critic-only-steps=1 for a critic, where there is the option
        the critic trains alone in the first rollout, and its loss is the same
    set: --ref-load of a folder that is not read, where a KL term is trained
        validation asks for one; log-probabilities of the reference policy are given
    set: sizes of a small model
        they weigh samples where ranks are balanced by workload, and lengths of samples decide
    stubbed: Megatron's argument parser: its options with its defaults, those that are read
        megatron.training is in no distribution of Megatron-Core
    passed_by: validation of Megatron's own options, and the framework's additions to it
        options run as they are switched on; slime for one keeps allgather_cp to some models
    set: Megatron's DistributedDataParallel with gradients reduced in float32
        as frameworks of this lineage have it; the layout's options are passed on
    stubbed: the optimizer and the learning-rate schedule: the gradient is read, nothing is stepped
        gradients are final when an optimizer sees them
    stubbed: get_args and finalize_model_grads of the framework's training module
        one gives the parsed arguments, the other is Megatron's own unless depth is below step
    stubbed: the loss function's count of tokens is made a tensor
        newer versions of Megatron-Core than the framework's expect one; the number is the same
    stubbed: joined collectives, with gloo on CUDA: made one by one
        gloo has them for tensors on the CPU alone; each bucket is reduced as before
    """,
    PIPELINE_STAGES,
)
