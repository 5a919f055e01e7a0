"""How runs of SkyRL under its adapters differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES

ALL_ENGINES = parse_departures(
    """
    not_run: RayPPOTrainer.train itself, whose loop over batches has no method of its own: what it
    does of one batch is called in its order, by the trainer's own methods
        the methods are the loop's, called with what the loop calls them with
    not_run: dynamic sampling, dumps, callbacks, profiler, tracker,
    evaluation, checkpoints and weight synchronisation
        options that are off, or done before a batch is complete or after it is trained on
    not_run: inference engines and the user's environment, and with them train/generators/utils.py
    prepare_generator_input, which numbers prompts for them
        the generator is the user's to replace, and its output is checked as SkyRL checks it
    set: advantages, unless those that come from rewards are looked at, and a critic's returns,
    after compute_advantages_and_returns
        signed powers of two in their place: token weights do not depend on advantages
    set: kl_estimator_type=k1, coefficients and clipping bounds
        values a user may choose; the reference takes the same
    set: learning rate 0 and no clipping of the gradient's norm
        both come after the gradient that is read
    set: placement on separate GPUs (colocate_all=False), logger=console
        nothing is offloaded between steps, and nothing is sent to a tracking service
    stubbed: RayPPOTrainer's and the workers' constructors: attributes are set in their place
        they start Ray, engines and loaders; the attributes are those that training reads
    stubbed: WorkerDispatch: chunks are cut and picked by SkyRL's MeshDispatch and handed to the
    worker in this process, with no Ray object store between them
        it sends to actors of other processes what MeshDispatch has cut
    stubbed: forward passes for old and reference log-probabilities and for a critic's values
        the answers are the case's; training reads them as it would a model's
    stubbed: the model, by one of one token with an entry for every position, and the functions that
    make log-probabilities and entropies of logits, by themselves plus that entry
        SkyRL's own functions run on its logits; what is added is what weights are read by
    """,
    CPU_AS_CUDA,
)

FSDP = parse_departures(
    """
    set: mixed precision: parameters in the dtype of the run, reductions in float32
        the tolerance is derived from the dtype, which a report names
    stubbed: flash_attn's unpad_input and pad_input, where it is not installed, by transformers'
    functions of the same names
        they move rows and compute nothing
    passed_by: the workers' init_model: strategy, wrapper and critic are SkyRL's, made around our
    model with the arguments that init_model gives them
        it loads a checkpoint
    set: a critic's value head, by ones that are not trained
        its values are then the probe's entries
    """
)

MEGATRON = parse_departures(
    """
    set: flash_attn=False
        the model has no attention
    stubbed: Megatron-Bridge, init_configs and the provider of the model
        they make a model and its configuration of a checkpoint
    stubbed: get_megatron_optimizer and its scheduler, by an optimizer that reads the gradient
        it comes after all reductions, and gathers a distributed optimizer's shards
    """,
    PIPELINE_STAGES,
    ONE_BY_ONE,
)
