"""Releases are fetched once, from the index that pip knows, and nothing of them is run."""

import subprocess
import zipfile
from pathlib import Path

import platformdirs
import pytest

from adapters.native.adapter import NativeAdapter
from conformance.sources.source import SourceError, WheelError, newest_release, released, resolve
from tests.toys import commit


class ToyAdapter(NativeAdapter):
    name = "toy"
    package = "toyframework"
    distribution = "toy-framework"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels instead of the package index; a wheel would write outside its folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_framework-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toyframework/__init__.py", "VERSION = 1.2\n")
        wheel.writestr("../../outside.py", "raise SystemExit\n")
        wheel.writestr("toy_framework-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr(
            "toy_framework-1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: toy-framework\nVersion: 1.2\n",
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_release_is_fetched_once(index: Path) -> None:
    source = resolve(ToyAdapter(), "pypi:1.2")
    for wheel in index.iterdir():
        wheel.unlink()

    assert source.kind == "pypi"
    assert source.version == "1.2"
    assert source.path is not None
    assert (source.path / "toyframework" / "__init__.py").read_text() == "VERSION = 1.2\n"
    assert resolve(ToyAdapter(), "pypi:1.2") == source


def test_release_does_not_leave_its_folder(index: Path, tmp_path: Path) -> None:
    path = released("toy-framework", "1.2")

    assert [file.parent for file in tmp_path.rglob("outside.py")] == [path]


def test_release_that_does_not_exist_is_refused_with_the_way_out(index: Path, cache: Path) -> None:
    with pytest.raises(WheelError, match=r"toy-framework==9.9 cannot be fetched: .*PATH@REF"):
        resolve(ToyAdapter(), "pypi:9.9")

    assert not list(cache.rglob("release-*"))


@pytest.mark.parametrize("version", ["", "--pre", "1.0 --pre", "1/../2", "latest", ">=1"])
def test_version_that_is_none_never_reaches_pip(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("pip was run"))

    with pytest.raises(WheelError, match="give one such as"):
        released("toy-framework", version)


def test_newest_release_is_the_newest_of_tags_and_of_the_index(index: Path, tmp_path: Path) -> None:
    commit(tmp_path)

    def newest(*tags: str) -> str:
        for tag in tags:
            subprocess.run(["git", "tag", tag], cwd=tmp_path, check=True)
        return newest_release(ToyAdapter(), tmp_path).ref

    assert newest("v0.9.0", "v1.1.0", "v2.0.0rc1", "backup/v3.0.0") == "pypi:1.2"
    assert newest("v1.10.0") == "v1.10.0"
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(WheelError, match="no release of toy-framework"):
        newest()


class TaggedAdapter(NativeAdapter):
    """An adapter of a framework whose tags of releases begin with a name."""

    release_tags = "core_"


def test_tags_without_the_name_of_releases_are_no_releases(tmp_path: Path) -> None:
    (tmp_path / "toy.py").touch()
    commit(tmp_path)
    for tag in ("core_v0.9.0", "core_v0.19.0", "23.06"):
        subprocess.run(["git", "tag", tag], cwd=tmp_path, check=True)

    assert newest_release(TaggedAdapter(), tmp_path).ref == "core_v0.19.0"


def test_framework_on_no_index_is_refused() -> None:
    with pytest.raises(SourceError, match="no source of its own"):
        resolve(NativeAdapter(), "pypi:1.0")
