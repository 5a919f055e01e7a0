"""How runs of OpenRLHF under its adapter differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    not_run: the command line's `train`, which starts Ray's processes, and the trainer's loop over
    prompts, evaluation, checkpoints and updates of rollout engines
        arguments come from OpenRLHF's parser and validation; `BasePPOTrainer.train_step` is
        entered, which takes one batch of rollouts to its last optimizer step and its log
    stubbed: Ray's processes: every rank runs the trainer and calls its own actor
        OpenRLHF's `RayActorGroup` cuts a batch and calls each rank's handle; the handles of other
        ranks do nothing, and arguments are copied as if sent
    stubbed: rollout engines and vllm: OpenRLHF's generator makes experiences from given samples
        they come before a step
    stubbed: forward passes of the reference policy, of the old policy and of a critic on rollouts
        outputs are the case's, 0 at inactive tokens, as OpenRLHF's models return them; training
        reads them as it would a model's
    set: advantages, except in checks on OpenRLHF's own, and a critic's returns
        they are signed powers of two, without OpenRLHF's sums over later tokens: token weights do
        not depend on advantages
    set: no shuffling of a rank's rows; if a batch has several steps, no balancing either, and each
    rank has its part of every step
        shuffling and balancing would mix the samples of the steps; no weight depends on which step
        and rank has which sample
    set: if a batch has several steps, each is trained on once more, for the log
        OpenRLHF logs one mean over all steps of a batch
    set: with the layout option short_batch, a batch of one micro-batch per rank first
        it can be the last batch of an epoch; what it leaves behind is OpenRLHF's own
    set: with the layout option two_epochs, two epochs; only the second is observed
        at a learning rate of 0 the model does not change
    set: ZeRO 3's counts of modules and parameters, and OpenRLHF's ring-attention group, to those of
    a new process
        the adapter's processes have run other engines before, a user's have not
    set: clipping bounds, coefficients, kl.estimator=k1, bounds of corrections, discounts
        a user may choose these values; the reference uses the same ones
    set: learning rate 0, a constant schedule, no gradient clipping
        they act after the gradient is read
    set: ds.param_dtype=fp32, after validation
        OpenRLHF's parser allows only two 16-bit dtypes; its DeepSpeed configuration allows float32
    set: DeepSpeed's optimizer to torch's AdamW (torch_adam), and no shared memory for its
    collectives
        DeepSpeed would compile C++ for both; the reductions before the optimizer are its own
    set: torch.compile to nothing, for OpenRLHF's entropy
        the same operations, not compiled
    stubbed: the model, by one with a vocabulary of one token and an entry for every position, and
    the functions that compute log-probabilities and entropies from logits, by themselves plus that
    entry
        OpenRLHF's own functions run on the model's logits; weights are read through the entry
    passed_by: `Actor.from_pretrained` and `get_llm_for_sequence_regression`: actor and critic are
    OpenRLHF's classes around the adapter's model
        they load a checkpoint
    set: a critic's value head to ones that are not trained
        its values are then the probe's entries
    stubbed: flash_attn's functions that pack rows, if it is not installed, by transformers'
    functions of the same names, and its all_gather by torch's, with the sum of the ranks' gradients
        they move rows, and the collective does what flash_attn's does in both directions
    stubbed: ring_flash_attn, which replaces the attention of transformers
        the model has no attention; slicing and gathering of sequences are OpenRLHF's own
    stubbed: on a machine without a GPU, torch's CUDA device, by the CPU; device meshes are made
    once per world
        the same operations in the same order, in float32
    """
)
