"""Findings of committed reports, made again by the real code of frameworks.

CI makes whole quick plans of SkyRL, verl, AReaL, OpenRLHF and TRL on one engine each, with
``--expect``, which notices new mistakes. These tests cover all engines, and also notice findings
that are no longer made.
"""

import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from conformance.comparing.report_file import load
from conformance.findings.report import Report
from tests import command

REPORTS = Path(__file__).parents[2] / "reports"

DISTRIBUTIONS = {"liger": "liger-kernel", "unsloth": "unsloth_zoo"}
"""Of frameworks whose package has another name."""


NEEDED = {
    "areal": "colorlog",
    "dtensor_v2": "nemo_automodel",
    "openrlhf": "deepspeed",
    "prime_rl": "pydantic_config",
    "roll": "dacite",
}
"""Packages that frameworks or engines need, and that not all environments have."""


class Selection(NamedTuple):
    """A committed report, and the findings of it that are made again."""

    report: str
    layouts: tuple[str, ...]
    """Ends of ids."""

    parts: tuple[str, ...] = ("/",)
    """Parts of ids, checks or cases; a finding has one of them."""

    def has(self, finding_id: str) -> bool:
        """Whether a finding is made again."""
        is_on = finding_id.endswith(self.layouts)
        return is_on and any(part in finding_id for part in self.parts)

    @property
    def expression(self) -> str:
        """What selects the findings, for pytest's option ``-k``."""
        layouts = " or ".join(f"{layout}]" for layout in self.layouts)
        return f"({layouts}) and ({' or '.join(self.parts)})"


TELLING = (
    "fully_masked_sample",
    "long_prompts",
    "nine_samples",
    "no_active_token",
    "rejected_tokens",
    "short_responses",
    "two_steps",
)
"""Cases that tell the mistakes of most checks."""

STARTUP = ("arguments.", "logging")

