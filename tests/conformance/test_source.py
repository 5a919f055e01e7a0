"""Sources: found down to the commit, refused with the way out, never touched."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from adapters.native.adapter import NativeAdapter
from conformance.sources.source import OF_RUN, SourceError, find_commits, python_required, resolve
from tests import room

VERSION = Path("toyframework") / "__init__.py"


class ToyAdapter(NativeAdapter):
    name = "toy"
    package = "toyframework"
    tree = ("toyframework", "docs")


class NestedAdapter(ToyAdapter):
    tree = ("src", "docs")
    roots = ("src", "configs/src")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)
    return folder


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """A function that runs git in a repository with two commits, a tag, a branch and a PR's ref."""
    repository = tmp_path / "checkout"
    repository.mkdir()

    def run(*arguments: str, cwd: Path = repository) -> str:
        identity = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org"]
        command = ["git", *identity, *arguments]
        return subprocess.run(
            command, cwd=cwd, check=True, capture_output=True, text=True
        ).stdout.strip()

    run("init", "--initial-branch=main")
    (repository / VERSION).parent.mkdir()
    for number in (1, 2):
        (repository / VERSION).write_text(f"VERSION = {number}\n")
        run("add", ".")
        run("commit", "-m", f"version {number}")
    run("tag", "v1", "HEAD~1")
    run("branch", "odd@name", "HEAD~1")
    run("update-ref", "refs/pull/7/head", "HEAD~1")
    return run


@pytest.fixture
def checkout(git: Callable[..., str], tmp_path: Path) -> Path:
    return tmp_path / "checkout"


def test_checkout_is_taken_as_it_is(checkout: Path, git: Callable[..., str]) -> None:
    source = resolve(ToyAdapter(), str(checkout))

    assert source.kind == "checkout"
    assert source.path == checkout
    assert source.revision == git("rev-parse", "HEAD")
    assert not source.dirty


@pytest.mark.parametrize("change", ["edited", "added"])
def test_checkout_with_uncommitted_changes_is_said_to_be_dirty(checkout: Path, change: str) -> None:
    file = checkout / (VERSION if change == "edited" else "new.py")
    file.write_text("VERSION = 3\n")

    assert resolve(ToyAdapter(), str(checkout)).dirty


@pytest.mark.parametrize("ref", ["v1", "main~1", "refs/pull/7/head", "odd@name"])
@pytest.mark.parametrize("bare", [False, True])
def test_any_ref_is_extracted_by_commit(
    checkout: Path, git: Callable[..., str], ref: str, bare: bool, tmp_path: Path
) -> None:
    repository = checkout
    if bare:
        repository = tmp_path / "bare.git"
        git("clone", "--mirror", str(checkout), str(repository))
    first = git("rev-parse", "HEAD~1")
    before = snapshot(repository)

    source = resolve(ToyAdapter(), f"{repository}@{ref}")

    assert (source.kind, source.revision, source.ref) == ("git", first, ref)
    assert source.path is not None
    assert (source.path / VERSION).read_text() == "VERSION = 1\n"
    assert snapshot(repository) == before


def test_package_may_be_below_another_folder(checkout: Path, git: Callable[..., str]) -> None:
    (checkout / "src").mkdir()
    git("mv", "toyframework", "src")
    git("commit", "-m", "src")

    assert resolve(NestedAdapter(), str(checkout)).path == checkout
    found = resolve(NestedAdapter(), f"{checkout}@main").path
    assert found is not None
    assert (found / "src" / VERSION).read_text() == "VERSION = 2\n"
    with pytest.raises(SourceError, match="holds no package 'toyframework'"):
        resolve(NestedAdapter(), f"{checkout}@v1")


def test_extracted_commit_is_used_again(checkout: Path) -> None:
    first = resolve(ToyAdapter(), f"{checkout}@v1").path
    assert first is not None
    (first / "mark").touch()

    assert resolve(ToyAdapter(), f"{checkout}@v1").path == first
    assert (first / "mark").exists()


def test_commit_is_extracted_again_for_an_adapter_that_needs_more_of_it(
    checkout: Path, git: Callable[..., str]
) -> None:
    class NeedingMore(ToyAdapter):
        tree = (*ToyAdapter.tree, "more")

    (checkout / "more").mkdir()
    (checkout / "more" / "file.py").touch()
    git("add", ".")
    git("commit", "-m", "more")
    less = resolve(ToyAdapter(), f"{checkout}@main").path
    more = resolve(NeedingMore(), f"{checkout}@main").path

    assert less is not None
    assert not (less / "more").exists()
    assert more is not None
    assert (more / "more" / "file.py").exists()


@pytest.mark.parametrize(
    ("project", "required"),
    [
        ('[project]\nrequires-python = ">=3.99"\n', ">=3.99"),
        ('[project]\nrequires-python = ">=3.11"\n', None),
        ("[tool.other]\n", None),
    ],
)
def test_commit_says_which_python_it_requires_if_not_this_one(
    checkout: Path, git: Callable[..., str], project: str, required: str | None
) -> None:
    (checkout / "pyproject.toml").write_text(project)
    git("add", ".")
    git("commit", "-m", "project")
    newer, older = (resolve(ToyAdapter(), f"{checkout}@{ref}").path for ref in ("main", "v1"))

    assert newer is not None
    assert older is not None
    assert python_required(newer) == required
    assert python_required(older) is None, "without a pyproject.toml"


