"""How runs of OpenRLHF under its adapter differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: the command line's `train`, which starts Ray's processes, and the trainer's loop over
    prompts, evaluation, checkpoints and the update of rollout engines
        arguments are those of OpenRLHF's parser and validation; `BasePPOTrainer.train_step` is
        entered, which takes one batch of rollouts to its last optimizer step and its log
    stubbed: Ray's processes: every rank runs the trainer, and calls its own actor
        OpenRLHF's `RayActorGroup` cuts a batch and calls each rank's handle; others' are not run,
        and arguments are copied as if sent
    stubbed: rollout engines and vllm: the samples are given, as answers that OpenRLHF's generator
    makes experiences of
        they come before a step
    stubbed: forward passes of the reference policy, of the old policy and of a critic on rollouts
        the answers are the case's, 0 where a token is not active, as OpenRLHF's models give them;
        training reads them as it would a model's
    set: advantages, unless OpenRLHF's own are looked at, and a critic's returns
        signed powers of two in their place, and OpenRLHF's sums over later tokens are left out:
        token weights do not depend on advantages
    set: no shuffling of a rank's rows; where a batch has several steps, no balancing either, and
    each rank has its part of every step
        shuffling and balancing would mix the samples of the steps; which step and rank has which
        sample changes no weight
    set: where a batch has several steps, each is trained on once more, for the log
        OpenRLHF logs one mean over all steps of a batch
    set: with the layout option short_batch, a batch of one micro-batch of each rank before
        as the last batch of an epoch may be; what it leaves behind is not set
    set: with the layout option two_epochs, two epochs, of which the second is looked at
        a learning rate of 0 leaves the model as it was
    set: numbers of modules and parameters in ZeRO 3, and OpenRLHF's group of ring attention, to
    those of a new process
        our processes have had other engines before, a user's have one
    set: clipping bounds, coefficients, kl.estimator=k1, bounds of corrections, discounts
        values a user may choose; the reference takes the same
    set: learning rate 0, a constant schedule and no clipping of the gradient's norm
        all come after the gradient that is read
    set: ds.param_dtype=fp32, after validation
        OpenRLHF's parser knows two dtypes of 16 bits alone, its DeepSpeed configuration float32 too
    set: DeepSpeed's optimizer, to torch's own AdamW (torch_adam), and no shared memory for its
    collectives
        DeepSpeed would compile C++ for both; the reductions before the optimizer are its own
    set: torch.compile, to nothing, for OpenRLHF's entropy
        the same operations, not compiled
    stubbed: the model, by one of one token with an entry for every position, and the functions that
    make log-probabilities and entropies of logits, by themselves plus that entry
        OpenRLHF's own functions run on its logits; what is added is what weights are read by
    passed_by: `Actor.from_pretrained` and `get_llm_for_sequence_regression`: actor and critic are
    OpenRLHF's classes around our model
        they load a checkpoint
    set: a critic's value head, by ones that are not trained
        its values are then the probe's entries
    stubbed: flash_attn's functions that pack rows, where it is not installed, by transformers'
    functions of the same names, and its all_gather by torch's, with the sum of the ranks' gradients
        they move rows, and the collective is flash_attn's own in both directions
    stubbed: ring_flash_attn, which replaces the attention of transformers
        the model has no attention; slices and gathering of sequences are OpenRLHF's own
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU, and the device meshes of a
    world, which are made once
        the same operations in the same order, in float32
    """
)
