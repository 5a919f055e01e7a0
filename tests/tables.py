"""Tables of what tests expect, in files beside them."""

import tomllib
from pathlib import Path
from typing import Any


def table(name: str) -> dict[str, Any]:
    """The table of a file below this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
