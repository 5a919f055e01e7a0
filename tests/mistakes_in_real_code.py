"""Mistakes put into copies of frameworks' real code, and the causes they must give.

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.mistakes_in_real_code [NAME …]`` prints what
changes in the causes when each mistake is made; FOLDER has clones of miles, slime, prime_rl,
nemo_rl and roll.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.toolkit.source import resolve
from conformance.comparing.cause_changes import cause_changes
from conformance.comparing.diff import difference
from conformance.runs import registry
from tests import command
from tests.toys import commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.comparing.cause_changes import CauseChange
    from conformance.findings.report import Report

CASES = (
    "fully_masked_sample",
    "odd_groups",
    "split_groups",
    "two_steps",
    "unequal_groups",
    "unequal_shards",
    "uneven_lengths",
)
"""Empty samples, masked tokens, groups and rollouts of several sizes, steps and shards."""

PADDED = ("dp1-cp1-mb2-bshd", "dp2-cp1-mb1-bshd", "dp2-cp1-mb2-bshd", "dp4-cp1-mb1-bshd")

PACKED = ("dp1-cp1-mb1-thd", "dp1-cp1-mb2-thd", "dp2-cp1-mb1-thd", "dp2-cp1-mb2-thd")

SLICED = ("dp1-cp1-mb2-thd", "dp2-cp1-mb1-thd", "dp1-cp2-mb1-thd", "dp1-cp4-mb2-thd")
"""Layouts that tell factors and denominators of one kind of part from those of another."""

REDUCTION = "apply_loss_reduction_to_advantages_minibatch"
"""The function of SkyRL that divides advantages by the counts of the mode."""


@dataclass(frozen=True)
class Edit:
    """Replaces one reading of a variable within a function, or within all of its name.

    ``reading`` counts them from 1, in the order of the text.
    """

    file: str
    function: str
    variable: str
    reading: int
    by: str

    def apply(self, package: Path) -> None:
        """Change the file in a checkout's package."""
        path = package / self.file
        lines = path.read_text().splitlines(keepends=True)
        name = self._readings(ast.parse("".join(lines)))[self.reading - 1]
        line = lines[name.lineno - 1].encode()
        changed = line[: name.col_offset] + self.by.encode() + line[name.end_col_offset :]
        lines[name.lineno - 1] = changed.decode()
        path.write_text("".join(lines))

    def _readings(self, module: ast.Module) -> list[ast.Name]:
        names = {
            (node.lineno, node.col_offset): node
            for function in ast.walk(module)
            if isinstance(function, ast.FunctionDef) and function.name == self.function
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
            if node.id == self.variable and isinstance(node.ctx, ast.Load)
        }
        return [names[position] for position in sorted(names)]


@dataclass(frozen=True)
class Mistake:
    """What is read in place of a variable of a framework, and the one cause that must result."""

    name: str
    cause: str
    edit: Edit
    _: KW_ONLY
    framework: str
    engine: str = "megatron"
    checks: str = "weights,metric,auxiliary"
    modes: str = "sample_mean,token_mean"
    layouts: tuple[str, ...] = SLICED
    condition: Sequence[str] = ()
    left_out: str = "nothing"
    """Findings that are left out: gspo spreads a gradient over its sample, rollouts have others."""

    @property
    def arguments(self) -> list[str]:
        """The options of a run that sees the mistake."""
        return [
            f"--engine={self.engine}",
            f"--checks={self.checks}",
            f"--modes={self.modes}",
            *(f"--layout={layout}" for layout in self.layouts),
            f"-k=({' or '.join(CASES)}) and not ({self.left_out})",
        ]


STAGES = (
    "dp1-cp1-mb2-thd",
    "dp2-cp1-mb1-thd",
    "dp2-cp1-mb2-bshd",
    "dp1-cp1-mb2-thd+zero_3",
    "dp2-cp1-mb2-bshd+zero_3",
    "dp2-cp1-mb2-bshd+zero_1",
)
"""Layouts of fixed micro-batches with the stages of ZeRO that share something."""

_of_skyrl, _of_miles, _of_slime = (
    partial(Mistake, framework=name) for name in ("skyrl", "miles", "slime")
)

_of_openrlhf = partial(
    Mistake, framework="openrlhf", engine="deepspeed", checks="weights", layouts=STAGES
)

