"""SkyRL with one mistake put in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.skyrl.fsdp import SkyRLFsdpAdapter

if TYPE_CHECKING:
    from adapters.contract import Job, Rank


class DpSizeOne(SkyRLFsdpAdapter):
    """Its worker takes itself for the only data-parallel rank, so nothing undoes FSDP's mean."""

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        worker = super().worker(config, job, probe_size, rank)
        worker.mesh_rank.dp_size = 1
        return worker


class MicroBatchesUnweighted(SkyRLFsdpAdapter):
    """Its worker adds terms beside the policy loss up over micro-batches, and never averages."""

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        worker = super().worker(config, job, probe_size, rank)
        real = type(worker)._forward_backward_micro

        def unweighted(experience: Any, microbatch_weight: float, **options: Any) -> Any:
            return real(worker, experience, 1.0, **options)

        worker._forward_backward_micro = unweighted
        return worker
