"""The adapter of slime, from its conversion of samples to the gradient of its optimizer."""

from __future__ import annotations

import inspect
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract.description import Assumed, CodeLocation, Documented, parse_departures
from adapters.contract.job import Unsupported
from adapters.contract.layout import Layout
from adapters.slime_family import command_line, description, framework, rollouts, user_code
from adapters.slime_family.adapter import MegatronAdapter
from adapters.slime_family.framework import LOG, as_dictionaries
from adapters.toolkit.calls import Candidates, call_supported, refusals
from adapters.toolkit.imports import import_from
from reference.aggregation import SampleUnit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from adapters.contract.adapter import Rank
    from adapters.contract.description import Convention
    from adapters.contract.job import Job, LogEntry
    from adapters.contract.probed_batch import ProbedBatch


class SlimeAdapter(MegatronAdapter):
    """Drives THUDM/slime."""

    name = "slime"
    package = "slime"
    versions = "slime since 0.2.2"
    tree = ("slime",)

    departures = parse_departures(
        """
        stubbed: the accelerator: CUDA without probing the machine, in versions that choose one
            it names devices and communication backends; without a GPU, tensors are on the CPU
        stubbed: the rollout manager: made without its init, which starts servers
            its conversion of samples and its split over ranks are its own
        """
    )

    # Only versions 0.2 have this format.
    padded_layouts = (
        Layout(micro_batches=2, format="bshd"),
        Layout(dp=2, cp=2, micro_batches=2, format="bshd"),
    )

    def load(self, source: Path | None) -> None:
        """Import slime and add the probe to its log-probabilities."""
        from adapters.slime_family.model import seam_around

        framework.install("slime", megatron=True)
        import_from("slime", [source] if source else [])
        self._choose_accelerator()
        framework.drop_server_options("slime")
        LOG.listen(self.module("backends.megatron_utils.model"))
        # Versions before 0.3 exchange a critic's values here, between processes; they are given.
        self.module("backends.megatron_utils.actor").sync_actor_critic_data = lambda *_: None
        for name in ("ray.rollout", "utils.data"):
            self.module(name).ray = framework.OBJECT_STORE
        loss, reducers, _ = self.loss_modules()
        user_code.CpUtils.module = reducers
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
        manager = object.__new__(self._manager_class)
        manager.args = args
        manager.custom_reward_post_process_func = None
        manager.custom_convert_samples_to_train_data_func = None
        manager.train_parallel_config = command_line.train_parallel_config(job.layout)
        own = copy(manager)
        manager.custom_convert_samples_to_train_data_func = user_code.conversion(
            job, lambda args, samples: own._convert_samples_to_train_data(samples)
        )
        samples = rollouts.samples(batch, self.module("utils.types").Sample, self.rollout_field())
        data = manager._convert_samples_to_train_data(user_code.samples_to_convert(samples, job))
        if hasattr(manager, "_split_train_data_by_dp"):
            return call_supported(manager._split_train_data_by_dp, data, dp_size=job.layout.dp)
        return SimpleNamespace(inner=data)  # a training rank of older versions takes its share

    def slicer(self, args: Any) -> rollouts.Slicer:
        """slime's slicing by sample, used for every format."""
        slice_with_cp = self.module("backends.megatron_utils.cp_utils").slice_log_prob_with_cp
        form = getattr(args, "qkv_format", "thd")
        return lambda values, total, response, width: call_supported(
            slice_with_cp,
            values,
            total,
            response,
            qkv_format=form,
            max_token_len=width,
            max_seq_len=width,
        )

    def declining_fetch(self, actors: ModuleType, actor: Any) -> None:
        """Wrap the actor's own method."""
        actor._get_rollout_data = refusals()(actor._get_rollout_data)

    def loss_modules(self) -> tuple[Any, Any, Any]:
        """The modules in slime."""
        loss = self.module("backends.megatron_utils.loss")
        return loss, self.module("backends.megatron_utils.cp_utils"), loss

    def declared(self, parser: Any) -> Mapping[str, Convention]:
        """slime's conventions; prompt groups may be split over ranks."""
        estimators = self._module_if_any("utils.ppo_utils")
        return description.conventions(parser, estimators, self._sample_unit())

    def _sample_unit(self) -> Convention:
        """The sample unit; documented since samples name their rollout."""
        field = self.rollout_field()
        if field == "rollout_id":
            return Documented(SampleUnit.ROLLOUT, "docs/en/get_started/agent.md, rollout_id")
        return Assumed(SampleUnit.SAMPLE if field is None else SampleUnit.ROLLOUT)

    def candidates(self) -> Candidates:
        """Functions that may contain a mistake, newer versions first."""
        loss, _, _ = self.loss_modules()
        return {
            CodeLocation.TOKEN_COUNT: ((loss, "loss_function"),),
            CodeLocation.LOG: (
                *((home, "reduce_train_step_metrics") for home in self._log_modules()),
                (self.module("backends.megatron_utils.model"), "train_one_step"),
            ),
            CodeLocation.ARGUMENTS: ((self.module("utils.arguments"), "slime_validate_args"),),
            CodeLocation.SHARDING: (
                (self._manager_class, "_split_train_data_by_dp"),
                (self.module("utils.data"), "process_rollout_data"),
            ),
        }

    def keepers(self) -> list[Any]:
        """The functions of validation, conversion, reducer and log."""
        return [
            self.module("utils.arguments").slime_validate_args,
            self._manager_class._convert_samples_to_train_data,
            getattr(self.loss_modules()[0], "get_pg_loss_reducer", None),
            *(home.reduce_train_step_metrics for home in self._log_modules()),
        ]

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Call slime's function, if it exists; with the per-token option it divides by counts."""
        homes = self._log_modules()
        if not homes:
            raise Unsupported("no function that aggregates logs: the train step does it itself")
        return homes[0].reduce_train_step_metrics(
            as_dictionaries(entries, with_normalizers=False),
            calculate_per_token_loss=True,
            step_global_batch_size=1,
            cp_size=1,
            dp_with_cp_group=None,
        )

    def _log_modules(self) -> list[Any]:
        """The modules that aggregate logs, newer versions first."""
        names = "observability.train_metric_utils", "backends.megatron_utils.cp_utils"
        modules = [self._module_if_any(name) for name in names]
        return [home for home in modules if hasattr(home, "reduce_train_step_metrics")]

    @property
    def _manager_class(self) -> Any:
        """The rollout manager's class without Ray's wrapper."""
        return self.module("ray.rollout").RolloutManager.__ray_metadata__.modified_class

    def _module_if_any(self, name: str) -> Any:
        """Import a module of slime; None if this version lacks it."""
        try:
            return self.module(name)
        except ModuleNotFoundError:
            return None

    def _choose_accelerator(self) -> None:
        """Choose CUDA in newer versions, which look for an available device."""
        from adapters.toolkit import cuda_on_cpu

        accelerator = self._module_if_any("utils.accelerator")
        if accelerator is None:
            return
        accelerator._register_builtin_backends()
        accelerator._ACCELERATOR = accelerator._REGISTRY["cuda"].factory()
        cuda_on_cpu.number_the_device()
