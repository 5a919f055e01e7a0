"""The known mistakes of the newest versions are those of their committed reports, and no others."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from adapters.contract import Adapter
from conformance.comparing.expectations import KnownFailure, KnownMistake, load
from conformance.comparing.gate import Expecting
from conformance.comparing.known import KNOWN, known
from conformance.explain.reach import rare_of
from conformance.runs import registry
from conformance.views.overview import committed
from tests.command import SOURCES

SHARE = 0.95
"""The least share of the newest reports' causes that must be known."""

ADDRESS = re.compile(
    r"https://github\.com/[^/]+/[^/]+/blob/(?P<ref>[0-9a-f]{40}|(?P<tag>(skyrl-)?v\d+\.\d+\.\d+))/"
    r"(?P<path>\S+?)(#L(?P<number>\d+))?"
)
"""The address of a file at a commit or a release, and not at a branch, which moves."""

ENTRIES = [
    pytest.param(path.stem, entry, id=f"{path.stem}-{entry.line}")
    for path in sorted(KNOWN.glob("*.toml"))
    for entry in (*load(path).mistakes, *load(path).failures)
]

IN_OLDER_REPORTS = {
    ("areal", "groups_of_a_fixed_size"),
    ("areal", "selected_micro_batch"),
    ("tunix", "denominators_per_micro_batch_of_all_ranks"),
    ("roll", "unexplained"),
    ("open_instruct", "shares_averaged_by_tokens"),
}
"""Mistakes whose names the newest reports lack: mistakes of older versions, mistakes whose findings
belong to a cause with another name, and mistakes of checks or cases that these reports lack."""


Newest = list[committed.CommittedReport]


@pytest.fixture(scope="module")
def newest() -> Newest:
    return committed.newest(committed.versions(committed.REPORTS))


def test_what_the_newest_reports_say_is_known(newest: Newest) -> None:
    causes = [
        (one.file, cause, audited.of(cause))
        for one in newest
        if (audited := known(one.report.adapter, one.report.engine)) is not None
        for cause in one.report.causes
    ]
    unknown = [
        f"{file}: {cause.name}: {cause.statement}" for file, cause, entry in causes if not entry
    ]

    assert len(causes) > 100
    assert 1 - len(unknown) / len(causes) >= SHARE, unknown


def test_a_run_of_a_newest_version_is_as_expected(newest: Newest) -> None:
    for file, report in ((one.file, one.report) for one in newest):
        audited = known(report.adapter, report.engine)
        if audited is None:
            assert not [one for one in report.causes if one.severity != "advice"], file
            continue
        gate = Expecting(audited)

        assert [one.id for one in gate.failing(report)] == [], file
        assert gate.objection(report) is None, file


def test_everything_known_is_in_a_report(newest: Newest) -> None:
    found = {(one.report.adapter, cause.name) for one in newest for cause in one.report.causes}
    entries = {
        (path.stem, name)
        for path in KNOWN.glob("*.toml")
        for name in [*load(path).names, *(one.name for one in load(path).failures)]
    }

    assert entries - found <= IN_OLDER_REPORTS


def test_an_entry_of_what_is_wrong_says_whom_it_reaches(newest: Newest) -> None:
    for one in newest:
        audited = known(one.report.adapter, one.report.engine)
        if audited is not None:
            for cause in one.report.causes:
                entry = audited.of(cause)
                reaches = entry is None or entry.reach is not None
                assert reaches or cause.severity == "advice", (one.file, cause.name)


def test_an_entry_has_the_facts_without_which_it_is_absent(newest: Newest) -> None:
    """Otherwise a recipe whose batches lack these facts would exclude it by its formula alone."""
    found: dict[KnownMistake, set[str]] = {}
    for one in newest:
        audited = known(one.report.adapter, one.report.engine)
        for cause in one.report.causes if audited else ():
            entry = audited.of(cause) if audited else None
            if isinstance(entry, KnownMistake) and cause.severity != "advice":
                facts = {*rare_of(cause.condition)}
                found[entry] = found.get(entry, facts) & facts

    assert {entry.reason: facts for entry, facts in found.items() if facts - {*entry.needs}} == {}
    assert all({*entry.needs} <= facts for entry, facts in found.items())


