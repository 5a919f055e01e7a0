"""Writes the causes before and after each fix into the tables of reports/history.md.

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.history_page`` runs the command of every row,
each in about half a minute on two cores; FOLDER has clones of the frameworks. The rest of the page
is kept.
"""

import os
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from conformance import cli
from tests.command import ROOT, SOURCES

PAGE = ROOT / "reports" / "history.md"

CLONES = {"skyrl": "SkyRL"}
"""The names of clones that differ from those of their adapters."""

COLUMN = "causes, before → after"

OTHERS = 4
"""The number of columns before the column of causes; the one after it has the command."""


def with_causes(page: str, causes: Callable[[str], str]) -> str:
    """The page with a new column of causes; ``causes`` finds the causes of a command."""
    return "".join(f"{_with_causes(line, causes)}\n" for line in page.splitlines())


def _with_causes(line: str, causes: Callable[[str], str]) -> str:
    if line.startswith("|---"):
        return f"|{'---|' * (OTHERS + 2)}"
    if not line.startswith("| "):
        return line
    cells = _cells(line)
    found = COLUMN if cells[0] == "fix" else causes(cells[-1].strip("`"))
    return f"| {' | '.join([*cells[:OTHERS], found, cells[-1]])} |"


def _cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return line.removeprefix("| ").removesuffix(" |").split(" | ")


def before_and_after(line: str) -> str:
    """The causes at each of a command's commits, joined by arrows."""
    arguments = shlex.split(line)[1:]
    adapter = next(one for one in arguments if one.startswith("--adapter=")).partition("=")[2]
    clone = Path(os.environ[SOURCES]) / CLONES.get(adapter, adapter)
    arguments = [one.replace("CLONE", str(clone)) for one in arguments]
    with redirect_stdout(StringIO()) as printed:
        assert cli.main([*arguments, "--format=markdown"]) == 0
    _, _, *rows = map(_cells, printed.getvalue().splitlines())
    return " → ".join(causes or problem or "none" for *_, causes, problem in rows)


if __name__ == "__main__":
    PAGE.write_text(with_causes(PAGE.read_text(encoding="utf-8"), before_and_after), "utf-8")