SELECTIONS = (
    Selection("skyrl/v0.3.0", ("dp2-cp2-mbtokens-thd",)),
    Selection("skyrl/v0.3.0", ("dp1-cp1-mb2-bshd", "dp1-cp1-mb1-bshd"), STARTUP),
    Selection(
        "skyrl/v0.3.0",
        ("dp1-cp1-mb1-thd", "dp4-cp1-mb1-bshd"),
        ("unequal_groups", "fibonacci_lengths"),
    ),
    Selection("skyrl/v0.3.0-megatron", ("dp1-cp1-pp2-mb2-bshd", "dp2-cp1-mbtokens-bshd")),
    Selection("skyrl/v0.3.0-megatron", ("dp2-cp2-tp2-mb2-thd",), ("fully_masked_sample",)),
    Selection("verl/v0.9.1-fsdp2", ("dp2-cp1-mb2-thd+two_epochs",), TELLING),
    Selection(
        "verl/v0.9.1-fsdp2",
        ("dp1-cp2-mbtokens-thd+legacy_trainer",),
        ("fully_masked_sample", "two_steps"),
    ),
    Selection("verl/v0.9.1-fsdp2", ("dp1-cp1-mb2-bshd",), STARTUP),
    Selection(
        "verl/v0.9.1-megatron", ("dp1-cp2-mbtokens-thd+per_token_loss", "dp1-cp1-pp2-mb2-bshd")
    ),
    Selection(
        "verl/v0.9.1-megatron",
        ("+average_in_collective", "+overlap_grad_reduce", "+replicated_optimizer"),
        ("weights/token_mean",),
    ),
    Selection(
        "roll/main-8eb27cc",
        ("dp2-cp1-mb2-bshd+two_epochs", "dp2-cp1-mb2-bshd+policy_gradient_worker"),
        (*TELLING, "ten_samples"),
    ),
    Selection(
        "roll/main-8eb27cc-megatron",
        ("dp1-cp4-mbtokens-bshd", "dp2-cp1-mbtokens-bshd", "dp1-cp1-pp2-mb2-bshd"),
    ),
    Selection(
        "areal/v1.0.4",
        ("dp1-cp1-mb2-thd", "dp2-cp2-mbtokens-thd", "dp4-cp1-mb2-thd", "dp4-cp1-mbtokens-thd"),
    ),
    Selection("areal/v1.0.4-megatron", ("dp1-cp1-pp2-mb2-thd+interleaved",)),
    Selection("areal/v1.0.4-megatron", ("+average_in_collective",), TELLING),
    Selection(
        "areal/v1.0.4-megatron",
        ("+overlap_grad_reduce", "dp2-cp1-tp2-mb2-thd", "dp1-cp4-mb1-thd"),
        ("weights/token_mean",),
    ),
    Selection(
        "nemo_rl/main-7ea279a-dtensor_v1",
        ("dp1-cp1-mb2-bshd", "dp1-cp2-mb2-bshd", "dp4-cp1-mbtokens-thd", "dp1-cp1-mb1-thd"),
    ),
    Selection("nemo_rl/main-7ea279a", ("dp4-cp1-mbtokens-thd+hybrid_sharding", "dp2-cp2-mb2-bshd")),
    Selection("prime_rl/main-559b447", ("+hybrid_sharding", "dp4-cp1-mbtokens-thd")),
    Selection("prime_rl/main-559b447", ("+not_sharded",), TELLING),
    Selection("openrlhf/v0.11.2", ("dp2-cp1-mb2-thd+two_epochs",), (*TELLING, "odd_groups")),
    Selection("openrlhf/v0.11.2", ("+zero_0", "+zero_1", "+zero_3"), ("weights/token_mean",)),
    *(
        Selection(f"trl/v1.16.0{engine}", ("dp2-cp1-mb2-bshd+shared_generation",), TELLING)
        for engine in ("", "-fsdp2", "-deepspeed")
    ),
    Selection(
        "trl/v1.16.0",
        ("dp2-cp1-mb2-bshd+masked_truncation", "dp2-cp1-mb2-bshd+split_generation"),
        ("weights/", "metric.entropy"),
    ),
    Selection(
        "trl/v1.16.0-rloo",
        ("+masked_truncation", "+shared_generation", "+split_generation", "dp1-cp1-mb2-bshd"),
        ("weights/", "metric/"),
    ),
    Selection("trl/v1.16.0-async", ("dp2-cp1-mb2-thd", "dp2-cp1-mb1-thd")),
    *(
        Selection(report, ("dp2-cp1-mb2-bshd",), ("fully_masked_sample", "two_steps"))
        for report in ("liger/v0.8.5", "unsloth/v2026.10.9")
    ),
    *(
        Selection(report, ("dp1-cp1-mb2-thd", "dp1-cp1-mb1-bshd"), STARTUP)
        for report in (
            "slime/main-624b824",
            "slime/pull-2090",
            "miles/main-31f1ca9",
            "miles/pull-1498",
        )
    ),
    *(
        Selection(
            report, ("dp2-cp2-mb2-thd+allgather_cp",), ("off_policy.gspo", "off_policy/sample_mean")
        )
        for report in ("slime/pull-2090", "miles/pull-1498")
    ),
    Selection("slime/pull-2090", ("dp1-cp1-pp2-mb2-thd+interleaved",), ("token_mean/",)),
    *(
        Selection(
            report,
            ("dp2-cp1-mbtokens-thd+balance_data", "dp4-cp1-mbtokens-thd"),
            ("fully_masked_sample", "two_steps", "rejected_tokens", "unequal_groups"),
        )
        for report in ("slime/main-624b824", "miles/main-31f1ca9")
    ),
    Selection("miles/main-31f1ca9-fsdp", ("dp1-cp1-mb2-thd",), TELLING),
    Selection(
        "miles/pull-1498-fsdp",
        ("dp4-cp1-mbtokens-thd", "dp1-cp1-mb1-thd"),
        ("odd_groups", "uneven_lengths", "rejected_tokens"),
    ),
)


def made(selection: Selection, report: Report) -> dict[str, tuple[str, str | None]]:
    """The verdicts and diagnoses of the selected findings, by id."""
    return {
        str(finding.id): (finding.verdict, finding.diagnosis and finding.diagnosis.name)
        for finding in report.findings
        if selection.has(str(finding.id))
    }


class Commit(NamedTuple):
    """A commit of a clone, and what a step of it is found to be in `token_mean`."""

    adapter: str
    engine: str
    ref: str
    layout: str
    found: str = "conforms"
    """A verdict, or the mistake."""

    case: str = "uneven_lengths"


PADDED, BY_TOKENS = "dp2-cp1-mb2-bshd", "dp2-cp1-mbtokens-thd"

