"""Configurations of slime's toy: some are refused, at startup or later, and the others are trained.

Configurations of slime and miles themselves are in committed reports (`test_as_reported`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.contract import Depth, Job, Layout, LogEntry
from adapters.contract.job import REDUCER_DIVISOR, Configuration, Setting
from adapters.contract.objective import Objective
from conformance.corpus.cases import CORPUS
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights
from tests.observing import aggregate, observe
from tests.toys import Edit, checkout
from tests.toys.running import find, verdicts

[STEP] = next(case.steps for case in CORPUS if case.name == "uneven_lengths")
"""Eight samples in groups of two."""

PACKED = Layout.parse("dp1-cp1-mb2-thd")


def job(mode: str, *, layout: Layout = PACKED, **configured: Any) -> Job:
    return Job(
        steps=(STEP,),
        aggregation=Aggregation(Mode(mode), 40.0 if mode == "constant" else None),
        layout=layout,
        depth=Depth.STEP,
        objective=Objective.POLICY,
        configuration=Configuration(**configured),
    )


def weights(outcome: object) -> np.ndarray[Any, Any]:
    """The weights of a job that was accepted."""
    assert isinstance(outcome, Ran), outcome
    return outcome.observations[0].token_weights[0]


def expected(mode: str, divisor: float | None = None) -> np.ndarray[Any, Any]:
    return np.asarray(token_weights(STEP, Aggregation(Mode(mode), divisor)), np.float64)


def test_toy_refuses_what_is_wrong_and_trains_what_is_right(tmp_path: Path) -> None:
    """This holds for all configurations of the corpus, and for faulty data and logs."""
    layouts, inputs = ["dp1-cp1-mb2-thd"], "arguments. or boundary_ or logging/"
    found = find(tmp_path, checkout(tmp_path / "slime"), layouts, "dp1", subjects=inputs)

    assert verdicts(found) == {"conforms", "refused", "unsupported"}
    unsupported = [one.message for one in found if one.verdict == "unsupported"]
    lacking = ("by its conventions nothing is wrong", "no separate normalizers")
    assert all(message.startswith(lacking) for message in unsupported)
    [in_a_file] = [one.message for one in found if "divisor_bool_in_file" in one.id]
    assert in_a_file == "ValueError: --loss-aggregation-divisor is True and has to be positive"


def test_custom_reducer_takes_precedence_where_sequences_are_sliced(tmp_path: Path) -> None:
    modes, sliced = ["sample_mean", "prompt_mean", "constant"], Layout.parse("dp1-cp2-mb2-thd")
    jobs = [job(mode, layout=sliced, reduces=True) for mode in modes]

    for outcome in observe("slime", str(checkout(tmp_path / "slime")), jobs):
        assert np.allclose(weights(outcome), expected("constant", REDUCER_DIVISOR), rtol=1e-6)


@pytest.mark.parametrize(("error", "verdict"), [("ValueError", Declined), ("KeyError", Crashed)])
def test_objections_of_a_train_step_refuse_configurations_that_are_not_ordinary(
    tmp_path: Path, error: str, verdict: type
) -> None:
    edit = Edit(
        "terms.py", 'gain = torch.cat(batch["advantages"])', f'raise {error}("not on a Sunday")'
    )
    source = checkout(tmp_path / "slime", edit)
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
    source = checkout(tmp_path / "slime", *edits)
    jobs = [job("sample_mean", in_file=frozenset({Setting.MODE})), job("sample_mean")]
    in_a_file, typed = observe("slime", str(source), jobs)

    assert in_a_file == Declined("unsupported", "no option config_file")
    assert np.allclose(weights(typed), expected("sample_mean"), rtol=1e-6)


def test_version_that_makes_logs_inside_its_train_step_makes_no_others(tmp_path: Path) -> None:
    edit = Edit(
        "backends/megatron_utils/cp_utils.py", "def reduce_train_step_metrics", "def _reduce"
    )
    source = checkout(tmp_path / "slime", edit)

    [(outcome, _)] = aggregate(
        "slime", str(source), [[LogEntry(keys=("a",), values=(1.0,), count=4.0)]]
    )
    assert outcome == ("no function that aggregates logs: the train step does it itself")
