"""From what a framework did to a verdict: what it may decline, and whose rule it breaks."""

from dataclasses import dataclass, field, replace

import pytest

from adapters.contract import Depth, Description, Job, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS
from conformance.corpus.configurations import CONFIG_CASES
from conformance.findings.verdict import Verdict
from conformance.plan.checks import CheckSpec
from conformance.plan.matrix import MatrixCell, StartupCell
from conformance.ranks.messages import Declined
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode


@dataclass
class Declining:
    """Stands where ranks are that decline whatever they are given."""

    message: str
    description: Description = field(default_factory=NativeAdapter().describe)

    def run(self, job: Job) -> Declined:
        """The same whatever the job."""
        return Declined("refused", self.message)


def verdict(case: str, layout: Layout, message: str, mode: Mode = Mode.TOKEN_MEAN) -> Verdict:
    chosen = next(one for one in CORPUS if one.name == case)
    cell = MatrixCell(
        aggregation=chosen.aggregation(mode), case=chosen, layout=layout, depth=Depth.STEP
    )
    jobs = SharedJobs(Declining(message))  # type: ignore[arg-type]
    return make(cell, jobs).verdict


WORDS = "AssertionError: 8 samples cannot be dealt to 3 ranks"


@pytest.mark.parametrize("mode", Mode)
def test_uneven_cut_may_be_declined_in_words_in_every_mode(mode: Mode) -> None:
    assert verdict("two_steps", Layout(dp=3), WORDS, mode) is Verdict.REFUSED


def test_what_a_framework_allows_in_its_own_documents_is_no_finding_against_it() -> None:
    case = next(case for case in CONFIG_CASES if case.name == "divisor_of_another_mode")
    cell = StartupCell(
        aggregation=case.given.aggregation(Mode.TOKEN_MEAN),
        case=case.given,
        layout=Layout(micro_batches=2),
        depth=Depth.STEP,
        spec=CheckSpec(check=case.check, name=case.name),
        config_case=case,
    )
    allowing = replace(NativeAdapter().describe(), permits={case.rule: "its scripts"})
    jobs = SharedJobs(Declining(WORDS, allowing))  # type: ignore[arg-type]
    finding = make(cell, jobs)

    assert finding.verdict is Verdict.UNSUPPORTED
    assert finding.message == "a divisor with a mode that does not use one: allowed by its scripts"


def test_ordinary_step_may_not_be_declined() -> None:
    assert verdict("two_steps", Layout(dp=2), WORDS) is Verdict.DECLINED