_of_prime_rl = partial(
    Mistake,
    framework="prime_rl",
    engine="fsdp2",
    checks="weights",
    modes="token_mean",
    layouts=("dp1-cp1-mbtokens-thd", "dp2-cp1-mb1-thd", "dp4-cp1-mbtokens-thd"),
)

_of_areal = partial(
    Mistake,
    framework="areal",
    engine="fsdp2",
    checks="weights",
    modes="token_mean",
    layouts=(*PACKED, "dp1-cp2-mb1-thd", "dp1-cp2-mb2-thd"),
    left_out="dp2 and unequal_groups",  # which AReaL's controller does not deal
)

ROLL_MEGATRON = ("distributed/strategy/megatron_strategy.py", "train_step")
"""The function of ROLL that multiplies losses by what Megatron divides them by."""

_of_roll = partial(Mistake, framework="roll", engine="fsdp2", checks="weights", layouts=PADDED)

_of_nemo_rl = partial(
    Mistake,
    framework="nemo_rl",
    engine="dtensor_v2",
    checks="weights",
    layouts=(*PADDED, "dp1-cp2-mb1-bshd", "dp2-cp1-mbtokens-thd"),
    left_out="dp2 and unequal_groups",  # which NeMo-RL's policy does not deal
)

_of_verl = partial(
    Mistake,
    framework="verl",
    engine="fsdp",
    checks="weights",
    layouts=PACKED,
    left_out="dp2 and unequal_groups",  # which verl fills up with rows that count
)

_of_trl = partial(
    Mistake,
    framework="trl",
    engine="ddp",
    checks="weights",
    layouts=("dp1-cp1-mb2-bshd", "dp2-cp1-mb1-bshd", "dp2-cp1-mb2-bshd"),
)

_of_trl_async = partial(
    Mistake,
    framework="trl",
    engine="async",
    checks="weights",
    modes="token_mean",
    layouts=("dp2-cp1-mb1-thd", "dp4-cp1-mb1-thd"),
)

ASYNC_LOSS = "experimental/async_grpo/async_grpo_trainer.py", "compute_loss"
"""The file and the function of TRL's asynchronous loss."""

TRL_LOSS = "trainer/grpo_trainer.py", "_compute_loss"
"""The file and the function of TRL's loss."""

ROWS = "self.accelerator.gather(mask.sum(-1))"
"""The active tokens of each row on all of TRL's processes."""

