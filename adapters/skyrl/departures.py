"""How runs of SkyRL under its adapters differ from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract.description import parse_departures
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES

ALL_ENGINES = parse_departures(
    """
    not_run: RayPPOTrainer.train itself, whose loop over batches is not a method of its own: the
    adapter calls the trainer's own methods in the loop's order
        they are the loop's methods, with the loop's arguments
    not_run: dynamic sampling, dumps, callbacks, profiler, tracker,
    evaluation, checkpoints and weight synchronisation
        these options are off, or act before a batch is complete or after it is trained on
    not_run: inference engines and the user's environment, and with them train/generators/utils.py
    prepare_generator_input, which numbers prompts for them
        a user may replace the generator, and its output is validated as SkyRL validates it
    set: advantages, except in checks on those from rewards, and a critic's returns, after
    compute_advantages_and_returns
        they are signed powers of two: token weights do not depend on advantages
    set: kl_estimator_type=k1, coefficients and clipping bounds
        a user may choose these values; the reference uses the same ones
    set: learning rate 0, no gradient clipping
        they act after the gradient is read
    set: placement on separate GPUs (colocate_all=False), logger=console
        nothing is offloaded between steps, and nothing is sent to a tracking service
    stubbed: RayPPOTrainer's and the workers' constructors: their attributes are set instead
        they start Ray, engines and loaders; the attributes are those that training reads
    stubbed: WorkerDispatch: SkyRL's MeshDispatch cuts and picks chunks, which go to the worker in
    this process without Ray's object store
        WorkerDispatch sends MeshDispatch's chunks to actors in other processes
    stubbed: forward passes for old and reference log-probabilities and for a critic's values
        outputs are the case's; training reads them as it would a model's
    stubbed: the model, by one with a vocabulary of one token and an entry for every position, and
    the functions that compute log-probabilities and entropies from logits, by themselves plus that
    entry
        SkyRL's own functions run on the model's logits; weights are read through the entry
    """,
    CPU_AS_CUDA,
)

FSDP = parse_departures(
    """
    set: mixed precision: parameters in the dtype of the run, reductions in float32
        the tolerance is derived from the dtype, which a report names
    stubbed: flash_attn's unpad_input and pad_input, if it is not installed, by transformers'
    functions of the same names
        they move rows and compute nothing
    passed_by: the workers' init_model: strategy, wrapper and critic are SkyRL's, made around the
    adapter's model with init_model's arguments
        it loads a checkpoint
    set: a critic's value head to ones that are not trained
        its values are then the probe's entries
    """
)

MEGATRON = parse_departures(
    """
    set: flash_attn=False
        the model has no attention
    stubbed: Megatron-Bridge, init_configs and the model provider
        they build a model and its configuration from a checkpoint
    stubbed: get_megatron_optimizer and its scheduler, by an optimizer that reads the gradient
        it runs after all reductions, and gathers a distributed optimizer's shards
    """,
    PIPELINE_STAGES,
    ONE_BY_ONE,
)
