"""Processes, temporary folders and shared memory that a run leaves behind."""

from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")

OF_OTHERS = ("pytest-of-", "torchelastic_", "torchinductor_")
"""Beginnings of names of temporary folders that other programs leave in every run: pytest-xdist,
torchrun, and torch's compiler, which makes an empty folder when it is imported."""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def processes_of(temporary: Path) -> list[int]:
    """All processes that were started with this folder as TMPDIR."""
    mark = f"TMPDIR={temporary}".encode()
    return [pid for pid in living() if mark in content(Path(f"/proc/{pid}/environ"))]


def forgotten_memory(temporary: Path) -> set[str]:
    """Names of shared memory that no process uses or will remove.

    Returns no names while another run may still remove the memory of its killed ranks.
    """
    if resource_trackers() - set(processes_of(temporary)):
        return set()
    maps = b"".join(content(Path(f"/proc/{pid}/maps")) for pid in living())
    return {path.name for path in SHARED_MEMORY.iterdir() if bytes(path) not in maps}


def resource_trackers() -> set[int]:
    """Processes of multiprocessing that remove what other processes leave when they have ended."""
    mark = b"multiprocessing.resource_tracker"
    return {pid for pid in living() if mark in content(Path(f"/proc/{pid}/cmdline"))}


def living() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def content(file: Path) -> bytes:
    """The content of a file in `/proc`; empty if its process has ended."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
