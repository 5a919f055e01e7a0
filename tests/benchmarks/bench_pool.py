"""SkyRL steps per second at 4 ranks: the pool against one `torch.multiprocessing.spawn` a step."""

import tempfile
import time
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing

from adapters.contract import Depth, Job, Layout, Rank
from adapters.skyrl.adapter import SkyRLFsdpAdapter
from conformance.corpus.cases import CORPUS
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode

LAYOUT = Layout(dp=4)
POOLED_STEPS = 100

JOB = Job(
    steps=CORPUS[0].steps, aggregation=Aggregation(Mode.TOKEN_MEAN), layout=LAYOUT, depth=Depth.STEP
)


def main() -> None:
    """Print both rates and their ratio."""
    pooled, spawned = POOLED_STEPS / pool_seconds(), 1 / spawn_seconds()
    print(f"pool: {pooled:.1f} SkyRL steps per second on {LAYOUT.world_size} ranks")
    print(f"  spawned anew for every step: {spawned:.4f} per second")
    print(f"  ratio: {pooled / spawned:.0f}")


def pool_seconds() -> float:
    """Time of many steps in a pool that has started."""
    with RankPool(SkyRLFsdpAdapter(), None, LAYOUT.world_size) as pool:
        assert isinstance(pool.run(JOB), Ran)
        start = time.perf_counter()
        for _ in range(POOLED_STEPS):
            assert isinstance(pool.run(JOB), Ran)
        return time.perf_counter() - start


def spawn_seconds() -> float:
    """Time of one step in processes started for it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        torch.multiprocessing.spawn(
            run_once, args=(str(Path(folder) / "store"),), nprocs=LAYOUT.world_size
        )
        return time.perf_counter() - start


def run_once(index: int, store: str) -> None:
    """The work of a rank without a pool."""
    torch.set_num_threads(1)
    adapter = SkyRLFsdpAdapter()
    adapter.load(None)
    size = LAYOUT.world_size
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=index, world_size=size)
    adapter.observe(JOB, Rank(index=index, world_size=size))
    dist.destroy_process_group()
