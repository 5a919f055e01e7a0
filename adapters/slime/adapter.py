"""The adapter of slime, from its conversion of samples to the gradient of its optimizer."""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract import Convention, Job, Layout, LogEntry, Rank, Unsupported
from adapters.contract.tables import RecordFile
from adapters.slime_family import driving, importing, user_code
from adapters.slime_family.adapter import conventions, sample_unit
from adapters.slime_family.driving import LOG, MANAGER, as_dictionaries
from adapters.slime_family.framework import ON_MEGATRON, TOGETHER, icepop_record
from adapters.slime_family.megatron import MegatronAdapter
from adapters.toolkit.calls import call_supported
from adapters.toolkit.imports import import_from
from adapters.toolkit.settings import require_prompts_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.contract.batch.probed_batch import ProbedBatch


UNIFIED_LOGS = "backends.training_utils.log_utils"
"""The module of logs in January 2026, when all engines shared it (pull requests 1373 to 1442)."""

CP_UTILS = ("backends.training_utils.cp_utils", "backends.megatron_utils.cp_utils")

LOGS = (
    "observability.train_metric_utils:reduce_train_step_metrics",
    "backends.megatron_utils.cp_utils:reduce_train_step_metrics",
    f"{UNIFIED_LOGS}:aggregate_train_losses",
)
"""The function that aggregates logs, by version."""

SLIME = icepop_record(
    RecordFile("adapters.slime").variant("slime", base=ON_MEGATRON),
    "slime.backends.megatron_utils.loss",
)


class SlimeAdapter(MegatronAdapter):
    """Drives THUDM/slime."""

    name = "slime"
    package = "slime"
    versions = "slime since 0.2.1, of December 2025"
    tree = ("slime",)

    framework = SLIME
    losses = ("backends.training_utils.loss", "backends.megatron_utils.loss")
    log_probs = corrections = losses
    keepers = (
        "utils.arguments:slime_validate_args",
        f"{MANAGER}._convert_samples_to_train_data",
        "backends.megatron_utils.loss:get_pg_loss_reducer",
        *LOGS,
    )

    def load(self, source: Path | None) -> None:
        """Import slime and add the probe to its log-probabilities."""
        from adapters.slime_family.model import seam_around

        importing.install("slime", megatron=True)
        import_from("slime", [source] if source else [])
        self._choose_accelerator()
        importing.drop_server_options("slime")
        LOG.listen(self.module(UNIFIED_LOGS, "backends.megatron_utils.model"))
        actors = self.module("backends.megatron_utils.actor")
        # Versions before 0.3 exchange a critic's values here, between processes; we give the
        # values.
        actors.sync_actor_critic_data = lambda *_: None
        driving.decline_in_fetch(actors, actors.MegatronTrainRayActor)
        for name in ("ray.rollout", "utils.data"):
            self.module(name).ray = driving.OBJECT_STORE
        user_code.CpUtils.module = self.module(*CP_UTILS)
        loss = self.module(*self.losses)
        loss.calculate_log_probs_and_entropy = seam_around(loss.calculate_log_probs_and_entropy)

    def validated(self, args: Any, layout: Layout) -> None:
        """Run slime's own validation for training without rollouts."""
        args.train_backend, args.load_debug_rollout_data = "megatron", None
        args.debug_train_only, args.debug_rollout_only = True, False
        self.module("utils.arguments").slime_validate_args(args)

    def rollout_field(self) -> str | None:
        """The field of a sample object that names its rollout.

        Older versions have ``index`` instead of ``rollout_id``, the oldest neither (None).
        """
        if "rollout_id" in inspect.signature(self.module("utils.types").Sample).parameters:
            return "rollout_id"
        reducer = self.module(*CP_UTILS).get_sum_of_sample_mean
        return "index" if "sample_denoms" in inspect.signature(reducer).parameters else None

    def references(self, args: Any, job: Job, batch: ProbedBatch) -> Any:
        """References to the ranks' data, made by a rollout manager on this rank."""
        require_prompts_together(job, TOGETHER)
        manager, sample = self.found(MANAGER), self.module("utils.types").Sample
        return driving.references_of_manager(
            manager, args, job, batch, sample, self.rollout_field()
        )

    @contextmanager
    def replaying(self, routers: Sequence[Any], choose: Callable[..., Any]) -> Iterator[None]:
        """Replay routing as slime's patch of Megatron-LM (docker/patch) does in actor processes."""
        home = self.module("utils.routing_replay")
        home.RoutingReplay.all_routing_replays.clear()
        with mock.patch.dict(os.environ, {"ENABLE_ROUTING_REPLAY": "1"}):
            for router in routers:
                router.compute_topk = home.get_routing_replay_compute_topk(choose)
                home.register_routing_replay(router)
            yield

    def declared(self) -> Mapping[str, Convention]:
        """slime's conventions; prompt groups may be split over ranks."""
        unit = sample_unit(self.rollout_field(), "docs/en/get_started/agent.md, rollout_id")
        return conventions(self.parser, unit)

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Call slime's function, if any; the per-token option makes it divide by counts."""
        make = next(filter(None, map(self.found, LOGS)), None)
        if make is None:
            raise Unsupported("no function that aggregates logs: the train step does it itself")
        log: Mapping[str, float] = call_supported(
            make,
            as_dictionaries(entries, with_normalizers=False),
            parallel_state=SimpleNamespace(dp_cp_group=None, cp_size=1),
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
