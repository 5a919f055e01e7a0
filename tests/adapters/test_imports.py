"""Imports come from the source and nowhere else; stubs are empty."""

import importlib
import sys
from abc import ABC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import create_model

from adapters.toolkit.imports import (
    WrongSourceError,
    choices_in,
    choices_of,
    import_from,
    require,
    stub_missing,
)


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())


def package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"HOME = {str(folder)!r}\n")
    return folder


def test_source_precedes_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = package(tmp_path / "site", "toy_a")
    source = package(tmp_path / "source", "toy_a")
    monkeypatch.syspath_prepend(str(installed))

    assert str(source) == import_from("toy_a", [source]).HOME


def test_package_already_imported_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    first = package(tmp_path / "first", "toy_b")
    second = package(tmp_path / "second", "toy_b")
    import_from("toy_b", [first])

    with pytest.raises(WrongSourceError, match="run each source in a process of its own"):
        import_from("toy_b", [second])


def test_missing_package_is_an_import_error(tmp_path: Path) -> None:
    # although Python has a package json
    with pytest.raises(ImportError, match="no package json in"):
        import_from("json", [tmp_path])


def test_all_missing_packages_of_an_extra_are_named_at_once() -> None:
    require(["json"], "toys")

    with pytest.raises(ImportError, match=r"^toy_e, toy_f are not installed; install the extra to"):
        require(["toy_e", "json", "toy_f"], "toys")


def test_stub_can_be_imported_and_subclassed_but_not_used() -> None:
    assert stub_missing(["toy_d", "json"]) == ["toy_d"]
    module = importlib.import_module("toy_d.deep.inside")

    class Derived(module.Base, ABC):
        kind = module.Kind.FIRST

    assert issubclass(Derived, module.Base)
    assert issubclass(module.Base[int], module.Base), "as a class that is generic"
    assert Derived.kind is module.Kind.FIRST is not module.Kind.SECOND
    with pytest.raises(AttributeError):
        Derived().compute()
    with pytest.raises(AttributeError):
        module.__wrapped__  # noqa: B018


def test_stub_is_the_type_of_a_field_of_a_configuration() -> None:
    stub_missing(["toy_h"])
    kind = importlib.import_module("toy_h").RendererConfig

    model: Any = create_model("Config", renderer=(kind, kind()), kind=(str, "auto"))

    assert model(kind="own").kind == "own"


def reduced(config: SimpleNamespace, kind: str) -> str:
    if config.mode == "token" or config.mode in ("sum", "mean"):
        return "known"
    return "unknown" if kind == "other" else ""


def test_choices_of_an_option_are_what_it_is_compared_with_or_what_its_type_allows() -> None:
    assert choices_in(reduced, "mode") == {"token", "sum", "mean"}
    assert choices_of(Literal["token", "sum"] | None) == ["token", "sum"]
    assert choices_of(str | None) == []