# fmt: off
MISTAKES = (
    _of_skyrl("skyrl_fsdp_mean_of_ranks", "divided_by_dp",
        Edit("backends/skyrl_train/workers/worker.py", "_forward_backward_micro",
             "grad_sum_correction_factor", 2, "1"),
        condition=["in gradients and the logged loss", "of the policy_loss term"], engine="fsdp",
        modes="sample_mean,token_mean,constant", layouts=PADDED),
    _of_skyrl("skyrl_fsdp_empty_samples", "empty_samples_counted",
        Edit("backends/skyrl_train/utils/ppo_utils.py", REDUCTION, "loss_mask", 1,
             "loss_mask.sum(dim=-1).clamp(min=1)"),
        condition=["of the policy_loss term"], engine="fsdp", layouts=PADDED),
    _of_skyrl("skyrl_megatron_samples_for_prompts", "samples_counted_as_units",
        Edit("backends/skyrl_train/utils/ppo_utils.py", REDUCTION, "prompt_boundaries", 2,
             "advantages"),
        modes="sample_mean,prompt_mean"),
    _of_skyrl("skyrl_megatron_log_of_one_rank", "not_reduced_over_dp",
        Edit("backends/skyrl_train/workers/worker_utils.py", "all_reduce_metrics", "status_sum", 1,
             "sum_metrics"),
        condition=["in logged losses"], modes="token_mean,constant", layouts=PADDED),
    _of_miles("miles_megatron_micro_batches", "divided_by_micro_batches",
        Edit("backends/training_utils/loss.py", "loss_function", "num_microbatches", 1, "1"),
        condition=["in gradients", "in sample_mean"]),
    _of_miles("miles_fsdp_entropy_without_gradient", "term_without_gradient",
        Edit("backends/training_utils/loss_hub/losses.py", "policy_loss_function", "entropy", 2,
             "entropy.detach()"),
        condition=["of the entropy term"], engine="fsdp", layouts=PACKED),
    _of_miles("miles_megatron_token_more_per_sample", "tokens_per_sample_miscounted",
        Edit("backends/training_utils/loss.py", "loss_function", "loss_mask", 1,
             "torch.cat([loss_mask, loss_mask.new_ones(1)])"),
        condition=["in token_mean"]),
    _of_miles("miles_fsdp_only_last_micro_batch", "micro_batches_lost",
        Edit("backends/fsdp_utils/actor.py", "_train_step", "loss", 1,
             "(self.optimizer.zero_grad(), loss)[1]"),
        condition=["in gradients"], engine="fsdp", modes="sample_mean",
        layouts=("dp1-cp1-mb2-thd", "dp2-cp1-mb2-thd", "dp4-cp1-mb2-thd")),
    _of_slime("slime_factor_of_slices", "divided_by_cp",
        Edit("backends/megatron_utils/loss.py", "loss_function", "loss", 3,
             "(loss / mpu.get_context_parallel_world_size())"),
        condition=["in gradients", "in token_mean"]),
    _of_slime("slime_masked_tokens", "masked_tokens_counted",
        Edit("ray/rollout.py", "_convert_samples_to_train_data", "sum", 1, "len"),
        condition=["in sample_mean"]),
    _of_slime("slime_log_of_slices", "multiplied_by_cp",
        Edit("observability/train_metric_utils.py", "reduce_train_step_metrics", "cp_factor", 1,
             "cp_size"),
        condition=["in logged numbers", "in sample_mean"]),
    _of_slime("slime_denominators_of_slices", "tokens_counted_per_cp_slice",
        Edit("backends/megatron_utils/cp_utils.py", "sum_of_sample_mean", "denom", 2,
             "chunked_loss_mask.sum()"),
        condition=["in sample_mean"], left_out="gspo or unequal_groups"),
    _of_verl("verl_denominator_per_micro_batch", "tokens_counted_per_micro_batch",
        Edit("trainer/ppo/core_algos.py", "agg_loss", "batch_num_tokens", 2, "loss_mask.sum()")),
    _of_verl("verl_dp_size_lost", "divided_by_dp",
        Edit("trainer/ppo/core_algos.py", "agg_loss", "dp_size", 2, "1"),
        condition=["in token_mean"]),
    _of_verl("verl_mask_left_out", "masked_tokens_counted",
        Edit("workers/engine/fsdp/transformer_impl.py", "forward_backward_batch", "data", 3,
             '{"loss_mask": torch.ones_like(data["responses"].values())}'),
        condition=["in token_mean"]),
    _of_verl("verl_samples_of_a_rank", "multiplied_by_dp",
        Edit("trainer/ppo/core_algos.py", "agg_loss", "global_batch_size", 4,
             "(global_batch_size / dp_size)"),
        condition=["in sample_mean"]),
    _of_verl("verl_metric_averaged", "divided_by_micro_batches",
        Edit("workers/utils/losses.py", "ppo_loss", "metric_aggregation", 1,
             "AggregationType.MEAN"),
        condition=["in metric"], checks="metric"),
    Mistake("verl_cp_counted_twice", "multiplied_by_cp",
        Edit("workers/engine/megatron/transformer_impl.py", "postprocess_micro_batch_func",
             "scaled_loss", 1, "(scaled_loss * self.engine_config.context_parallel_size)"),
        checks="weights", framework="verl"),
    _of_openrlhf("openrlhf_accumulation_divided_twice", "divided_by_micro_batches",
        Edit("utils/loss_utils.py", "_optimizer_step_loss_norm", "gas", 1, "1"),
        condition=["in token_mean"]),
    _of_openrlhf("openrlhf_mean_of_ranks_of_a_stage", "divided_by_dp",
        Edit("utils/loss_utils.py", "iter_grad_accum_global_norm", "dp_size", 1,
             "(1 if strategy.stage == 3 else dp_size)"),
        condition=["with zero_3"]),
    _of_openrlhf("openrlhf_mask_left_out", "prompt_tokens_counted",
        Edit("trainer/ray/ppo_actor.py", "ppo_train", "e", 1,
             '__import__("types").SimpleNamespace(action_mask=e.attention_mask)'),
        modes="token_mean"),
    _of_prime_rl("prime_rl_average_of_ranks_kept", "divided_by_dp",
        Edit("trainer/utils.py", "scale_gradients_", "factor", 2, "1")),
    _of_prime_rl("prime_rl_tokens_of_a_rank", "tokens_counted_per_rank",
        Edit("trainer/rl/train.py", "train", "global_scales", 1, "global_scales.clone()")),
    _of_prime_rl("prime_rl_tokens_of_data_parallel_ranks", "multiplied_by_cp",
        Edit("trainer/rl/train.py", "train", "dp_cp_group", 1,
             'parallel_dims.get_mesh("dp").get_group()'),
        layouts=("dp1-cp2-mb1-thd", "dp1-cp4-mbtokens-thd", "dp2-cp2-mb1-thd", "dp2-cp1-mb1-thd")),
    _of_prime_rl("prime_rl_mask_left_out", "prompt_tokens_counted",
        Edit("trainer/rl/train.py", "train", "mask", 2, "mask.new_ones(mask.shape)")),
    _of_areal("areal_average_of_ranks_kept", "divided_by_dp",
        Edit("engine/fsdp_engine.py", "_compute_logprobs_and_loss", "loss_multiplier", 1, "1")),
    _of_areal("areal_tokens_of_a_rank", "tokens_counted_per_rank",
        Edit("engine/core/train_engine.py", "compute_total_loss_weight", "total_weight", 1,
             "total_weight.clone()")),
    _of_areal("areal_tokens_of_slices", "divided_by_cp",
        Edit("engine/core/train_engine.py", "compute_total_loss_weight", "dp_group", 1, "None")),
    _of_areal("areal_megatron_average_of_micro_batches_kept", "divided_by_micro_batches",
        Edit("engine/megatron_engine.py", "train_batch", "mb_list", 2, "[0]"),
        engine="megatron"),
    _of_areal("areal_megatron_average_of_ranks_kept", "divided_by_dp",
        Edit("engine/megatron_engine.py", "train_batch", "mpu", 2,
             '__import__("types").SimpleNamespace(get_data_parallel_world_size=lambda: 1)'),
        engine="megatron"),
    _of_areal("areal_megatron_tokens_of_data_parallel_ranks", "multiplied_by_cp",
        Edit("engine/megatron_engine.py", "train_batch", "mpu", 1,
             '__import__("types").SimpleNamespace('
             "get_data_parallel_group=lambda **_: mpu.get_data_parallel_group())"),
        engine="megatron"),
    _of_roll("roll_average_of_micro_batches_kept", "divided_by_micro_batches",
        Edit("distributed/strategy/fsdp2_strategy.py", "train_step", "mini_steps", 1, "1")),
    _of_roll("roll_tokens_of_a_rank", "tokens_counted_per_rank",
        Edit("distributed/strategy/strategy.py", "_get_batch_num_tokens", "num", 1, "num.clone()"),
        modes="token_mean"),
    _of_roll("roll_tokens_of_slices", "divided_by_cp",
        Edit("distributed/strategy/fsdp2_strategy.py", "train_step", "cp_size", 1, "1"),
        modes="token_mean",
        layouts=("dp1-cp2-mb1-bshd", "dp1-cp2-mb2-bshd", "dp2-cp2-mb1-bshd", "dp2-cp1-mb1-bshd")),
    _of_roll("roll_megatron_average_of_micro_batches_kept", "divided_by_micro_batches",
        Edit(*ROLL_MEGATRON, "num_microbatches", 4, "1"),
        engine="megatron"),
    _of_roll("roll_megatron_average_of_ranks_kept", "divided_by_dp",
        Edit(*ROLL_MEGATRON, "mpu", 4,
             '__import__("types").SimpleNamespace(get_data_parallel_world_size=lambda: 1)'),
        engine="megatron"),
    _of_roll("roll_megatron_tokens_of_slices", "divided_by_cp",
        Edit(*ROLL_MEGATRON, "mpu", 1,
             '__import__("types").SimpleNamespace(get_data_parallel_group=lambda:'
             " mpu.get_data_parallel_group(with_context_parallel=True))"),
        engine="megatron", modes="token_mean",
        layouts=("dp1-cp2-mb1-bshd", "dp1-cp2-mb2-bshd", "dp2-cp2-mb1-bshd", "dp2-cp1-mb1-bshd")),
    _of_nemo_rl("nemo_rl_average_of_ranks_kept", "divided_by_dp",
        Edit("models/automodel/train.py", "automodel_forward_backward", "dp_size", 1, "1")),
    _of_nemo_rl("nemo_rl_counts_of_slices", "divided_by_cp",
        Edit("models/automodel/data.py", "process_global_batch", "dp_group", 1, "None")),
    _of_nemo_rl("nemo_rl_invalid_samples_counted", "sample_units_counted",
        Edit("models/automodel/data.py", "process_global_batch", "batch", 2,
             '{"sample_mask": torch.ones_like(batch["sample_mask"])}'),
        modes="sample_mean"),
    _of_trl("trl_accumulation_not_averaged", "micro_batch_means_added_up",
        Edit(*TRL_LOSS, "normalizer", 1, "1")),
    _of_trl("trl_tokens_of_a_process", "tokens_counted_per_rank",
        Edit("trainer/grpo_trainer.py", "_generate_and_score_completions", "num_items_in_batch", 1,
             "loss_mask.sum()")),
    _of_trl("trl_mask_left_out", "masked_tokens_counted",
        Edit(*TRL_LOSS, "mask", 7, "completion_mask"),
        condition=["in sample_mean"]),
    _of_trl("trl_empty_rows_dropped", "sample_units_excluded",
        Edit(*TRL_LOSS, "per_token_loss", 5,
             f"(per_token_loss * {ROWS}.numel() / ({ROWS} > 0).sum().clamp(min=1))"),
        layouts=("dp1-cp1-mb1-bshd", "dp2-cp1-mb1-bshd")),
    _of_trl_async("trl_async_average_of_ranks_kept", "divided_by_dp",
        Edit(*ASYNC_LOSS, "world_size", 1, "1")),
    _of_trl_async("trl_async_tokens_of_a_rank", "denominators_per_rank",
        Edit(*ASYNC_LOSS, "global_n_tokens", 1, "(world_size * selected.sum())")),
)
# fmt: on


