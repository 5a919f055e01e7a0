"""Prints every ratio: ``python -m tests.benchmarks [NAME…]``."""

import sys

from tests.benchmarks import (
    bench_generated,
    bench_layouts,
    bench_plan,
    bench_pool,
    bench_reference,
    bench_suite,
)

BENCHMARKS = {
    "reference": bench_reference,
    "pool": bench_pool,
    "layouts": bench_layouts,
    "suite": bench_suite,
    "plan": bench_plan,
    "generated": bench_generated,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name].main()
