"""The adapter of slime, from its conversion of samples to the gradient of its optimizer."""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract.description import parse_departures
from adapters.contract.job import Unsupported
from adapters.contract.layout import Layout
from adapters.slime_family import driving, importing, user_code
from adapters.slime_family.adapter import conventions, sample_unit
from adapters.slime_family.driving import LOG, as_dictionaries
from adapters.slime_family.framework import ON_MEGATRON, TOGETHER
from adapters.slime_family.megatron import MegatronAdapter
from adapters.toolkit.calls import call_supported, refusals
from adapters.toolkit.imports import import_from
from adapters.toolkit.settings import require_prompts_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract.adapter import Rank
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.description import Convention
    from adapters.contract.job import Job, LogEntry


MANAGER = "ray.rollout:RolloutManager.__ray_metadata__.modified_class"
"""The rollout manager's class without Ray's wrapper."""

LOGS = tuple(
    f"{home}:reduce_train_step_metrics"
    for home in ("observability.train_metric_utils", "backends.megatron_utils.cp_utils")
)
"""The function that aggregates logs, in newer versions and in older ones."""

SLIME = replace(
    ON_MEGATRON,
    departures=(
        *ON_MEGATRON.departures,
        *parse_departures(
            """
            stubbed: the accelerator: CUDA without probing the machine, in versions that choose one
                it names devices and communication backends; without a GPU, tensors are on the CPU
            stubbed: the rollout manager: made without its init, which starts servers
                its conversion of samples and its split over ranks are its own
            """
        ),
    ),
)
"""The record of slime."""


class SlimeAdapter(MegatronAdapter):
    """Drives THUDM/slime."""

    name = "slime"
    package = "slime"
    versions = "slime since 0.2.2"
    tree = ("slime",)

    framework = SLIME
    log_probs = losses = "backends.megatron_utils.loss"
    keepers = (
        "utils.arguments:slime_validate_args",
        f"{MANAGER}._convert_samples_to_train_data",
        "backends.megatron_utils.loss:get_pg_loss_reducer",
        *LOGS,
    )
    # Only versions 0.2 have this format.
    padded_layouts = (
        Layout(micro_batches=2, format="bshd"),
        Layout(dp=2, cp=2, micro_batches=2, format="bshd"),
    )

    def load(self, source: Path | None) -> None:
        """Import slime and add the probe to its log-probabilities."""
        from adapters.slime_family.model import seam_around

        importing.install("slime", megatron=True)
        import_from("slime", [source] if source else [])
        self._choose_accelerator()
        importing.drop_server_options("slime")
        LOG.listen(self.module("backends.megatron_utils.model"))
        actors = self.module("backends.megatron_utils.actor")
        # Versions before 0.3 exchange a critic's values here, between processes; they are given.
        actors.sync_actor_critic_data = lambda *_: None
        of_actor = actors.MegatronTrainRayActor
        of_actor._get_rollout_data = refusals()(of_actor._get_rollout_data)
        for name in ("ray.rollout", "utils.data"):
            self.module(name).ray = driving.OBJECT_STORE
        user_code.CpUtils.module = self.module("backends.megatron_utils.cp_utils")
        loss = self.module(self.losses)
        loss.calculate_log_probs_and_entropy = seam_around(loss.calculate_log_probs_and_entropy)

    def validated(self, args: Any, layout: Layout) -> None:
        """Run slime's own validation for training without rollouts."""
        args.train_backend, args.load_debug_rollout_data = "megatron", None
        args.debug_train_only, args.debug_rollout_only = True, False
        self.module("utils.arguments").slime_validate_args(args)

    def rollout_field(self) -> str | None:
        """``rollout_id``, in older versions ``index``, in the oldest None."""
        if "rollout_id" in inspect.signature(self.module("utils.types").Sample).parameters:
            return "rollout_id"
        reducer = self.module("backends.megatron_utils.cp_utils").get_sum_of_sample_mean
        return "index" if "sample_denoms" in inspect.signature(reducer).parameters else None

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References made by a rollout manager on this rank."""
        require_prompts_together(job, TOGETHER)
        manager = object.__new__(self.found(MANAGER))
        manager.args = args
        manager.custom_reward_post_process_func = None
        manager.custom_convert_samples_to_train_data_func = None
        manager.train_parallel_config = driving.train_parallel_config(job.layout)
        own = copy(manager)
        manager.custom_convert_samples_to_train_data_func = user_code.conversion(
            job, lambda args, samples: own._convert_samples_to_train_data(samples)
        )
        samples = driving.samples(batch, self.module("utils.types").Sample, self.rollout_field())
        data = manager._convert_samples_to_train_data(user_code.samples_to_convert(samples, job))
        if hasattr(manager, "_split_train_data_by_dp"):
            return call_supported(manager._split_train_data_by_dp, data, dp_size=job.layout.dp)
        return SimpleNamespace(inner=data)  # a training rank of older versions takes its share

    def declared(self) -> Mapping[str, Convention]:
        """slime's conventions; prompt groups may be split over ranks."""
        unit = sample_unit(self.rollout_field(), "docs/en/get_started/agent.md, rollout_id")
        return conventions(self.parser, self.found("utils.ppo_utils"), unit)

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Call slime's function, if it exists; with the per-token option it divides by counts."""
        make = next(filter(None, map(self.found, LOGS)), None)
        if make is None:
            raise Unsupported("no function that aggregates logs: the train step does it itself")
        log: Mapping[str, float] = make(
            as_dictionaries(entries, with_normalizers=False),
            calculate_per_token_loss=True,
            step_global_batch_size=1,
            cp_size=1,
            dp_with_cp_group=None,
        )
        return log

    def _choose_accelerator(self) -> None:
        """Choose CUDA in newer versions, which look for an available device."""
        from adapters.toolkit import cuda_on_cpu

        accelerator = self.found("utils.accelerator")
        if accelerator is None:
            return
        accelerator._register_builtin_backends()
        accelerator._ACCELERATOR = accelerator._REGISTRY["cuda"].factory()
        cuda_on_cpu.number_the_device()
