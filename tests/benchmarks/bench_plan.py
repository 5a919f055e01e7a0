"""SkyRL's quick plan against its full one, all checks, after the start of the ranks."""

from tests.benchmarks.bench_suite import run


def main() -> None:
    """Print the time of the quick plan, and its share of the full plan's time."""
    quick, full = (run("skyrl", f"--plan={size}") for size in ("quick", "full"))
    print(f"plan: {quick.findings} findings of SkyRL's quick plan in {quick.to_run:.1f} s")
    print(
        f"  time of the full plan, {full.findings} findings / that of the quick one: "
        f"{full.to_run / quick.to_run:.1f}"
    )
