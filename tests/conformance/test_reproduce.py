"""The command of a finding makes that finding, and no other."""

import re
import shlex
from pathlib import Path

import pytest

from conformance.comparing.report_file import load
from conformance.findings.finding import Finding
from conformance.findings.report import Header, Provenance, Request
from conformance.runs.options import command as command_of
from tests import command
from tests.findings import HEADER, finding
from tests.findings import report as made_of

OF_NATIVE = HEADER.model_copy(update={"adapter": "native"})

IDS = (
    "weights/token_mean/odd_groups/dp2-cp2-mb2-thd",
    "weights/constant/one_token/dp1-cp1-mb1-bshd",
    "weights/sample_mean/two_steps/dp2-cp1-mb2-thd+balance_data",
    "metric/prompt_mean/two_steps/dp2-cp1-mb2-thd",
    "metric.entropy/prompt_mean/two_steps/dp2-cp1-mb2-thd",
    "rejection.metric/sample_mean/rejected_group/dp2-cp1-mb2-thd",
    "auxiliary.combined/token_mean/split_groups/dp1-cp2-mb2-thd",
    "logging/sample_mean/different_keys/dp1-cp1-mb1-bshd",
    "weights/constant/generated/dp2-cp1-mb2-thd",
    "weights/token_mean/odd_groups/dp4-cp4-mb1-thd",
)


def named(finding_id: str, **fields: object) -> Finding:
    return Finding.model_validate(finding("a").model_dump() | {"id": finding_id} | fields)


def arguments(header: Header, found: Finding) -> list[str]:
    program, *options = shlex.split(command_of(header, found))
    assert program == "pytest"
    return options


@pytest.mark.parametrize("finding_id", IDS)
def test_command_collects_one_finding(tmp_path: Path, finding_id: str) -> None:
    head = OF_NATIVE.model_copy(update={"request": Request(divisor=64.0, examples=3, seed="7")})
    options = arguments(head, named(finding_id))
    result = command.run(tmp_path, "native", *options, "--collect-only", "-q")

    assert re.findall(r"test_finding\[(.*)\]", result.output) == [finding_id]


def test_finding_is_made_again_to_the_last_bit(tmp_path: Path) -> None:
    chosen = ("--modes=constant:64", "--layout=dp2-cp1-mb2-thd", "-k", "generated or odd_groups")
    first = command.run(tmp_path, "native", *chosen, "--examples=3", "--hypothesis-seed=7")
    report = load(first.report_path)
    for number in (0, -1):
        wanted = report.findings[number]
        again = command.run(tmp_path, "native", *arguments(report, wanted))
        assert again.report.findings == [wanted]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"kind": "git", "revision": "abc", "ref": "main"}, "--source=CLONE@abc"),
        ({"kind": "checkout", "revision": "abc"}, "--source=CHECKOUT"),
        ({"kind": "pypi", "version": "0.2.0"}, "--source=pypi:0.2.0"),
        ({"kind": "installed", "version": "0.3.0"}, None),
    ],
)
def test_source_is_named_as_far_as_the_report_knows_it(
    source: dict[str, str], expected: str | None
) -> None:
    empty = {"revision": None, "version": None, "ref": None, "dirty": False}
    head = HEADER.model_copy(update={"source": Provenance.model_validate(empty | source)})
    given = [option for option in arguments(head, finding("a")) if "--source" in option]

    assert given == ([] if expected is None else [expected])


def test_adapter_is_named_as_it_was_given(tmp_path: Path) -> None:
    """A class without an entry point can only be named as `module:Class`."""
    place = "tests.minimal.mistaken:DrivingAMistake"
    few = ("--layout=dp1-cp1-mb1-bshd", "--checks=weights", "-k", "sample_mean/uneven_lengths")
    first = command.run(tmp_path, place, *few)
    report = load(tmp_path / "reports" / "latest" / "minimal.json")
    [found] = report.findings
    options = arguments(report, found)
    again = command.run(tmp_path, options[0].partition("=")[2], *options[1:])

    assert options[:2] == [f"--adapter={place}", "--engine=torch"]
    assert f"pytest --adapter={place}" in first.output
    assert again.status == first.status == 1
    assert load(tmp_path / "reports" / "latest" / "minimal.json").findings == [found]


def test_report_of_an_installed_adapter_names_no_class() -> None:
    assert '"adapter_class"' not in made_of().to_json()


def test_what_was_chosen_besides_is_named_where_it_matters() -> None:
    chosen = Request(divisor=64.0, examples=3, seed="7", case="mine")
    head = HEADER.model_copy(update={"request": chosen})
    plain = arguments(head, named("weights/token_mean/mine/dp1-cp1-mb1-bshd", depth="loss"))
    constant = arguments(head, named("weights/constant/mine/dp8-cp2-mb1-thd"))

    assert plain[2:5] == ["--depth=loss", "--layout=dp1-cp1-mb1-bshd", "--case-file=FILE"]
    assert constant[2:5] == ["--modes=constant:64.0", "--layout=dp8-cp2-mb1-thd", "--max-ranks=16"]
    assert not any("examples" in option for option in plain + constant)


def test_device_and_backend_are_named_where_they_are_not_the_ordinary_ones() -> None:
    environment = HEADER.environment.model_copy(update={"device": "cuda", "backend": "gloo"})
    head = HEADER.model_copy(update={"environment": environment})
    found = named("weights/token_mean/one_token/dp2-cp1-mb1-thd")

    assert {"--device=cuda", "--backend=gloo"} < set(arguments(head, found))
    assert not any("--device" in option for option in arguments(HEADER, found))
