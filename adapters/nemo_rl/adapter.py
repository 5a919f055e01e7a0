"""The adapter of NeMo-RL, from a batch of rollouts to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.objective import FROM_REWARDS, OF_ROLLOUTS
from adapters.engines.shells import InOneRun, OnFsdp
from adapters.nemo_rl import importing
from adapters.nemo_rl.framework import DTENSOR_V1, DTENSOR_V2, NEMO_RL

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Framework, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.engines.shells import Reported


class NemoRLAdapter(OnFsdp, InOneRun):
    """Drives NVIDIA-NeMo/RL."""

    name = "nemo_rl"
    package = "nemo_rl"
    versions = "commits since 14 May 2026"
    tree = ("nemo_rl", "examples/configs")
    dependencies: ClassVar[tuple[str, ...]] = ("transformers",)
    recipes = "adapters.nemo_rl.recipe:read"
    framework: ClassVar[Framework] = NEMO_RL
    loaded: ClassVar[Any] = importing

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and its worker."""
        importing.import_nemo_rl(source)

    def settings(self, job: Job) -> dict[str, Any]:
        """No settings, because each batch of rollouts has settings of its own."""
        return {}

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of NeMo-RL's trainer for each batch of rollouts."""
        from adapters.nemo_rl.driving import NemoRLTraining

        return NemoRLTraining(batch, job, self.framework, rank)

    def reported(self, job: Job, done: Any) -> Reported:
        """The metrics of rollouts if NeMo-RL computes advantages, else those of steps."""
        found, is_of_batch = super().reported(job, done).items(), job.objective in FROM_REWARDS
        return {one: values for one, values in found if (one in OF_ROLLOUTS) is is_of_batch}


class DTensorV1Adapter(NemoRLAdapter):
    """The first version of the worker, which shards models itself."""

    engine = "dtensor_v1"
    framework = DTENSOR_V1


class DTensorV2Adapter(NemoRLAdapter):
    """The second version of the worker, which builds on Automodel."""

    engine = "dtensor_v2"
    dependencies = ("nemo_automodel", "transformers")
    framework = DTENSOR_V2

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and both workers; raises `ImportError` without Automodel."""
        super().load(source)
        importing.module("models.policy.workers.dtensor_policy_worker_v2")