INSTALLED = ("skyrl", "trl", "verl")
"""Frameworks that are on the package index."""

RELEASED = {"areal": "pypi:1.0.4", "openrlhf": "pypi:0.11.2"}
"""Frameworks that are fetched from it without their dependencies, with the source that is given."""


def original(mistake: Mistake) -> Path:
    """The folder that holds the framework's package as it is."""
    if mistake.framework in INSTALLED:
        spec = importlib.util.find_spec(mistake.framework)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parents[1]
    adapter = registry.create(mistake.framework, mistake.engine)
    release = RELEASED.get(mistake.framework)
    checkout = f"{os.environ.get(command.SOURCES)}/{mistake.framework}@main"
    path = resolve(adapter, release or checkout).path
    assert path is not None
    return path


def copied(mistake: Mistake, folder: Path) -> Path:
    """A checkout of the framework's package, without the mistake."""
    for part in [*packages(mistake), *_beside(mistake)]:
        shutil.copytree(
            original(mistake) / part,
            folder / part,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    commit(folder)
    return folder


def packages(mistake: Mistake) -> list[Path]:
    """The folders of the framework's package in a checkout, the one that is changed first."""
    adapter = registry.create(mistake.framework, mistake.engine)
    return [Path(root) / mistake.framework for root in adapter.roots]


def _beside(mistake: Mistake) -> list[Path]:
    """Other folders of the framework's repository that its adapter reads."""
    tree = map(Path, registry.create(mistake.framework, mistake.engine).tree)
    held = {part for package in packages(mistake) for part in (package, *package.parents)}
    return [part for part in tree if part not in held and (original(mistake) / part).is_dir()]


def changes(mistake: Mistake, folder: Path) -> list[CauseChange]:
    """What the mistake changes in the causes of a run."""
    source = copied(mistake, folder / "source")
    before = report(mistake, source, folder)
    mistake.edit.apply(source / packages(mistake)[0])
    after = report(mistake, source, folder)
    return cause_changes(difference(before, after))


def report(mistake: Mistake, source: Path, folder: Path) -> Report:
    """The report of a framework's code as it is in a folder."""
    result = command.run(folder, mistake.framework, f"--source={source}", *mistake.arguments)
    assert result.report.complete, result.output
    return result.report


def main(names: Sequence[str]) -> None:
    """Print the changes that mistakes make; all mistakes if no name is given."""
    for mistake in MISTAKES:
        if mistake.name in (names or [mistake.name]):
            print(f"{mistake.name}: expected {mistake.cause}", flush=True)
            with tempfile.TemporaryDirectory(prefix="rl-loss-mistakes-") as folder:
                for change in changes(mistake, Path(folder)):
                    print(f"  {change.fate}: {change.statement} ({change.findings})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
