"""A job on OpenRLHF's command line, as its own script parses and validates it."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract import Job, Option, Unsupported
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_GROUPS,
    Objective,
)
from adapters.engines.shells import stage_of
from adapters.openrlhf.importing import module
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import (
    has_kl_term,
    has_reference,
    micro_batch_size,
    rollouts_per_prompt,
    samples_per_step,
    token_budget,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from types import CodeType

SCRIPT = "cli.train_ppo_ray"
MODE = "--actor.loss_agg_mode"
CORRECTION = "--algo.advantage.is_correction_level"
CORRECTION_MODE = "--algo.advantage.is_correction_mode"
OLDER_CORRECTION = "--algo.advantage.is_correction_enable"
OLDER_CORRECTION_TYPE = "--algo.advantage.is_correction_type"
THRESHOLD = "--algo.advantage.is_correction_threshold"
ESTIMATOR = "--algo.advantage.estimator"
KL = "--algo.kl.init_coef"

LOSS_AGG_MODES = {
    Mode.SAMPLE_MEAN: "seq-mean-token-mean",
    Mode.TOKEN_MEAN: "token-mean",
}

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in OpenRLHF

ESTIMATORS: dict[Objective, tuple[object, ...]] = {
    Objective.GROUP_NORMALISED: (ESTIMATOR, "group_norm"),
    Objective.GROUP_CENTRED: (ESTIMATOR, "dr_grpo"),
    Objective.LEAVE_ONE_OUT: (ESTIMATOR, "rloo"),
    Objective.REINFORCE_PP: (ESTIMATOR, "reinforce"),
    Objective.REINFORCE_PP_BASELINE: (ESTIMATOR, "reinforce_baseline"),
    Objective.GAE: (ESTIMATOR, "gae"),
    Objective.PENALISED_GAE: (ESTIMATOR, "gae"),
}
"""OpenRLHF's estimators of advantages."""

DISCOUNTED = (
    *("--algo.advantage.gamma", ADVANTAGE_CONSTANTS.discount),
    *("--algo.advantage.lambd", ADVANTAGE_CONSTANTS.trace),
)


@dataclass(frozen=True)
class _Correction:
    """A correction by the ratio of the old policy to that of the rollouts, and its bounds."""

    level: str
    mode: str
    older_name: str
    """Its name in versions before 0.11.2."""

    bounds: tuple[float, float]


CORRECTIONS = {
    Objective.REJECTION: _Correction("token", "mask", "icepop", (0.5, 5.0)),  # the defaults
    Objective.TIS_TOKEN: _Correction("token", "clip", "tis", (0.0, CONSTANTS.truncation)),
    Objective.SEQUENCE_MASKED: _Correction(
        "seq", "mask", "seq-mask-tis", (CONSTANTS.kept_low, CONSTANTS.kept_high)
    ),
}


def parsed(job: Job, dtype: str) -> Any:
    """OpenRLHF's arguments for a job, as validated; raises `Unsupported` or `Refused`."""
    _require_objective(job)
    arguments = [*_sizes(job), *_engine(job), *_loss(job), *_advantages(job)]
    received: list[Any] = []
    argv = [SCRIPT, *map(str, arguments)]
    with refusals(), mock.patch.object(sys, "argv", argv):
        exec(_script(), {"__name__": "__main__", "train": received.append})
    [args] = received
    args.ds.param_dtype = PRECISIONS[dtype]  # the parser knows two dtypes of 16 bits alone
    return args


def knows(option: str) -> bool:
    """Whether the command line of this version has an option."""
    return f'"{option}"' in inspect.getsource(module(SCRIPT))


def corrects(job: Job) -> bool:
    """Whether the rollout policy's log-probabilities are compared with the old one's."""
    return job.objective in CORRECTIONS


@cache
def _script() -> CodeType:
    """The script's code without its function that trains."""
    script = module(SCRIPT)
    tree = ast.parse(inspect.getsource(script))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name == "train")
    ]
    return compile(tree, script.__file__, "exec")


def _require_objective(job: Job) -> None:
    """Raise `Unsupported` if OpenRLHF does not have the objective in the job's mode."""
    if job.objective is Objective.GSPO and job.aggregation.mode is not Mode.SAMPLE_MEAN:
        raise Unsupported("gspo is a mean over samples, whatever loss_agg_mode says")
    if job.objective is Objective.VALUE and job.aggregation.mode is not Mode.TOKEN_MEAN:
        raise Unsupported("loss_agg_mode is the policy's: a critic's loss is by tokens alone")
    short = Option.SHORT_BATCH in job.layout.options
    if short and (len(job.steps) > 1 or job.objective in FROM_REWARDS):
        raise Unsupported(
            "a short batch is looked at before one step, of advantages that are given"
        )


