"""In what a run of SkyRL differs from a user's, and why no verdict depends on it."""

from __future__ import annotations

from adapters.contract import Departure, DepartureKind

NOT_RUN = (
    Departure(
        kind=DepartureKind.NOT_RUN,
        what="RayPPOTrainer.train itself, whose loop over batches has no method of its own: what it"
        " does of one batch is called in its order, by the trainer's own methods",
        why="the methods are the loop's, called with what the loop calls them with",
    ),
    Departure(
        kind=DepartureKind.NOT_RUN,
        what="dynamic sampling, a KL penalty in the reward, dumps, callbacks, profiler, tracker,"
        " evaluation, checkpoints and weight synchronisation",
        why="options that are off, or done before a batch is complete or after it is trained on",
    ),
    Departure(
        kind=DepartureKind.NOT_RUN,
        what="inference engines and the user's environment, and with them"
        " train/generators/utils.py prepare_generator_input, which numbers prompts for them",
        why="the generator is the user's to replace, and its output is checked as SkyRL checks it",
    ),
)

SET = (
    Departure(
        kind=DepartureKind.SET,
        what="advantages, and a critic's returns, after compute_advantages_and_returns",
        why="signed powers of two in their place: token weights do not depend on advantages",
    ),
    Departure(
        kind=DepartureKind.SET,
        what="kl_estimator_type=k1, coefficients and clipping bounds",
        why="values a user may choose; the reference takes the same",
    ),
    Departure(
        kind=DepartureKind.SET,
        what="learning rate 0 and no clipping of the gradient's norm",
        why="both come after the gradient that is read",
    ),
    Departure(
        kind=DepartureKind.SET,
        what="placement on separate GPUs (colocate_all=False), logger=console",
        why="nothing is offloaded between steps, and nothing is sent to a tracking service",
    ),
)

STUBBED = (
    Departure(
        kind=DepartureKind.STUBBED,
        what="RayPPOTrainer's and the workers' constructors: attributes are set in their place",
        why="they start Ray, engines and loaders; the attributes are those that training reads",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="WorkerDispatch: chunks are cut and picked by SkyRL's MeshDispatch and handed to the"
        " worker in this process, with no Ray object store between them",
        why="it sends to actors of other processes what MeshDispatch has cut",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="forward passes for old and reference log-probabilities and for a critic's values",
        why="the answers are the case's; training reads them as it would a model's",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="the model, by one of one token with an entry for every position, and the functions"
        " that make log-probabilities and entropies of logits, by themselves plus that entry",
        why="SkyRL's own functions run on its logits; what is added is what weights are read by",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="on a machine without a GPU, torch's CUDA device, by the CPU",
        why="the same operations in the same order, in float32",
    ),
)

FSDP = (
    Departure(
        kind=DepartureKind.SET,
        what="mixed precision: parameters in the dtype of the run, reductions in float32",
        why="the tolerance is derived from the dtype, which a report names",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="flash_attn's unpad_input and pad_input, where it is not installed, by transformers'"
        " functions of the same names",
        why="they move rows and compute nothing",
    ),
    Departure(
        kind=DepartureKind.PASSED_BY,
        what="the workers' init_model: strategy, wrapper and critic are SkyRL's, made around our"
        " model with the arguments that init_model gives them",
        why="it loads a checkpoint",
    ),
    Departure(
        kind=DepartureKind.SET,
        what="a critic's value head, by ones that are not trained",
        why="its values are then the probe's entries",
    ),
)

MEGATRON = (
    Departure(
        kind=DepartureKind.SET,
        what="flash_attn=False",
        why="the model has no attention",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="Megatron-Bridge, init_configs and the provider of the model",
        why="they make a model and its configuration of a checkpoint",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="get_megatron_optimizer and its scheduler, by an optimizer that reads the gradient",
        why="it comes after all reductions, and gathers a distributed optimizer's shards",
    ),
    Departure(
        kind=DepartureKind.STUBBED,
        what="Megatron's joined collectives, over gloo on a GPU, by one after another",
        why="the same sums; where they would overlap, the layout is declined",
    ),
)
