"""Generated examples per second at 2 ranks, against the framework's own time for them."""

from adapters.native.adapter import NativeAdapter
from adapters.skyrl.adapter import SkyRLFsdpAdapter
from reference.aggregation import Mode
from tests.benchmarks import bench_suite

EXAMPLES = 25
"""The number of generated steps for each mode and layout."""

CHECK_SPECS = {"native": NativeAdapter, "skyrl": SkyRLFsdpAdapter}


def main() -> None:
    """Print each adapter's rate on all layouts of two ranks, and its time over the framework's."""
    for name, adapter in CHECK_SPECS.items():
        layouts = [str(layout) for layout in adapter().layouts() if layout.world_size == 2]
        timing = bench_suite.run(
            name,
            f"--examples={EXAMPLES}",
            "-k",
            "generated",
            *[f"--layout={layout}" for layout in layouts],
        )
        examples = EXAMPLES * len(Mode) * len(layouts)
        print(
            f"generated: {examples / timing.to_run:.1f} examples per second on {name} at 2 ranks,"
            f" {examples} in {timing.to_run:.1f} s"
        )
        print(f"  wall time / time in {name}'s own code: {timing.to_run / timing.inside:.2f}")
