"""The statements of README.md, CONTRIBUTING.md and docs/ are true, and their commands run."""

import json
import os
import re
import shlex
import subprocess
import tomllib
from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from adapters.contract.framework import OptionRow
from adapters.engines.shells import PARALLEL
from conformance import cli
from conformance.comparing.expectations import load as load_expectations
from conformance.comparing.gate import Expecting, Outcome
from conformance.comparing.report_file import load
from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.finding import Finding
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS
from conformance.runs import registry
from conformance.runs.options import OPTIONS
from conformance.views.overview import accusations, committed, frameworks, pages
from conformance.views.report_formats import as_text
from reference.aggregation import AuxiliaryAggregation, Conventions
from tests import command
from tests.conformance.pages import unpacked
from tests.documents import (
    BY_PLACE,
    COMMANDS,
    FIRST,
    PAGES,
    README,
    TEXT,
    TINYRL,
    blocks,
    commands,
    run_cli,
    write_tinyrl,
)
from tests.pools import NEEDS_CLONES

CI = (command.ROOT / ".ci" / "run").read_text()

NATIVE = commands("pytest --adapter=native ")
TORCHRUN = commands("torchrun ")
WITH_SOURCE = commands("pytest .*--source=PATH")
RELEASES = commands("pytest .*skyrl-0.2.0.json")
MINE = commands("pytest --adapter=mine ")
HISTORY = commands("rl-loss-conformance history ")
ON_REPORTS = commands("rl-loss-conformance (show|issue|diff|html|expect) ")
IN_OTHER_TESTS = [
    "rl-loss-conformance convert --from=verl:token-mean --to=skyrl:sequence_mean STEP.json",
    "rl-loss-conformance adapters",
    "rl-loss-conformance cases",
    "rl-loss-conformance cases worked_example",
    "rl-loss-conformance plan --adapter=skyrl",
    "rl-loss-conformance watch --sources=CLONES slime",
    "rl-loss-conformance review --adapter=miles --source=.",
    "rl-loss-conformance review --adapter=miles --source=.@my-branch",
    "rl-loss-conformance review --adapter=miles --source=.@refs/pull/1498/head",
    "rl-loss-conformance recipe --adapter=trl recipe.yaml",
    "rl-loss-conformance recipe --adapter=trl recipe.yaml -- --steps_per_generation=4",
    "rl-loss-conformance recipe --adapter=verl -- actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "rl-loss-conformance trace traces/weights__token_mean__fully_masked_sample__dp2-cp1-mb2-thd"
    ".json.gz --source=PATH",
    "rl-loss-conformance trace weights/token_mean/fully_masked_sample/dp2-cp1-mb2-thd"
    " --adapter=miles --source=PATH@main",
]


def test_first_block_is_two_commands_that_ci_takes_from_here() -> None:
    install_and_run, tests = FIRST.splitlines()

    assert FIRST in README
    assert install_and_run.startswith("pip install -c constraints.txt -e ")
    assert install_and_run.endswith(" && pytest --adapter=skyrl --expect=known")
    assert tests == "pytest -n auto --dist=loadfile"
    assert "README.md" in CI


def test_every_other_command_is_run_once() -> None:
    here = [*NATIVE, *TORCHRUN, *WITH_SOURCE, *RELEASES, *MINE, *BY_PLACE, *HISTORY, *ON_REPORTS]
    by_ci = [line for line in COMMANDS if f"\ntimed {line}\n" in CI]

    assert sorted([*here, *IN_OTHER_TESTS, *by_ci]) == sorted(COMMANDS)


@pytest.mark.parametrize("line", [*NATIVE, *TORCHRUN])
def test_commands_on_native_have_findings_to_make(tmp_path: Path, line: str) -> None:
    """Findings are only collected: README's `pytest` makes them; `test_torchrun` runs torchrun."""
    launcher, _, arguments = line.replace(" -m pytest ", " pytest ").partition("pytest ")
    get_args_parser().parse_args([*shlex.split(launcher)[1:], "pytest"])
    chosen = shlex.split(arguments.replace("--adapter=", ""))
    result = command.run(tmp_path, *chosen, "--collect-only", "-q")

    assert result.status == 0, result.output