def test_folder_with_an_at_sign_is_a_folder(checkout: Path) -> None:
    renamed = checkout.rename(checkout.with_name("check@out"))

    assert resolve(ToyAdapter(), str(renamed)).path == renamed
    assert resolve(ToyAdapter(), f"{renamed}@v1").ref == "v1"


@pytest.mark.parametrize(
    "ref", ["nonsense", "--upload-pack=touch x", "-h", "", "v1; touch x", "HEAD:toyframework"]
)
def test_ref_that_is_no_commit_is_refused(checkout: Path, ref: str) -> None:
    with pytest.raises(SourceError, match=r"has no commit '.*'; name a commit, tag, branch"):
        resolve(ToyAdapter(), f"{checkout}@{ref}")


@pytest.mark.parametrize("target", ["/etc", "../../../outside"])
def test_commit_with_a_link_out_of_its_folder_is_refused_and_leaves_nothing(
    checkout: Path, cache: Path, git: Callable[..., str], target: str
) -> None:
    (checkout / "toyframework" / "data").symlink_to(target)
    git("add", ".")
    git("commit", "-m", "a link")

    with pytest.raises(SourceError, match=r"toyframework/data.* (outside|to an abs)"):
        resolve(ToyAdapter(), f"{checkout}@HEAD")
    assert [path for path in cache.rglob("*") if path.is_symlink() or path.is_file()] == []


def test_folder_named_like_an_option_is_a_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = checkout.rename(checkout.with_name("--exec-path=x"))
    monkeypatch.chdir(renamed.parent)

    assert resolve(ToyAdapter(), "--exec-path=x@v1").ref == "v1"


def test_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such folder; give PATH or PATH@REF"):
        resolve(ToyAdapter(), str(tmp_path / "nowhere"))


def test_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is no git checkout; clone the framework"):
        resolve(ToyAdapter(), str(tmp_path))


def test_checkout_of_something_else_is_refused(checkout: Path, git: Callable[..., str]) -> None:
    git("mv", "toyframework", "other")
    git("commit", "-m", "renamed")

    with pytest.raises(SourceError, match="holds no package 'toyframework'"):
        resolve(ToyAdapter(), str(checkout))
    with pytest.raises(SourceError, match="holds no package 'toyframework'"):
        resolve(ToyAdapter(), f"{checkout}@main")


def test_framework_neither_installed_nor_given_is_refused() -> None:
    class NotInstalled(ToyAdapter):
        distribution = "rl-loss-conformance-toy"

    with pytest.raises(SourceError, match=r"is not installed; pip install .* or give --source"):
        resolve(NotInstalled(), None)


def test_adapter_without_a_framework_takes_no_source(tmp_path: Path) -> None:
    assert resolve(NativeAdapter(), None).kind == "builtin"
    with pytest.raises(SourceError, match="native has no source of its own"):
        resolve(NativeAdapter(), str(tmp_path))


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Content and modification time of every file."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_importable_package_of_no_distribution_needs_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / VERSION).parent.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match="toy is on no package registry; give --source=PATH"):
        resolve(ToyAdapter(), None)
    (tmp_path / VERSION).touch()
    source = resolve(ToyAdapter(), None)

    assert (source.kind, source.path, source.version) == ("installed", None, None)


def test_importable_package_has_the_version_of_what_installed_it() -> None:
    class OfPytest(ToyAdapter):
        package = "_pytest"

    assert resolve(OfPytest(), None).version == pytest.__version__


def test_history_of_releases_needs_no_repository() -> None:
    [release] = find_commits(None, "pypi:1.9.2")

    assert release.revision == "1.9.2"
    assert release.source(None) == "pypi:1.9.2"


def test_history_of_commits_needs_their_repository() -> None:
    with pytest.raises(SourceError, match="'main' is no release"):
        find_commits(None, "main")


def test_source_of_a_commit_names_its_revision(checkout: Path) -> None:
    [commit] = find_commits(checkout, "HEAD")

    assert commit.source(checkout) == f"{checkout}@{commit.revision}"


def test_where_the_cache_cannot_be_written_a_commit_is_kept_until_the_run_ends(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: Path(room.UNWRITABLE))
    monkeypatch.delenv(OF_RUN, raising=False)
    first, again = (resolve(ToyAdapter(), f"{checkout}@v1").path for _ in range(2))

    assert first is not None
    assert (first / VERSION).read_text() == "VERSION = 1\n"
    assert first == again
    assert first.is_relative_to(os.environ[OF_RUN])


def test_where_there_is_no_place_for_a_commit_both_are_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: Path(room.UNWRITABLE))
    monkeypatch.setenv(OF_RUN, f"{room.UNWRITABLE}-either")

    words = f"no place for toy/.*, neither {room.UNWRITABLE}.* nor {room.UNWRITABLE}-either"
    with pytest.raises(SourceError, match=f"{words}.*name another folder in XDG_CACHE_HOME"):
        resolve(ToyAdapter(), f"{checkout}@v1")
