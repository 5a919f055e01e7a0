"""Tables of expected results, in files beside the tests."""

import tomllib
from pathlib import Path
from typing import Any


def table(name: str) -> dict[str, Any]:
    """The contents of a TOML file below this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