@pytest.mark.parametrize("line", ON_REPORTS)
def test_commands_on_committed_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").symlink_to(command.ROOT / "reports")

    assert cli.main(shlex.split(line)[1:]) in ((0, cli.WORSE) if " diff " in line else (0,))


@pytest.mark.processes
@pytest.mark.skyrl
def test_two_releases_are_compared_in_two_commands_as_shown(tmp_path: Path) -> None:
    first, second = RELEASES
    older, newer = (
        command.run(tmp_path, "skyrl", *shlex.split(line)[2:]) for line in (first, second)
    )
    [shown] = blocks("text", "OLD  ")

    assert (tmp_path / "skyrl-0.2.0.json").exists(), older.output
    assert shown in newer.output


@pytest.mark.processes
@pytest.mark.skyrl
@NEEDS_CLONES
@pytest.mark.parametrize("line", WITH_SOURCE)
def test_commands_with_a_source(tmp_path: Path, line: str) -> None:
    adapter = re.search("--adapter=([a-z]+)", line)[1]  # type: ignore[index]
    repository = Path(os.environ[command.SOURCES]) / {"skyrl": "SkyRL"}.get(adapter, adapter)
    if "@" not in line:
        tree = registry.create(adapter, None).tree
        repository = checkout(repository, tree, tmp_path / "checkout")
    arguments = shlex.split(line.replace("PATH", str(repository)))[1:]
    [case] = blocks("json", r"\{\n")
    (tmp_path / "step.json").write_text(case)
    result = command.run(tmp_path, adapter, *arguments, "--layout=dp1-cp1-mb1-thd")

    assert result.report.complete


@pytest.mark.processes
@NEEDS_CLONES
@pytest.mark.parametrize("line", HISTORY)
def test_histories_print_what_is_shown(capsys: pytest.CaptureFixture[str], line: str) -> None:
    arguments = shlex.split(line.replace("PATH", f"{os.environ[command.SOURCES]}/slime"))[1:]

    assert cli.main(arguments) == 0
    [shown] = blocks("text", "weights  ")
    assert shown in capsys.readouterr().out


def checkout(repository: Path, tree: Sequence[str], folder: Path) -> Path:
    """A work tree of the newest commit with the folders of ``tree``, or with all if it is empty."""
    clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(repository), str(folder)]
    files = ["git", "-C", str(folder), "checkout", "--quiet", "HEAD", "--", *(tree or ".")]
    for arguments in (clone, files):
        subprocess.run(arguments, check=True)
    return folder


def test_adapter_in_a_package_conforms_and_its_mistake_is_named_as_shown(tmp_path: Path) -> None:
    [code] = blocks("python", '"""Conformance of my framework')
    [shown] = blocks("text", "MISMATCH [^\n]*masked_tokens_counted")
    broken = code.replace("mask.sum().clamp(min=1)", "len(mask)")

    right, wrong = run_mine(tmp_path / "right", code), run_mine(tmp_path / "wrong", broken)

    assert right.status == 0, right.output
    assert shown in wrong.output


FSDP_LEFT = TINYRL.replace("(loss * self.world_size).backward()", "loss.backward()")

COUNTED_PER_RANK = TINYRL.replace(
    "        dist.all_reduce(total)\n        return total.cl", "        return total.cl"
)


