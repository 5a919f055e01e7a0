"""DeepSpeed can be imported if the user's cache cannot be written."""

import os
from pathlib import Path

import platformdirs
import pytest

from tests import room


def test_it_is_imported_where_the_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from adapters.engines.deepspeed import import_deepspeed

    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: Path(room.UNWRITABLE))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import_deepspeed()

    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
