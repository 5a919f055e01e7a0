"""The command line: ``rl-loss-conformance COMMAND``."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance import inventory, registry
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Description
    from adapters.source import Source

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 for a command that cannot be carried out."""
    options = _parser().parse_args(arguments)
    try:
        for line in options.lines(options):
            print(line, flush=True)
    except (inventory.InvalidSourceError, registry.AdapterError) as error:
        print(f"rl-loss-conformance: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-loss-conformance")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adapters = commands.add_parser(
        "adapters", help="what can be checked here: frameworks found, their modes and engines"
    )
    adapters.add_argument(
        "--source",
        action="append",
        default=[],
        type=_named_source,
        metavar="NAME=PATH[@REF]",
        help="where the framework of an adapter is (repeatable)",
    )
    adapters.set_defaults(lines=lambda options: _adapters(dict(options.source)))
    return parser


def _named_source(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PATH or NAME=PATH@REF")
    return name, source


def _adapters(sources: dict[str, str]) -> Iterator[str]:
    for entry in inventory.inventory(sources):
        default = ", default" if entry.is_default else ""
        yield f"{entry.adapter.name} (engine {entry.adapter.engine}{default})"
        if entry.source is not None:
            yield _row("source", _source(entry.source))
        if entry.problem is not None:
            yield _row("problem", entry.problem)
        if entry.description is not None:
            yield from _description(entry.description)
            layouts = entry.adapter.layouts()
            ranks = max(layout.world_size for layout in layouts)
            yield _row("layouts", f"{len(layouts)}, on up to {ranks} ranks")
        yield ""


def _source(source: Source) -> str:
    parts = [source.kind, source.version, source.ref, source.revision]
    return " ".join(part for part in parts if part) + (" (dirty)" if source.dirty else "")


def _description(description: Description) -> Iterator[str]:
    yield _row("modes", _list(mode for mode in Mode if mode in description.modes))
    yield _row("depths", _list(depth for depth in Depth if depth in description.depths))
    yield _row("options", _list(sorted(description.options)))
    conventions = vars(description.conventions)
    yield _row("conventions", ", ".join(f"{name}: {value}" for name, value in conventions.items()))
    yield _row("stood in for", _list(description.stand_ins))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _row(name: str, value: str) -> str:
    return textwrap.fill(
        value,
        width=100,
        initial_indent=f"  {name:<14}",
        subsequent_indent=" " * 16,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    sys.exit(main())
