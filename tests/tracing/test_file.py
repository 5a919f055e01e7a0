"""A trace that is read from a file is the one that was written."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.cli import USAGE_ERROR, main
from conformance.tracing import file
from tests import command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the traces of a run with a mistake."""
    folder = tmp_path_factory.mktemp("traces")
    chosen = ["--layout=dp2-cp1-mb2-thd", "--checks=weights", "-k=uneven_lengths"]
    command.run(folder, command.BROKEN["onetokenshort"], f"--traces={folder}", *chosen)
    return folder


def wrong(folder: Path) -> Path:
    """The file of a trace of a wrong weight."""
    return min(folder.glob(f"weights*{file.SUFFIX}"))


def printed(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert main(["trace", *arguments]) == 0
    return capsys.readouterr().out


def test_a_file_tells_what_the_run_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrong(folder)
    finding = path.name.removesuffix(file.SUFFIX).replace("__", "/")

    of_run = printed(capsys, [finding, f"--adapter={command.BROKEN['onetokenshort']}"])

    assert printed(capsys, [str(path)]) == of_run
    assert "suspect 1: " in of_run


def test_a_file_names_no_folder_of_its_machine(folder: Path) -> None:
    path = wrong(folder)
    document = json.loads(gzip.decompress(path.read_bytes()))

    assert document["schema"] == file.SCHEMA
    assert not any(Path(name).is_absolute() for name in document["sources"])
    assert str(Path(__file__).parents[2]) not in json.dumps(document)


def test_a_trace_of_other_source_than_is_here_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wrong(folder)
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["sources"] = dict.fromkeys(document["sources"], "of another version")
    other = path.with_name(f"other{file.SUFFIX}")
    other.write_bytes(gzip.compress(json.dumps(document).encode()))

    assert main(["trace", str(other)]) == USAGE_ERROR
    assert "than is found here" in capsys.readouterr().err


def test_what_is_no_trace_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"none{file.SUFFIX}"
    path.write_bytes(gzip.compress(b"{}"))

    assert main(["trace", str(path)]) == USAGE_ERROR
    assert "is no trace" in capsys.readouterr().err
