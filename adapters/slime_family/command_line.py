"""A job on the command line of slime and miles, and in a configuration file read after it."""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.contract import Job, Layout, Option, Unsupported
from adapters.contract.configuration import FaultInjection, Setting
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    Objective,
)
from adapters.slime_family import user_code
from adapters.toolkit.settings import rollouts_per_prompt, rollouts_per_step, token_budget, yaml
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODE = "--loss-aggregation"
DIVISOR = "--loss-aggregation-divisor"
OLDER_DIVISOR = "--pg-loss-divisor"
PER_TOKEN = "--calculate-per-token-loss"
CONFIG_FILE = "--custom-config-path"

MODE_NAMES = {mode.value: mode.value for mode in Mode} | {"calculate_per_token_loss": "token_mean"}
"""Values of `MODE`, and what versions without it have for `token_mean`."""

REDUCER = "--custom-pg-loss-reducer-function-path"
CONVERSION = "--custom-convert-samples-to-train-data-path"
CORRECTION = "--custom-tis-function-path"
BATCH_SIZE = "--global-batch-size"

GROUPS = ("group", "prompt", "n_samples_per_prompt", "boundar")

NAMES: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("aggregation",),
    Setting.DIVISOR: ("divisor",),
    Setting.PER_TOKEN: ("per-token", "per_token", "aggregation"),
    Setting.ENTROPY: ("entropy",),
    Setting.KL: ("kl",),
    Setting.BATCH_SIZE: ("batch", *GROUPS),
    Setting.CORRECTION: ("tis", "correction"),
    Setting.REDUCER: ("reducer",),
    Setting.CONFIG_FILE: (),
    **dict.fromkeys(FaultInjection, GROUPS),
}
"""The words for a setting; an error must contain one of them."""

NEEDED: dict[Setting | FaultInjection | None, tuple[str, ...]] = {
    Setting.DIVISOR: (DIVISOR, OLDER_DIVISOR),
    Setting.PER_TOKEN: (PER_TOKEN,),
    Setting.CORRECTION: (CORRECTION,),
    Setting.REDUCER: (REDUCER,),
    Setting.CONFIG_FILE: (CONFIG_FILE,),
    **dict.fromkeys(user_code.FAULTS, (CONVERSION,)),
}
"""The options that a setting needs, any one of them; all versions have those of other settings."""

OBSERVE_ENTROPY = "--observe-training-entropy"
CRITIC_ALONE = "--num-critic-only-steps=1"
"""Newer versions of miles compute no entropy unless it is trained on or requested. In older ones a
critic waits for its actor's log-probabilities after that many steps."""

LAYOUT_OPTIONS = {
    Option.ALLGATHER_CP: "--allgather-cp",
    Option.AVERAGE_IN_COLLECTIVE: "--ddp-average-in-collective",
    Option.BALANCE_DATA: "--balance-data",
    Option.DISTRIBUTED_OPTIMIZER: "--use-distributed-optimizer",
    Option.INTERLEAVED: "--virtual-pipeline-model-parallel-size=2",
    Option.OVERLAP_GRAD_REDUCE: "--overlap-grad-reduce",
}

_ENTROPY = (f"--entropy-coef={ENTROPY_COEFFICIENT}",)
_KL = (
    "--use-kl-loss",
    f"--kl-loss-coef={KL_COEFFICIENT}",
    "--kl-loss-type=k1",
    f"--ref-load={os.curdir}",  # must exist, and is never loaded
)

_ESTIMATOR = "--advantage-estimator"
_WHITENED = "--normalize-advantages"
_PENALISED = (
    f"--kl-coef={ADVANTAGE_CONSTANTS.penalty}",
    "--kl-loss-type=k1",
    f"--ref-load={os.curdir}",
)
_DISCOUNTED = (_WHITENED, f"--gamma={ADVANTAGE_CONSTANTS.discount}")
_GAE = (f"{_ESTIMATOR}=ppo", *_DISCOUNTED, f"--lambd={ADVANTAGE_CONSTANTS.trace}")

