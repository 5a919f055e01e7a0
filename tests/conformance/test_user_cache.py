"""The user's cache keeps values that depend only on our code, and runs do without it."""

import os
from pathlib import Path

import pytest

from conformance.findings import user_cache
from conformance.findings.user_cache import MOST, made_once


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counting:
    """Makes numbers, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> dict[str, list[float]]:
        self.asked += 1
        return {"lost": [1 / 3, 0.0]}


def kept(cache: Path) -> list[Path]:
    return [*cache.rglob("*.json")]


def test_what_was_made_is_read_bit_for_bit(cache: Path) -> None:
    make = Counting()

    assert made_once("numbers", "a", make) == made_once("numbers", "a", make) == Counting()()
    assert made_once("numbers", "b", make) == Counting()()
    assert make.asked == 2
    assert len(kept(cache)) == 2


def test_another_version_of_the_code_makes_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Counting()
    for number in range(MOST + 2):
        monkeypatch.setattr(user_cache, "digest_of_code", lambda number=number: f"{number:016}")
        made_once("numbers", "a", make)
        for one in kept(cache):
            os.utime(one.parent, (number, number))

    assert make.asked == MOST + 2
    assert len(kept(cache)) <= MOST


def test_a_changed_table_is_another_version_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_cache, "ROOT", tmp_path)
    table = tmp_path / "adapters" / "toy" / "tables.toml"
    table.parent.mkdir(parents=True)

    digests = set()
    for number in (1, 2):
        table.write_text(f"size = {number}")
        digests.add(user_cache.digest_of_code.__wrapped__())

    assert len(digests) == 2


def test_half_a_file_is_made_again(cache: Path) -> None:
    make = Counting()
    made_once("numbers", "a", make)
    [path] = kept(cache)
    path.write_text('{"lost": [0.3')

    assert made_once("numbers", "a", make) == made_once("numbers", "a", make) == Counting()()
    assert make.asked == 2


def test_without_a_folder_it_is_made_each_time(cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    make = Counting()

    assert made_once("numbers", "a", make) == made_once("numbers", "a", make) == Counting()()
    assert make.asked == 2
