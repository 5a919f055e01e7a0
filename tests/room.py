"""A simulated disk that takes only some bytes of each file, in this process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

UNWRITABLE = "/sys/rl-loss-conformance"
"""A folder that not even root can make."""


@contextmanager
def of(size: int) -> Iterator[None]:
    """Let files grow to at most ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