OBJECTIVES: Mapping[Objective, tuple[str, ...]] = {
    Objective.REJECTION: ("--use-tis", f"{CORRECTION}={user_code.path(user_code.reject)}"),
    Objective.ENTROPY: _ENTROPY,
    Objective.KL: _KL,
    Objective.COMBINED: (*_ENTROPY, *_KL),
    Objective.DUAL_CLIP: (f"--eps-clip-c={CONSTANTS.dual_clip}",),
    Objective.TIS_TOKEN: ("--use-tis", f"--tis-clip={CONSTANTS.truncation}"),
    Objective.GSPO: (f"{_ESTIMATOR}=gspo",),
    Objective.CISPO: (f"{_ESTIMATOR}=cispo",),
    Objective.GROUP_NORMALISED: (f"{_ESTIMATOR}=grpo",),
    Objective.GROUP_CENTRED: (f"{_ESTIMATOR}=grpo", "--disable-grpo-std-normalization"),
    Objective.GROUP_WHITENED: (f"{_ESTIMATOR}=grpo", _WHITENED),
    Objective.REINFORCE_PP: (f"{_ESTIMATOR}=reinforce_plus_plus", *_DISCOUNTED, *_PENALISED),
    Objective.REINFORCE_PP_BASELINE: (
        f"{_ESTIMATOR}=reinforce_plus_plus_baseline",
        _WHITENED,
        *_PENALISED,
    ),
    Objective.GAE: _GAE,
    Objective.PENALISED_GAE: (*_GAE, *_PENALISED),
    Objective.SFT: ("--loss-type=sft_loss",),
}
"""Options that choose an objective. The policy loss needs none; the actor chooses the critic's."""


@dataclass(frozen=True)
class CliFlag:
    """One option, a flag if ``text`` is None, with its setting if it may be in a file."""

    option: str
    text: str | None = None
    setting: Setting | None = None

    @property
    def on_command_line(self) -> str:
        """The option as typed."""
        return self.option if self.text is None else f"{self.option}={self.text}"

    @property
    def in_file(self) -> str:
        """The option as a line of YAML, in which the value has a type."""
        key = self.option.removeprefix("--").replace("-", "_")
        return f"{key}: {yaml(self.text or 'true')}\n"


def offers(parser: argparse.ArgumentParser, option: str) -> bool:
    """Whether a parser has an option, and among its choices, if any, the value."""
    flag, given, value = option.partition("=")
    action = parser._option_string_actions.get(flag)
    if action is None:
        return False
    return not given or action.choices is None or value in action.choices