def _sizes(job: Job) -> list[object]:
    """The sizes of the batch of rollouts, of a train batch and of a micro-batch."""
    size, ranks = job.configuration.batch_size or samples_per_step(job.steps), job.layout.dp
    if size % ranks:
        raise Unsupported(f"train batches are multiples of {ranks} ranks, {size} samples are none")
    grouped = job.objective in OF_GROUPS
    of_prompt = rollouts_per_prompt(job.steps) if grouped else 1
    samples = sum(step.size for step in job.steps)
    return [
        *("--train.batch_size", size),
        *("--rollout.batch_size", samples // of_prompt),
        *("--rollout.n_samples_per_prompt", of_prompt),
        *("--train.max_epochs", 2 if Option.TWO_EPOCHS in job.layout.options else 1),
        *_micro_batches(job, size // ranks),
    ]


def _micro_batches(job: Job, per_rank: int) -> list[object]:
    if job.layout.micro_batches == "tokens":
        budget = -(-token_budget(job.steps, job.layout.dp) // job.layout.cp)
        return ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", budget]
    return ["--train.micro_batch_size", micro_batch_size(job, per_rank)]


def _engine(job: Job) -> list[object]:
    """Our model on DeepSpeed, and an optimizer that leaves the probe at 0."""
    layout = job.layout
    return [
        *("--actor.model_name_or_path", "probe", "--reward.remote_url", "given"),
        *("--vllm.num_engines", 1, "--vllm.sync_backend", "gloo"),
        *("--actor.num_gpus_per_node", layout.world_size),
        *("--critic.num_gpus_per_node", layout.world_size),
        *("--ref.num_gpus_per_node", layout.world_size),
        *("--ds.zero_stage", stage_of(layout), "--ds.ring_attn_size", layout.cp),
        *(["--ds.packing_samples"] if layout.format == "thd" else []),
        *(["--ds.overlap_comm"] if Option.OVERLAP_GRAD_REDUCE in layout.options else []),
        *(
            argument
            for model in ("actor", "critic")
            for argument in (
                *(f"--{model}.adam.lr", 0.0, f"--{model}.max_norm", 0.0),
                *(f"--{model}.lr_scheduler", "constant"),
            )
        ),
    ]


def _loss(job: Job) -> list[object]:
    """The options of the loss and its terms."""
    options: list[object] = ["--actor.eps_clip_low_high", CONSTANTS.clip_low, CONSTANTS.clip_high]
    if job.configuration.says_mode and knows(MODE):
        options += [MODE, LOSS_AGG_MODES[job.aggregation.mode]]
    if job.configuration.entropy or job.objective in (Objective.ENTROPY, Objective.COMBINED):
        options += ["--actor.entropy_coef", ENTROPY_COEFFICIENT]
    if has_kl_term(job):
        options += ["--algo.kl.use_loss", "--algo.kl.estimator", "k1"]
    if job.objective is Objective.DUAL_CLIP:
        options += ["--actor.dual_clip", CONSTANTS.dual_clip]
    if job.objective is Objective.GSPO:
        options += ["--actor.policy_loss_type", "gspo"]
    if corrects(job):
        options += _correction(CORRECTIONS[job.objective])
    return options


def _correction(correction: _Correction) -> list[object]:
    """The options of a correction."""
    if knows(CORRECTION):
        level = [CORRECTION, correction.level, CORRECTION_MODE, correction.mode]
    else:
        level = [OLDER_CORRECTION, OLDER_CORRECTION_TYPE, correction.older_name]
    return [*level, THRESHOLD, *correction.bounds]


def _advantages(job: Job) -> list[object]:
    """The options of the estimator; ``reinforce`` where advantages are given and it is not read."""
    if job.objective is Objective.VALUE:
        return [ESTIMATOR, "gae", KL, 0.0]
    if job.objective not in FROM_REWARDS:
        return [ESTIMATOR, "reinforce", KL, KL_COEFFICIENT if has_kl_term(job) else 0.0]
    discounts = () if job.objective in OF_GROUPS else DISCOUNTED
    penalty = ADVANTAGE_CONSTANTS.penalty if has_reference(job) else 0.0
    return [*ESTIMATORS[job.objective], *discounts, KL, penalty]