COMMITS = (
    Commit("openrlhf", "deepspeed", "v0.10.0", BY_TOKENS + "+zero_0", "weights_of_prompt_mean"),
    # Pull request 1299, before and after.
    *(
        Commit("openrlhf", "deepspeed", ref, BY_TOKENS + "+zero_0", found, "nine_samples")
        for ref, found in (("0028a82a^", "refused"), ("0028a82a", "samples_lost"))
    ),
    Commit("prime_rl", "fsdp2", "02bdca2e4", BY_TOKENS, "denominators_per_rank"),
    # The commit that counts the tokens of all ranks, before and after.
    Commit("prime_rl", "fsdp2", "1d9ca9255^", BY_TOKENS, "denominators_per_rank"),
    Commit("prime_rl", "fsdp2", "1d9ca9255", BY_TOKENS),
    Commit("prime_rl", "fsdp2", "289562d2e", BY_TOKENS, case="worked_example"),
    Commit("nemo_rl", "dtensor_v1", "89da2d46e", PADDED),
    Commit("nemo_rl", "dtensor_v2", "89da2d46e", PADDED),
    Commit("nemo_rl", "dtensor_v1", "v0.7.0", PADDED, "refused", "nine_samples"),
    Commit("roll", "fsdp2", "53c6da31", PADDED, case="nine_samples", found="refused"),
)
"""The oldest commits that the pages say are driven, and some at which a step changed."""


def source(report: Report) -> list[str]:
    """The option that gives the version of a report; the test is skipped where it is not there."""
    of = report.source
    require(report.adapter, report.engine)
    if of.kind == "pypi":
        return [f"--source=pypi:{of.version}"]
    if of.kind == "git":
        return [f"--source={clone(report.adapter)}@{of.revision}"]
    distribution = DISTRIBUTIONS.get(report.adapter, report.adapter)
    if find_spec(distribution.replace("-", "_")) is None:
        pytest.skip(f"{distribution} is not installed")
    if version(distribution) != of.version:
        pytest.skip(f"{distribution} is installed in another version than {of.version}")
    return []


def require(*names: str) -> None:
    """Skip a test of a framework or an engine whose packages are not installed."""
    for name in names:
        if name in NEEDED and find_spec(NEEDED[name]) is None:
            pytest.skip(f"{NEEDED[name]} is not installed")


def clone(adapter: str) -> Path:
    """The clone of a framework; the test is skipped where there is none."""
    if command.SOURCES not in os.environ:
        pytest.skip(f"{command.SOURCES} names no folder of clones")
    return Path(os.environ[command.SOURCES], adapter)


def marks(framework: str) -> list[pytest.MarkDecorator]:
    """The marker of the framework, if there is one."""
    marker = "trl" if framework in DISTRIBUTIONS else framework
    return [] if marker in ("miles", "slime") else [getattr(pytest.mark, marker)]


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(
            one, id=f"{one.report} {one.layouts[0]}", marks=marks(one.report.partition("/")[0])
        )
        for one in SELECTIONS
    ],
)
def test_findings_are_those_of_the_committed_report(tmp_path: Path, selection: Selection) -> None:
    committed = load(REPORTS / f"{selection.report}.json.gz")
    depth = committed.findings[0].depth
    plan, divisor = committed.request.plan, committed.request.divisor
    modes = [f"--modes=constant:{divisor:g}"] if divisor else []
    asked = (f"--plan={plan}", f"--depth={depth}", *modes)
    chosen = (f"--engine={committed.engine}", *source(committed), *asked)
    result = command.run(tmp_path, committed.adapter, *chosen, "-k", selection.expression)

    assert result.report.complete, result.output
    assert made(selection, result.report) == made(selection, committed)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=f"{one.engine} {one.ref} {one.case}", marks=marks(one.adapter))
        for one in COMMITS
    ],
)
def test_commits_that_the_pages_name_are_driven(tmp_path: Path, one: Commit) -> None:
    require(one.adapter, one.engine)
    chosen = (f"--source={clone(one.adapter)}@{one.ref}", f"--engine={one.engine}")
    step = ("--checks=weights", "--modes=token_mean", f"--layout={one.layout}", "-k", one.case)
    result = command.run(tmp_path, one.adapter, *chosen, *step)

    [finding] = result.report.findings
    named = finding.diagnosis.name if finding.diagnosis else finding.verdict
    assert named == one.found, result.output
