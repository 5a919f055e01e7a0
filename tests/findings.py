"""Findings, with clues or without, and reports of them."""

from collections.abc import Sequence
from pathlib import Path

from conformance.comparing.journal import Journal
from conformance.comparing.report_file import assembled
from conformance.findings.cause import Clues
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.report import Environment, Header, Provenance, Report, Selection
from conformance.findings.verdict import Verdict
from reference.aggregation import DEFAULT_CONVENTIONS

HEADER = Header(
    adapter="toy",
    engine="torch",
    source=Provenance(kind="builtin", revision=None, version="1", ref=None, dirty=False),
    environment=Environment(
        python="3", torch="2", backend="gloo", device="cpu", platform="L", dependencies={}, stubs=[]
    ),
    conventions=DEFAULT_CONVENTIONS,
)


def finding(case: str, verdict: Verdict = Verdict.CONFORMS) -> Finding:
    return Finding(
        id=f"weights/token_mean/{case}/dp1-cp1-mb1-bshd",
        verdict=verdict,
        error=0.25e-6,
        tolerance=1e-6,
    )


def begun(path: Path, *cases: str) -> Journal:
    """A journal with findings of some cases."""
    journal = Journal(path)
    journal.begin(HEADER)
    for case in cases:
        journal.add(finding(case))
    return journal


def mismatch(case: str, name: str, *also: str) -> Finding:
    diagnosis = Diagnosis(name=name, explanation="2 instead of 4", also=[*also])
    return finding(case, Verdict.MISMATCH).model_copy(update={"diagnosis": diagnosis, "error": 1.0})


def crash(case: str, message: str) -> Finding:
    return finding(case, Verdict.CRASHED).model_copy(update={"message": message})


CP, MICRO = "policy_loss/multiplied_by_cp", "policy_loss/multiplied_by_micro_batches"

EMPTY = "policy_loss/empty_samples_counted"

UNEXPLAINED = Diagnosis(
    name="unexplained", explanation="weights are 2 to 3 times the expected ones, one ratio per rank"
)

Said = tuple[Finding, Clues]


def right(identity: str, *excluded: str, facts: Sequence[str] = ()) -> Said:
    finding = Finding(id=identity, verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    return finding, Clues(terms=["policy_loss"], excluded=[*excluded], conditions=[*facts])


def wrong(
    identity: str, *alternatives: str, excluded: Sequence[str] = (), facts: Sequence[str] = ()
) -> Said:
    """A wrong finding that each of the alternatives explains."""
    return explained(identity, [*alternatives], excluded=excluded, facts=facts)


def explained(
    identity: str,
    *parts: list[str],
    terms: Sequence[str] = ("policy_loss",),
    excluded: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> Said:
    finding = Finding(id=identity, verdict=Verdict.MISMATCH, error=1.0, diagnosis=UNEXPLAINED)
    return finding, Clues(
        terms=[*terms],
        explanations=[[*parts]] if all(parts) else [],
        excluded=[*excluded],
        conditions=[*facts],
    )


A = "weights/token_mean/a/dp1-cp2-mb1-thd"

B = "weights/token_mean/b/dp1-cp2-mb1-thd"

OTHER = "weights/sample_mean/a/dp1-cp2-mb1-thd"


def report(
    *found: Finding | Said,
    header: Header = HEADER,
    missing: int = 0,
    watched: frozenset[str] = frozenset(),
    fault: str | None = None,
) -> Report:
    """A report of findings, with clues or without; ``missing`` selected findings are not in it."""
    findings, clues = [], []
    for one in found:
        finding, *of_finding = one if isinstance(one, tuple) else (one,)
        numbered = {"clues": len(clues)} if of_finding else {}
        findings.append(finding.model_copy(update=numbered))
        clues += of_finding
    selection = Selection(selected=len(found) + missing, deselected=0)
    return assembled(header, findings, clues, selection, watched, fault)


def recaused(report: Report, **fields: object) -> Report:
    """A report that has one cause, with other values in fields of that cause."""
    [cause] = report.causes
    return report.model_copy(update={"causes": [cause.model_copy(update=fields)]})


def with_verdict(verdict: Verdict, identity: str = A, **fields: str) -> Said:
    """A finding with a verdict, whose clues neither name nor exclude any mistake."""
    finding = Finding.model_validate({"id": identity, "verdict": verdict, **fields})
    return finding, Clues(terms=["policy_loss"])


HEAD = 'framework = "native"\nengine = "torch"\n\n'
