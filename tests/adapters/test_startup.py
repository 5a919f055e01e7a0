"""Configurations of toys of slime and miles: what is refused, at startup or later, and what not.

Those of the two themselves are in their committed reports (`test_as_reported`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.contract import Depth, Job, Layout, LogEntry
from adapters.contract.job import REDUCER_DIVISOR, Configuration, FaultInjection, Setting
from adapters.contract.objective import Objective
from conformance.corpus.cases import CORPUS
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights
from tests.observing import aggregate, observe
from tests.toys import Edit, checkout

[STEP] = next(case.steps for case in CORPUS if case.name == "uneven_lengths")
"""Eight samples in groups of two."""

PACKED, PADDED = Layout.parse("dp1-cp1-mb2-thd"), Layout.parse("dp1-cp2-mb2-bshd")

ADAPTERS = pytest.mark.parametrize("adapter", ["slime", "miles"])


def job(mode: str, *, layout: Layout = PACKED, **configured: Any) -> Job:
    return Job(
        steps=(STEP,),
        aggregation=Aggregation(Mode(mode), 40.0 if mode == "constant" else None),
        layout=layout,
        depth=Depth.STEP,
        objective=Objective.POLICY,
        configuration=Configuration(**configured),
    )


def in_file(*settings: Setting) -> frozenset[Setting]:
    return frozenset(settings)


def words(outcome: object) -> str:
    """Of a refusal."""
    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == "refused", outcome
    return outcome.message


def weights(outcome: object) -> np.ndarray[Any, Any]:
    """Of what was accepted."""
    assert isinstance(outcome, Ran), outcome
    return outcome.observations[0].token_weights[0]


def expected(mode: str, divisor: float | None = None) -> np.ndarray[Any, Any]:
    return np.asarray(token_weights(STEP, Aggregation(Mode(mode), divisor)), np.float64)


def toy(folder: Path, adapter: str) -> str:
    return str(checkout(folder / adapter, adapter))


REFUSED = {
    "no divisor": (job("constant", divisor=""), "--loss-aggregation-divisor is None"),
    "a typed number": (job("constant", divisor="nan"), "is nan and has to"),
    "a typed word": (
        job("constant", divisor="abc"),
        "ArgumentError: argument --loss-aggregation-divisor: invalid float value",
    ),
    **{
        f"{text} in the file": (
            job("constant", divisor=text, in_file=in_file(Setting.DIVISOR)),
            f"is {read} and has to be positive",
        )
        for text, read in {"0": "0", "-inf": "-inf", "true": "True", "abc": "'abc'"}.items()
    },
    "divisor of another mode": (
        job("token_mean", divisor="40"),
        "--loss-aggregation=token_mean takes no --loss-aggregation-divisor",
    ),
    "both spellings": (job("constant", per_token=True), "contradicts --calculate-per-token-loss"),
    "both spellings in the file": (
        job("prompt_mean", per_token=True, in_file=in_file(Setting.MODE, Setting.PER_TOKEN)),
        "contradicts --calculate-per-token-loss",
    ),
    "custom correction": (job("prompt_mean", corrects=True), "--custom-tis-function-path"),
    "odd batch": (job("prompt_mean", batch_size=3), "--global-batch-size is no multiple"),
    "odd batch in the file": (
        job("prompt_mean", batch_size=3, in_file=in_file(Setting.BATCH_SIZE)),
        "--global-batch-size is no multiple",
    ),
    **{
        fault: (job("prompt_mean", fault_injection=fault), words)
        for fault, words in {
            FaultInjection.GROUPS_MISSING: "needs whole groups",
            FaultInjection.GROUP_INCOMPLETE: (
                "needs whole groups of --n-samples-per-prompt: [1, 1, 2, 2, 2]"
            ),
            FaultInjection.DENOMINATORS_DROPPED: "needs prompt_mask_sums of custom train data",
            FaultInjection.BOUNDARY_GAP: "[1, 0, 7, 7, 20, 20, 5, 5]",
            FaultInjection.BOUNDARY_OVERLAP: "[5, 5, 7, 7, 20, 20, 5, 5]",
            FaultInjection.BOUNDARY_SHORT: "[3, 3, 7, 7, 20, 20, 3]",
        }.items()
    },
}


@ADAPTERS
def test_toys_refuse_in_their_own_words_wherever_they_find_it(tmp_path: Path, adapter: str) -> None:
    jobs = [refused for refused, _ in REFUSED.values()]
    outcomes = observe(adapter, toy(tmp_path, adapter), jobs)

    for name, outcome in zip(REFUSED, outcomes, strict=True):
        assert REFUSED[name][1] in words(outcome), name


ACCEPTED = {
    "default mode": (job("sample_mean", says_mode=False), "sample_mean"),
    "flag alone": (job("token_mean", says_mode=False, per_token=True), "token_mean"),
    "flag alone in the file": (
        job("token_mean", says_mode=False, per_token=True, in_file=in_file(Setting.PER_TOKEN)),
        "token_mean",
    ),
    "mode in the file": (job("prompt_mean", in_file=in_file(Setting.MODE)), "prompt_mean"),
    "batch in the file": (
        job("prompt_mean", batch_size=8, in_file=in_file(Setting.BATCH_SIZE)),
        "prompt_mean",
    ),
    "divisor in the file": (job("constant", in_file=in_file(Setting.DIVISOR)), "constant"),
    "custom correction": (job("constant", corrects=True), "constant"),
    "groups that are not requested": (
        job("sample_mean", fault_injection=FaultInjection.GROUPS_MISSING),
        "sample_mean",
    ),
}


@ADAPTERS
def test_toys_accept_what_says_the_same_as_the_ordinary_configuration(
    tmp_path: Path, adapter: str
) -> None:
    modes = sorted({mode for _, mode in ACCEPTED.values()})
    jobs = [*map(job, modes), *(accepted for accepted, _ in ACCEPTED.values())]
    outcomes = observe(adapter, toy(tmp_path, adapter), jobs)
    ordinary = dict(zip(modes, outcomes, strict=False))

    for (name, (_, mode)), outcome in zip(ACCEPTED.items(), outcomes[len(modes) :], strict=True):
        assert np.array_equal(weights(outcome), weights(ordinary[mode])), name
        assert np.allclose(
            weights(outcome), expected(mode, 40.0 if mode == "constant" else None), rtol=1e-6
        )


@ADAPTERS
@pytest.mark.parametrize("layout", ["dp1-cp1-mb2-thd", "dp1-cp2-mb2-thd"])
def test_custom_reducer_takes_precedence_over_every_mode(
    tmp_path: Path, adapter: str, layout: str
) -> None:
    modes = ["sample_mean", "prompt_mean", "constant"]
    jobs = [job(mode, layout=Layout.parse(layout), reduces=True) for mode in modes]

    for outcome in observe(adapter, toy(tmp_path, adapter), jobs):
        assert np.allclose(weights(outcome), expected("constant", REDUCER_DIVISOR), rtol=1e-6)


@pytest.mark.parametrize(("error", "verdict"), [("ValueError", Declined), ("KeyError", Crashed)])
def test_objections_of_a_train_step_refuse_configurations_that_are_not_ordinary(
    tmp_path: Path, error: str, verdict: type
) -> None:
    edit = Edit(
        "terms.py", 'gain = torch.cat(batch["advantages"])', f'raise {error}("not on a Sunday")'
    )
    source = checkout(tmp_path / "slime", "slime", edit)
    jobs = [job("sample_mean"), job("sample_mean", says_mode=False)]
    ordinary, configured = observe("slime", str(source), jobs)

    assert isinstance(ordinary, Crashed)
    assert isinstance(configured, verdict)
    assert "not on a Sunday" in configured.message


def test_version_without_a_configuration_file_reads_none(tmp_path: Path) -> None:
    edits = (
        Edit("lineage.py", '    parser.add_argument("--custom-config-path", type=Path)\n', ""),
        Edit("lineage.py", "if args.custom_config_path is not None:", "if False:"),
    )
    source = checkout(tmp_path / "slime", "slime", *edits)
    jobs = [job("sample_mean", in_file=in_file(Setting.MODE)), job("sample_mean")]
    in_a_file, typed = observe("slime", str(source), jobs)

    assert in_a_file == Declined("unsupported", "no option config_file")
    assert np.allclose(weights(typed), expected("sample_mean"), rtol=1e-6)


def test_other_engine_of_miles_is_configured_alike(tmp_path: Path) -> None:
    layout = Layout.parse("dp1-cp1-mb2-thd")
    told = "error: argument --loss-aggregation-divisor: invalid float value"
    jobs = [
        job("constant", layout=layout, divisor="abc"),
        job("constant", layout=layout, divisor="true", in_file=in_file(Setting.DIVISOR)),
        job("prompt_mean", layout=layout, fault_injection=FaultInjection.DENOMINATORS_DROPPED),
        job("prompt_mean", layout=layout, reduces=True),
    ]
    typed, in_a_file, dropped, reduced = observe("miles", toy(tmp_path, "miles"), jobs, "fsdp")

    assert words(typed) == f"ArgumentError: {told.partition(' ')[2]}: 'abc'"
    assert "is True and has to be positive" in words(in_a_file)
    assert "needs prompt_mask_sums" in words(dropped)
    assert np.allclose(weights(reduced), expected("constant", REDUCER_DIVISOR), rtol=1e-6)


def entry(values: tuple[float, ...], keys: str = "ab", **others: Any) -> LogEntry:
    return LogEntry(keys=tuple(keys), values=values, **others)


PLAIN = entry((1.0, 2.0), count=4.0)
NORMALIZED = entry((1.0, 2.0), normalizers=(4.0, 2.0))
NO_NORMALIZERS = "no separate normalizers for logged values"


def test_toys_make_logs_or_raise_without_asserts_too(tmp_path: Path) -> None:
    logs = [
        [PLAIN, PLAIN],
        [NORMALIZED, NORMALIZED],
        [PLAIN, entry((1.0, 2.0), "ba")],
        [entry((1.0,), count=4.0)],
    ]
    made = aggregate("slime", toy(tmp_path, "slime"), logs)

    for plain, normalized, order, short in zip(*made, strict=True):
        assert plain == {"a": 0.25, "b": 0.5}
        assert normalized == NO_NORMALIZERS
        assert order.startswith("ValueError")
        assert short.startswith("ValueError")


def test_toy_with_normalizers_divides_by_them(tmp_path: Path) -> None:
    logs = [[NORMALIZED, NORMALIZED], [NORMALIZED, PLAIN], [PLAIN]]
    normalized, mixed, plain = aggregate("miles", toy(tmp_path, "miles"), logs)

    assert normalized[0] == {"a": 0.25, "b": 1.0}
    assert mixed[0].startswith("ValueError")
    assert plain[0] == {"a": 0.25, "b": 0.5}


def test_version_that_makes_logs_inside_its_train_step_makes_no_others(tmp_path: Path) -> None:
    edit = Edit(
        "backends/megatron_utils/cp_utils.py", "def reduce_train_step_metrics", "def _reduce"
    )
    source = checkout(tmp_path / "slime", "slime", edit)

    [(outcome, _)] = aggregate("slime", str(source), [[PLAIN]])
    assert outcome == ("no function that aggregates logs: the train step does it itself")
