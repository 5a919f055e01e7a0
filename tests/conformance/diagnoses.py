"""Whole diagnoses of the catalogue's mutants, and all known mistakes of a few contexts.

They are kept in ``diagnoses.json`` and ``mistakes.json`` to be compared with.
``python -m tests.conformance.diagnoses`` writes both anew: what changed in them is to be read
before it is committed. Ranks are no processes here: each trains alone, one after another, up to the
loss, and the judge adds up what they hold. Mutants that get a collective or a report wrong cannot
be run so: their weights and numbers are given to the judge by tests that work them out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Depth, Description, Layout
from conformance.corpus.cases import CORPUS, REJECTION
from conformance.explain.catalogue import missing_tokens
from conformance.explain.catalogue.predictions import predictions
from conformance.findings.verdict import Check, Verdict
from conformance.judging.weights import judge_weights
from reference.aggregation import Conventions, DenominatorMask, EmptyUnits, Mode, SampleUnit
from tests.conformance.given import BY_SAMPLE, REJECTED, SLICED, STEP, UNEVEN, Given
from tests.declaring import assumed
from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant, MutantJob
from tests.mutants.one_process import is_seen, observations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from conformance.judging.weights import Judgement

DIAGNOSES = Path(__file__).with_name("diagnoses.json")
MISTAKES = Path(__file__).with_name("mistakes.json")

CASES = {case.name: case for case in (*CORPUS, *REJECTION)}

EVERYDAY = ("fully_masked_sample", "unequal_groups", "two_steps")
"""An empty sample, groups of several sizes, and a step before."""

LAYOUTS = (Layout.parse("dp2-cp2-mb2-thd"), Layout.parse("dp2-cp1-mbuneven-bshd"))

RUN = [
    mutant
    for mutant in MUTANTS
    if is_seen(mutant) and mutant.spec.check in (Check.WEIGHTS, Check.REJECTION)
]


shares = cache(observations)


@cache
def job_of(mutant: type[Mutant], case: str, layout: Layout, mode: Mode) -> MutantJob:
    """Alike for alike arguments, so that shares are trained once."""
    return MutantJob(
        steps=CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=layout,
        depth=Depth.LOSS,
        mutant=mutant,
    )


def diagnoses(mutant: type[Mutant]) -> dict[str, Any]:
    """What is said of a mutant, by case, layout and mode; None where it conforms."""
    description = replace(Description(), declared=assumed(mutant.conventions))
    cases = EVERYDAY if mutant.spec.check is Check.WEIGHTS else [case.name for case in REJECTION]
    return {
        f"{case}/{layout}/{mode}": _words(judge_weights(job, shares(job), description))
        for case in cases
        for layout in LAYOUTS
        if CASES[case].runs_on(layout)
        for mode in mutant.modes
        for job in [job_of(mutant, case, layout, mode)]
    }


def _words(judgement: Judgement) -> dict[str, Any] | None:
    if judgement.verdict is Verdict.CONFORMS:
        return None
    diagnosis = judgement.diagnosis
    assert diagnosis is not None
    numbers = {name: float(f"{value:.6g}") for name, value in diagnosis.numbers.items()}
    return {
        "error": None if judgement.error is None else float(f"{judgement.error:.4g}"),
        **diagnosis.model_dump(exclude={"numbers"}),
        "numbers": numbers,
    }


def text(by_mutant: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each diagnosis, so that a change is a line of a diff."""
    mutants = (
        f'"{name}": {{\n'
        + ",\n".join(f'"{where}": {json.dumps(words)}' for where, words in said.items())
        + "\n}"
        for name, said in by_mutant.items()
    )
    return "{\n" + ",\n".join(mutants) + "\n}\n"


CONTEXTS = {
    "two_steps": Given(
        steps=(CASES["worked_example"].steps[0], STEP),
        layout=Layout(dp=2, cp=2, micro_batches=2),
        forward_pass_of_token=SLICED,
    ),
    "uneven": Given(layout=Layout(dp=2, micro_batches="uneven"), forward_pass_of_token=UNEVEN),
    "tokens": Given(
        layout=Layout(dp=2, micro_batches="tokens"),
        forward_pass_of_token=BY_SAMPLE,
        conventions=Conventions(sample_unit=SampleUnit.ROLLOUT),
    ),
    "rejected": Given(
        steps=(REJECTED,),
        layout=Layout(dp=3, micro_batches="tokens"),
        conventions=Conventions(
            empty_units=EmptyUnits.EXCLUDED, denominator_mask=DenominatorMask.ORIGINAL
        ),
    ),
    "before_rejection": Given(steps=(STEP, REJECTED)),
}
"""What may be known of a step and of how it was cut."""


def known_mistakes(given: Given) -> dict[str, Any]:
    """By mode: name, words, sizes, and what each token is divided by, 0 where it has no weight."""
    return {
        mode: [
            [mistake.name, mistake.says, mistake.sizes, _denominators(mistake.weights)]
            for context in [replace(given, mode=mode).context]
            for mistake in (*predictions(context), *missing_tokens.shares(context))
        ]
        for mode in Mode
    }


def _denominators(weights: NDArray[np.float64]) -> list[float]:
    divided = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights != 0)
    return [float(f"{value:.7g}") for value in divided]


if __name__ == "__main__":
    of_mutants = text({mutant.__name__: diagnoses(mutant) for mutant in RUN})
    DIAGNOSES.write_text(of_mutants, encoding="utf-8")
    of_contexts = {name: known_mistakes(given) for name, given in CONTEXTS.items()}
    MISTAKES.write_text(
        "{\n"
        + ",\n".join(
            f'"{name}": {{\n'
            + ",\n".join(
                f'"{mode}": [\n' + ",\n".join(map(json.dumps, known)) + "\n]"
                for mode, known in of_modes.items()
            )
            + "\n}"
            for name, of_modes in of_contexts.items()
        )
        + "\n}\n",
        encoding="utf-8",
    )