@pytest.mark.parametrize(
    ("framework", "engine", "name", "finding", "reasons"),
    [
        ("trl", "ddp", "mean_of_means", "metric.policy", {"too small by the number of micro"}),
        (
            "trl",
            "ddp",
            "mean_of_means",
            "metric.clip",
            {"no document says that they are pooled"},
        ),
        (
            "trl",
            "ddp",
            "mean_of_the_batch_counted",
            "weights",
            {"all tokens of a generation weigh"},
        ),
    ],
)
def test_one_name_may_be_several_mistakes_which_check_and_suspect_tell_apart(
    newest: Newest, framework: str, engine: str, name: str, finding: str, reasons: set[str]
) -> None:
    audited = known(framework, engine)
    assert audited is not None
    entries = {
        entry.reason
        for one in newest
        if (one.report.adapter, one.report.engine) == (framework, engine)
        for cause in one.report.causes
        if cause.name == name and cause.findings[0].startswith(finding)
        if (entry := audited.of(cause)) is not None
    }

    assert len(entries) == len(reasons)
    assert all(any(words in reason for reason in entries) for words in reasons)


@pytest.mark.parametrize(("framework", "entry"), ENTRIES)
def test_an_entry_was_looked_up_and_its_code_stays_what_it_is(
    framework: str, entry: KnownMistake | KnownFailure
) -> None:
    assert entry.looked_up is not None
    assert entry.code is not None
    assert entry.line is not None
    assert ADDRESS.fullmatch(entry.address or f"{entry.code}{entry.line}")


@pytest.mark.parametrize(("framework", "entry"), ENTRIES)
def test_the_line_of_an_entry_is_there(framework: str, entry: KnownMistake | KnownFailure) -> None:
    found = ADDRESS.fullmatch(entry.address or f"{entry.code}{entry.line}")
    assert found is not None
    assert entry.line is not None
    path, number = entry.line.partition(":")[0], found["number"]
    text = installed(path, found["tag"]) or cloned(framework, found["ref"], found["path"])
    if text is None:
        pytest.skip(f"{found['ref']} is not installed, and no clone in ${SOURCES} has it")

    assert number is None or text.splitlines()[int(number) - 1].strip()


def installed(path: str, tag: str | None) -> str | None:
    """The text of a package's file, if the release of the tag is installed."""
    package = path.partition("/")[0]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec(package)
    if tag is None or not tag.endswith(f"v{version}") or spec is None or spec.origin is None:
        return None
    return (Path(spec.origin).parents[1] / path).read_text(encoding="utf-8")


def cloned(framework: str, ref: str, path: str) -> str | None:
    """The text of a file in a clone of the framework, if a clone has the commit or the tag."""
    folder = os.environ.get(SOURCES)
    clones = Path(folder).iterdir() if folder else ()
    for clone in clones:
        if clone.name.lower() == framework:
            git = ["git", "-C", str(clone)]
            has = subprocess.run([*git, "cat-file", "-e", f"{ref}^{{commit}}"], capture_output=True)
            if has.returncode == 0:
                shown = subprocess.run([*git, "show", f"{ref}:{path}"], capture_output=True)
                assert shown.returncode == 0, shown.stderr
                return shown.stdout.decode()
    return None


@pytest.mark.parametrize("path", sorted(KNOWN.glob("*.toml")), ids=lambda path: path.stem)
def test_a_file_is_of_an_adapter_and_its_engines(path: Path) -> None:
    every, driven = load(path), registry.adapter_classes(path.stem)
    engines: dict[str, type[Adapter]] = driven

    assert every.framework == path.stem
    assert {*every.engines} <= engines.keys()
    entries = [*every.mistakes, *every.failures]
    assert {engine for one in entries for engine in one.engine or ()} <= {*every.engines}
