"""The catalogue as a table: which cases kill each mutant, and how the mistake is named."""

import inspect
from collections.abc import Sequence

from conformance.explain.causes import causes
from conformance.findings.cause import Cause, Clues
from conformance.findings.finding import Finding
from tests.mutants.kills import Trial
from tests.mutants.mutant import Mutant

HEAD = """\
# Mutants

Wrong reducers on purpose: `native` with one plausible human mistake each, run by real ranks and
judged like a framework, on the quick plan of up to 4 ranks. Every row is tested;
`python -m tests.mutants` writes this page. *Named* is the number of findings that name the mistake,
first or among others that explain the same weights, and the number that name it first; *causes* are
those of all findings together, right ones included.

| mutant | mistake | check | modes | killed by | diagnosis | named | causes |
|---|---|---|---|---|---|---|---|
"""


def row(mutant: type[Mutant], trials: Sequence[Trial]) -> str:
    """One line of the table."""
    kills = [trial for trial in trials if trial.is_kill]
    named = sum(kill.names(mutant.diagnosis) for kill in kills)
    first = sum(kill.names_first(mutant.diagnosis) for kill in kills)
    cells = [
        mutant.__name__,
        inspect.cleandoc(mutant.__doc__ or "").replace("\n", " "),
        mutant.spec.slug,
        ", ".join(mutant.modes),
        _killers(trials),
        f"`{mutant.diagnosis}`",
        f"{named} of {len(kills)}, first {first}",
        "; ".join(", ".join([f"`{one.name}`", *one.condition]) for one in found(mutant, trials)),
    ]
    return f"| {' | '.join(cells)} |"


def found(mutant: type[Mutant], trials: Sequence[Trial]) -> list[Cause]:
    """The causes of all findings of a mutant."""
    findings = [
        Finding(
            id=mutant.spec.finding_id(trial.mode, trial.case, trial.layout),
            verdict=trial.judgement.verdict,
            error=trial.judgement.error,
            tolerance=trial.judgement.tolerance,
            diagnosis=trial.judgement.diagnosis,
            message=trial.judgement.message,
            clues=None if trial.judgement.clues is None else number,
        )
        for number, trial in enumerate(trials)
    ]
    known = [trial.judgement.clues or Clues(terms=[]) for trial in trials]
    return causes(findings, known, {})


def killers(trials: Sequence[Trial]) -> set[str]:
    """Names of the cases that kill."""
    return {trial.case for trial in trials if trial.is_kill}


def _killers(trials: Sequence[Trial]) -> str:
    """The cases that kill, or "all but" the cases that do not kill, if these are few."""
    tried = list(dict.fromkeys(trial.case for trial in trials))
    killing = [case for case in tried if case in killers(trials)]
    sparing = [case for case in tried if case not in killing]
    if not sparing:
        return "all"
    return f"all but {', '.join(sparing)}" if len(sparing) < 5 else ", ".join(killing)
