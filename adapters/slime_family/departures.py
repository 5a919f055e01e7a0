"""How runs of slime and miles differ from a user's, besides `Description.stubs`, and why."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import PIPELINE_STAGES

ALL_ENGINES = parse_departures(
    """
    not_run: the trainer's loop around the actor's train: rollouts, evaluation, saving, weight
    updates
        samples are given as the rollout side hands them over, and weights do not change
    not_run: the actor's init: process groups, model, optimizer, checkpoints
        the adapter makes each of them; the actor's own code uses them
    not_run: a forward pass of a reference policy
        its log-probabilities are given, as are all quantities that a weight is read from
    not_run: a critic's forward pass, where advantages come from its values
        they are given; the same pass runs when the critic is trained
    set: no rollout log-probabilities, unless tokens are rejected or corrected, or advantages come
    from rewards
        nothing else is computed from them
    stubbed: the model, by the probe, one parameter for each token of the batch, without attention
        a weight is the derivative with respect to a token's log-probability, wherever logits come
        from
    stubbed: calculate_log_probs_and_entropy: runs on a vocabulary of one; then the probe is added
        values are then known, and the derivative with respect to each of them can be read
    stubbed: compute_advantages_and_returns: writes the adapter's advantages and returns, except in
    checks on those from rewards
        a user chooses the estimator, and no aggregation depends on it
    stubbed: the tracker that metrics are logged to: the numbers are recorded
        they are what the framework logs
    stubbed: the object store between rollouts and training: objects are passed directly
        it changes no values
    stubbed: the heartbeat, the weight updater, the copies of weights on the CPU, and an actor's
    sleep between rollouts, by nothing
        weights do not change, no process waits for a heartbeat, and memory suffices
    stubbed: CUDA, on a machine without a GPU: its device is the CPU, and synchronising does nothing
        dtypes and the order of operations are still the framework's
    passed_by: options of inference servers and their validation
        no train step reads them
    """
)

MEGATRON = parse_departures(
    """
    set: --debug-train-only
        no inference servers are started; the train step does not read it
    set: --num-critic-only-steps=1 for a critic, if the option exists
        the critic trains alone in the first rollout, and its loss is the same
    set: --ref-load to a folder that is not read, if a KL term is trained
        validation requires one; log-probabilities of the reference policy are given
    set: sizes of a small model
        they only estimate workload when ranks are balanced, where the lengths of samples decide
    stubbed: Megatron's argument parser: those of its options that are read, with its
    defaults
        no distribution of Megatron-Core contains megatron.training
    passed_by: validation of Megatron's own options, and the framework's additions to it
        options run as they are switched on; slime, for example, allows allgather_cp only for some
        models
    set: Megatron's DistributedDataParallel with gradients reduced in float32
        frameworks of this lineage use it in the same way; the layout's options are passed on
    stubbed: the optimizer and the learning-rate schedule: the gradient is read, nothing is stepped
        gradients are final when an optimizer sees them
    stubbed: get_args and finalize_model_grads of the framework's training module
        one returns the parsed arguments, the other is Megatron's own except at depths below step
    stubbed: the loss function's token count, converted to a tensor
        Megatron-Core versions newer than the framework's expect one; the number is the same
    stubbed: coalesced collectives, with gloo on CUDA, by separate ones
        gloo coalesces only CPU tensors; each bucket is reduced as before
    """,
    PIPELINE_STAGES,
)
