"""The group of all ranks, on the CPU."""

from torch import distributed as dist

GLOO_GROUP: dist.ProcessGroup | None = None


def init_gloo_group() -> None:
    global GLOO_GROUP
    if GLOO_GROUP is None:
        GLOO_GROUP = dist.new_group(backend="gloo")