@pytest.mark.parametrize(
    ("trainer", "begins"),
    [
        (FSDP_LEFT, "MISMATCH [^\n]*divided_by_dp"),
        pytest.param(
            COUNTED_PER_RANK, "MISMATCH [^\n]*counted_per_rank", marks=pytest.mark.thorough
        ),
    ],
    ids=["average over ranks left", "counted per rank"],
)
def test_mistakes_of_the_trainer_of_the_complete_adapter_are_named_as_shown(
    tmp_path: Path, trainer: str, begins: str
) -> None:
    place = write_tinyrl(tmp_path, trainer)
    layouts = ("--layout=dp2-cp1-mb1-thd", "--layout=dp2-cp1-mb2-thd")
    result = command.run(
        tmp_path, place, *layouts, "--checks=weights,metric", "-k", "odd or uneven"
    )

    [shown] = blocks("text", begins)
    assert result.status == 1, result.output
    assert shown in result.output


@pytest.fixture
def own_trainer() -> tuple[str, str]:
    """The trainer and the test of docs/your-own-trainer.md, after torch's modules are loaded."""
    import torch._dynamo  # noqa: F401 - pytester forgets what a run imports, and torch may not

    [trainer] = blocks("python", '"""A small GRPO')
    [test] = blocks("python", "import torch\nfrom grpo")
    return trainer, test


def test_mistake_of_ones_own_trainer_is_named_as_shown(
    own_trainer: tuple[str, str], pytester: pytest.Pytester
) -> None:
    trainer, test = own_trainer
    [shown] = blocks("text", "the trainer is not token_mean")
    pytester.makepyfile(grpo=trainer, test_grpo=test)

    result = pytester.runpytest("-p", "no:cacheprovider")

    assert shown in result.stdout.str() + "\n"
    [of_readme] = [one for one in blocks("text", "MISMATCH 16 ") if "suspect 1: grpo.py" in one]
    assert all(line in result.stdout.str() for line in of_readme.splitlines())


def test_ones_own_trainer_is_mended_as_the_page_says(
    own_trainer: tuple[str, str], pytester: pytest.Pytester
) -> None:
    trainer, test = own_trainer
    [mended] = re.findall(r"`(\(losses \* mask.*?) / tokens_of_the_step`", TEXT)
    trainer = trainer.replace(f"{mended} / mask.sum()", f"{mended} / self.tokens")
    trainer = trainer.replace(
        "        total = 0.0\n",
        "        self.tokens = sum(mask.sum() for _, mask, *_ in rollouts)\n        total = 0.0\n",
    ).replace(" / self.accumulation_steps\n", "\n")
    pytester.makepyfile(grpo=trainer, test_grpo=test)

    result = pytester.runpytest("-p", "no:cacheprovider")

    result.assert_outcomes(passed=1)


def run_mine(folder: Path, code: str) -> command.Result:
    """Run the page's command in a folder with a package of this code and the page's entry point."""
    [line], [shown] = MINE, blocks("toml", r"\[project")
    [(group, entries)] = tomllib.loads(shown)["project"]["entry-points"].items()
    module, _, _ = entries["mine"].partition(":")
    files = {
        f"{module.replace('.', '/')}.py": code,
        "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
        "mine-1.0.dist-info/entry_points.txt": f"[{group}]\nmine = {entries['mine']}\n",
    }
    for name, text in files.items():
        path = folder / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return command.run(folder, "mine", *shlex.split(line)[2:])


@pytest.mark.parametrize("line", BY_PLACE)
def test_commands_on_an_adapter_that_is_not_installed(tmp_path: Path, line: str) -> None:
    write_tinyrl(tmp_path)
    program, *arguments = shlex.split(line)
    if program == "pytest":
        few = (*arguments[1:], "-k", "dp2-cp1-mb2-thd or uneven_lengths")
        result = command.run(tmp_path, arguments[0].partition("=")[2], *few)
        status, output = result.status, result.output
    else:
        status, output = run_cli(tmp_path, *arguments)

    assert status == 0, output