def base_parser() -> argparse.ArgumentParser:
    """A parser with options and defaults of `megatron.training`, which no distribution contains."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, conflict_handler="resolve", exit_on_error=False
    )
    switches = ["align-grad-reduce", "align-param-gather", "calculate-per-token-loss", "manual-gc"]
    switches += ["ddp-average-in-collective", "use-distributed-optimizer"]
    switches += ["overlap-grad-reduce", "overlap-param-gather"]
    for flag in switches:
        parser.add_argument(f"--{flag}", action="store_true")
    for name in ("tensor", "pipeline", "context"):
        model = "" if name == "context" else "model-"
        parser.add_argument(f"--{name}-{model}parallel-size", type=int, default=1)
    # Megatron uses other names, and derives it when it validates its own options.
    parser.add_argument("--virtual-pipeline-model-parallel-size", type=int)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--decoder-seq-length", type=int)
    switched_off = ("bf16", "fp16", "record_memory_history", "use_pytorch_profiler")
    parser.set_defaults(**dict.fromkeys(switched_off, False), check_for_nan_in_loss_and_grad=True)
    # Sizes of a small model, with which frameworks estimate workload to balance ranks.
    parser.set_defaults(ffn_hidden_size=32, hidden_size=8, kv_channels=4, vocab_size=64)
    parser.set_defaults(num_attention_heads=2, num_layers=1, num_query_groups=2)
    of_other_models = (
        "kv_lora_rank",
        "num_experts",
        "q_lora_rank",
        "qk_pos_emb_head_dim",
        "v_head_dim",
    )
    parser.set_defaults(**dict.fromkeys(of_other_models))
    return parser


def job_options(job: Job, parser: argparse.ArgumentParser) -> list[str]:
    """The options of a job except its settings (`settings`).

    Raises `Unsupported` for steps or prompts of different sizes, micro-batches of another kind, or
    a format that this version lacks.
    """
    critic = [CRITIC_ALONE] if job.objective is Objective.VALUE else []
    return [
        *_batch_options(job),
        *_micro_batch_options(job),
        *_layout_options(job.layout, parser),
        *(option for option in (OBSERVE_ENTROPY, *critic) if offers(parser, option)),
        f"--eps-clip={CONSTANTS.clip_low}",
        f"--eps-clip-high={CONSTANTS.clip_high}",
        *OBJECTIVES.get(job.objective, ()),
    ]


@contextmanager
def settings(job: Job, parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """Yield the options of a job's settings, and keep their file while the context is open."""
    flags = [*_flags(job, parser)]
    in_file = job.configuration.in_file
    for flag in flags:
        _require(parser, flag.option)
    lines = [flag.in_file for flag in flags if flag.setting in in_file]
    typed = [flag.on_command_line for flag in flags if flag.setting not in in_file]
    if not lines:
        yield typed
        return
    _require(parser, CONFIG_FILE)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.writelines(lines)
        file.flush()
        yield [*typed, f"{CONFIG_FILE}={file.name}"]


def layout_options(parser: argparse.ArgumentParser) -> frozenset[Option]:
    """The layout options that a framework offers."""
    return frozenset(option for option, flag in LAYOUT_OPTIONS.items() if offers(parser, flag))


def train_parallel_config(layout: Layout) -> dict[str, int]:
    """The layout as slime's and miles' trainers describe it to the rollout side."""
    interleaved = Option.INTERLEAVED in layout.options
    return {
        "dp_size": layout.dp,
        "cp_size": layout.cp,
        "vpp_size": 2 if interleaved else 1,
        "microbatch_group_size_per_vp_stage": layout.pp if interleaved else 1,
    }


def configurations(
    parser: argparse.ArgumentParser,
) -> dict[Setting | FaultInjection, tuple[str, ...]]:
    """What configurations may set, with the words by which slime and miles name it."""
    return {
        setting: words
        for setting, words in NAMES.items()
        if any(offers(parser, option) for option in NEEDED.get(setting, (BATCH_SIZE,)))
    }


def modes(parser: argparse.ArgumentParser) -> frozenset[Mode]:
    """The modes that a framework's options offer."""
    if offers(parser, MODE):
        return frozenset(Mode)
    missing = (
        {Mode.PROMPT_MEAN} if offers(parser, OLDER_DIVISOR) else {Mode.PROMPT_MEAN, Mode.CONSTANT}
    )
    return frozenset(Mode) - missing


def _batch_options(job: Job) -> list[str]:
    rollouts, per_prompt = rollouts_per_step(job.steps), rollouts_per_prompt(job.steps)
    return [
        f"--rollout-batch-size={rollouts * len(job.steps) // per_prompt}",
        f"--n-samples-per-prompt={per_prompt}",
        "--num-rollout=1",
    ]


def _layout_options(layout: Layout, parser: argparse.ArgumentParser) -> list[str]:
    options = [f"--context-parallel-size={layout.cp}"]
    options += [f"--tensor-model-parallel-size={layout.tp}"] if layout.tp > 1 else []
    options += [f"--pipeline-model-parallel-size={layout.pp}"] if layout.pp > 1 else []
    options += [LAYOUT_OPTIONS[option] for option in layout.options]
    if offers(parser, "--qkv-format"):
        return [*options, f"--qkv-format={layout.format}"]
    if layout.format != "thd":
        raise Unsupported(f"no format {layout.format}")
    return options


def _micro_batch_options(job: Job) -> list[str]:
    layout = job.layout
    if isinstance(layout.micro_batches, int):
        return [f"--micro-batch-size={_micro_batch_size(job, layout.micro_batches)}"]
    if layout.micro_batches == "tokens":
        # The ranks that share a micro-batch's sequences add up their budgets.
        budget = -(-token_budget(job.steps, layout.dp) // layout.cp)
        return ["--use-dynamic-batch-size", f"--max-tokens-per-gpu={budget}"]
    raise Unsupported(f"no micro-batches by {layout.micro_batches}")


def _micro_batch_size(job: Job, micro_batches: int) -> int:
    """The size that cuts every step into this many micro-batches on every rank."""
    wanted = job.layout.dp * micro_batches
    for size in range(1, max(step.size for step in job.steps) + 1):
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no micro-batch size that cuts the samples of every step into {wanted}")


def _flags(job: Job, parser: argparse.ArgumentParser) -> Iterator[CliFlag]:
    """Yield every setting of a job and the options that its configuration needs."""
    configuration = job.configuration
    size = configuration.batch_size or rollouts_per_step(job.steps)
    yield CliFlag(BATCH_SIZE, str(size), Setting.BATCH_SIZE)
    yield from _mode(job) if offers(parser, MODE) else _older_mode(job, parser)
    if configuration.per_token:
        yield CliFlag(PER_TOKEN, setting=Setting.PER_TOKEN)
    if configuration.entropy:
        yield CliFlag("--entropy-coef", str(ENTROPY_COEFFICIENT), Setting.ENTROPY)
    if configuration.kl:
        yield CliFlag("--use-kl-loss", setting=Setting.KL)
        yield CliFlag("--kl-loss-coef", str(KL_COEFFICIENT), Setting.KL)
        yield CliFlag("--ref-load", tempfile.gettempdir())  # a folder that exists, never read
    if configuration.corrects:
        yield CliFlag("--use-tis")
        yield CliFlag(CORRECTION, user_code.path(user_code.correct))
    if configuration.reduces:
        yield CliFlag(REDUCER, user_code.path(user_code.reducer))
    if configuration.fault_injection in user_code.FAULTS:
        yield CliFlag(CONVERSION, user_code.path(user_code.conversion))


def _mode(job: Job) -> Iterator[CliFlag]:
    """Yield the mode and the divisor, in versions with an option for the four modes."""
    if job.configuration.says_mode:
        yield CliFlag(MODE, str(job.aggregation.mode), Setting.MODE)
    if divisor := _divisor(job):
        yield CliFlag(DIVISOR, divisor, Setting.DIVISOR)


def _older_mode(job: Job, parser: argparse.ArgumentParser) -> Iterator[CliFlag]:
    """Yield mode and divisor in older versions: a flag is `token_mean`, a divisor `constant`."""
    mode = job.aggregation.mode
    divisor = _divisor(job)
    if mode is Mode.PROMPT_MEAN or (mode is Mode.CONSTANT and not offers(parser, OLDER_DIVISOR)):
        raise Unsupported(f"no mode {mode}")
    if divisor:
        _require(parser, OLDER_DIVISOR)
    if bool(divisor) != (mode is Mode.CONSTANT) and mode is not Mode.TOKEN_MEAN:
        raise Unsupported(f"no option {MODE}: a divisor alone makes a mode constant")
    if mode is Mode.TOKEN_MEAN and job.configuration.says_mode:
        yield CliFlag(PER_TOKEN, setting=Setting.MODE)
    if divisor:
        yield CliFlag(OLDER_DIVISOR, divisor, Setting.DIVISOR)


def _divisor(job: Job) -> str:
    """The divisor as typed, empty if none is given."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    return str(job.aggregation.divisor or "")


def _require(parser: argparse.ArgumentParser, option: str) -> None:
    if not offers(parser, option):
        raise Unsupported(f"no option {option}")