LINKING = [*command.ROOT.glob("*.md")] + [
    path
    for folder in ("docs", "reports", ".github")
    for path in (command.ROOT / folder).rglob("*.md")
]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(command.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^()#\s]*)(?:#([^()\s]+))?\)", page.read_text())
    dead = [
        f"{path}#{anchor}"
        for path, anchor in links
        for target in [page.parent / path if path else page]
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]

    assert not dead


def anchors(page: Path) -> list[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_every_page_can_be_reached_from_the_readme() -> None:
    table = PAGES[command.ROOT / frameworks.PAGE]
    linked = {command.ROOT / path for path in re.findall(r"\]\(([\w./-]+)", README)}
    linked |= {command.ROOT / "docs" / path for path in re.findall(r"\]\(([\w-]+\.md)", table)}

    assert [path for path in PAGES if path not in linked] == [command.ROOT / "README.md"]


def test_layers_shown_are_those_of_the_import_contract() -> None:
    project = tomllib.loads((command.ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    rooms, adapters = (
        "".join(f"{layer.replace(f'{package}.', '')}\n" for layer in contract["layers"])
        for package, contract in zip(
            ("conformance", "adapters"),
            [contract for contract in contracts if contract["type"] == "layers"],
            strict=True,
        )
    )

    assert blocks("text", "plugin ") == [rooms]
    assert blocks("text", "slime_family\n") == [adapters]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160


@pytest.fixture(scope="module")
def found() -> list[committed.CommittedReport]:
    return committed.versions(command.ROOT / committed.REPORTS)


def test_pages_are_those_of_the_committed_reports_and_records(
    found: list[committed.CommittedReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m conformance.views.overview` writes the pages again."""
    monkeypatch.chdir(command.ROOT)
    written = pages.pages(found, README) | frameworks.pages(found) | frameworks.option_pages()
    for path, text in written.items():
        assert path.read_text() == text


def test_reports_say_of_known_mistakes_what_the_catalogue_says(
    found: list[committed.CommittedReport],
) -> None:
    """`python -m conformance.views.overview.rederive` derives the reports' causes again."""
    causes = [cause for one in found for cause in one.report.causes if cause.name in MISTAKES]

    assert causes
    for cause in causes:
        says = MISTAKES[cause.name].says.removeprefix("an option ")
        place = cause.suspects[0].place if cause.suspects else None
        assert says in cause.words or cause.words == f"a different factor at {place}"


def test_notes_of_options_that_no_job_sets_say_what_looks_at_them_or_why_nothing_does() -> None:
    options = (
        OptionRow(("size",), "steps", "`weights` on `two_steps`"),
        OptionRow(("kind",), "loss", "`a` is run"),
    )
    record = replace(registry.create("native", None).framework, options=options)
    rows = [line for line in frameworks.option_section([record]) if line.startswith("| `")]

    assert rows == [
        "| `size` | steps | `weights` on `two_steps` |",
        "| `kind` | loss | none: `a` is run |",
    ]


@pytest.mark.skipif(
    not (command.ROOT / accusations.ISSUES).exists(), reason="no bug reports are committed"
)
def test_bug_reports_are_those_of_the_newest_committed_reports(
    found: list[committed.CommittedReport],
) -> None:
    issues = pages.issues(found)
    kept = {path.name: path.read_text() for path in (command.ROOT / accusations.ISSUES).glob("*")}

    assert {path.name: text for path, text in issues.items()} == kept


def test_web_page_is_that_of_the_newest_committed_reports(
    found: list[committed.CommittedReport],
) -> None:
    """The page's data are compared uncompressed, as libraries compress differently."""
    [(path, text)] = pages.web_page(found).items()
    kept = (command.ROOT / path).read_text()
    [data, kept_data] = re.findall(r'id="data">(.*?)</script>', text + kept)

    assert unpacked(kept) == unpacked(text)
    assert kept.replace(kept_data, "") == text.replace(data, "")


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["v0.9.1", "v0.10.0", "pull-1498"], "v0.10.0"),
        (["v0.10.0", "main-31f1ca9", "pull-1498"], "main-31f1ca9"),
    ],
)
def test_newest_version_is_the_main_branch_and_else_the_last_release(
    found: list[committed.CommittedReport], names: list[str], newest: str
) -> None:
    [one] = committed.newest([replace(found[0], name=name) for name in names])

    assert one.name == newest


def test_known_fault_shown_is_one_of_a_committed_report(tmp_path: Path) -> None:
    [shown] = blocks("toml", "framework = ")
    (tmp_path / "known.toml").write_text(shown)
    gate = Expecting(load_expectations(tmp_path / "known.toml"))
    report = load(command.ROOT / "reports" / "skyrl" / "v0.3.0.json.gz")
    [mistake] = gate.expectations.mistakes
    [cause] = [cause for cause in report.causes if cause.name in mistake.names]
    [smallest] = [found for found in report.findings if found.id == cause.findings[0]]

    assert mistake.allows(cause)
    assert gate.decision(smallest, report.clues_of(smallest)).outcome is Outcome.KNOWN


def test_finding_shown_is_of_a_committed_report_and_printed_as_shown() -> None:
    [shown] = blocks("json", r"\{\"")
    finding = Finding.model_validate(json.loads(shown))
    committed = [load(path) for path in (command.ROOT / "reports" / "miles").glob("*.json.gz")]

    assert any(finding in report.findings for report in committed)


def test_cause_shown_is_of_a_committed_report_and_printed_as_shown() -> None:
    [shown] = blocks("text", "MISMATCH [^\n]*not_divided")
    report = load(command.ROOT / "reports" / "miles" / "main-31f1ca9-fsdp.json.gz")

    assert shown in "\n".join(as_text(report))


def test_denominator_shown_is_that_of_the_bug_report_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [shown] = blocks("text", "- all samples: ")
    [line] = commands("rl-loss-conformance issue ")
    monkeypatch.chdir(command.ROOT)

    assert cli.main(shlex.split(line)[1:]) == 0
    assert shown in capsys.readouterr().out


def test_checks_conventions_and_options_are_documented() -> None:
    rows = [*Check, *AuxiliaryAggregation, *(field.name for field in fields(Conventions))]

    shown = [name for name, option in OPTIONS.items() if option["help"] != SUPPRESS]

    assert [name for name in shown if not re.search(rf"\n\| `--{name}[=`]", TEXT)] == []
    assert [name for name in rows if f"\n| `{name}` | " not in TEXT] == []


def options_of(section: str) -> dict[str, str]:
    """The options of a section of docs/options.md, each with the text of its last column."""
    page = PAGES[command.ROOT / "docs" / "options.md"]
    table = page.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| .+? \| (.+?) \|$", table, re.MULTILINE)
    return {option: check for named, check in rows for option in re.findall("`([^`]+)`", named)}


def test_options_of_the_lineage_are_those_of_its_parsers() -> None:
    """Each option is in the parser of slime, of miles or of both."""
    folder = os.environ.get(command.SOURCES)
    if folder is None:
        pytest.skip(f"needs {command.SOURCES}, as the frameworks are on no registry")
    known = "".join(
        subprocess.run(
            ["git", "-C", f"{folder}/{framework}", "show", f"main:{framework}/utils/arguments.py"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for framework in ("slime", "miles")
    )
    of_megatron = {
        "--calculate-per-token-loss",
        "--clip-grad",
        "--ddp-average-in-collective",
        "--micro-batch-size",
        "--moe-router-topk",
        "--num-experts",
        "--num-layers",
        "--num-virtual-stages-per-pipeline-rank",
        "--overlap-grad-reduce",
        "--use-distributed-optimizer",
        "--expert-model-parallel-size",
        *PARALLEL,
    }
    of_pull_requests = {"--loss-aggregation", "--loss-aggregation-divisor", "--pg-loss-divisor"}

    unknown = {name for name in options_of("slime and miles") if f'"{name}"' not in known}
    assert unknown <= of_megatron | of_pull_requests


def test_checks_that_are_said_to_cover_options_exist() -> None:
    slugs = {one.slug for one in CHECK_SPECS} | {*Check}
    for option, covered in options_of("slime and miles").items():
        first = covered.partition(" ")[0].strip("`,;")
        assert covered.startswith("none") or first in slugs, option
