"""The learning rate of a recipe that moves to another framework."""

import json
import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from adapters.frameworks import LISTED
from adapters.openrlhf.adapter import OpenRLHFAdapter
from conformance import cli
from conformance.comparing.reductions import find_reduction
from conformance.corpus.case_file import load
from conformance.corpus.cases import Case
from conformance.findings.agreement import direction
from conformance.findings.errors import UnknownReductionError
from conformance.judging.weights import final_weights
from conformance.views.conversion import differences
from reference.aggregation import DEFAULT_CONVENTIONS
from tests.adapters import steps
from tests.observing import observe
from tests.pools import released

SAMPLES = [
    {"response_length": 4, "group": "a", "rollout": 0},
    {"response_length": 12, "group": "a", "rollout": 0},
    {"loss_mask": [1] * 7 + [0] * 2, "original_mask": [1] * 9, "group": "b", "rollout": 1},
    {"loss_mask": [0, 0], "group": "b", "rollout": 2},
]
"""Two samples of one rollout, a sample with rejected tokens, and one without active tokens."""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.json"
    case = {
        "schema": "rl-loss-conformance/case/1",
        "name": "mine",
        "divisor": 100,
        "steps": [{"samples": [{"prompt_length": 1, **sample} for sample in SAMPLES]}],
    }
    path.write_text(json.dumps(case))
    return path


@pytest.fixture
def case(step: Path) -> Case:
    return load(step)


@pytest.mark.parametrize(
    ("before", "after", "scale", "cosine"),
    [
        # Of the four samples, three have 4, 12 and 7 active tokens. Their tokens weigh 1/16, 1/48
        # and 1/28 in seq-mean-token-mean, and 1/23 in token-mean.
        ("verl:token-mean", "verl:seq-mean-token-mean", 3 / 4, 0.75 / math.sqrt(23 * 5 / 168)),
        ("verl:seq-mean-token-mean", "verl:token-mean", 126 / 115, 0.75 / math.sqrt(23 * 5 / 168)),
        # SkyRL counts tokens before rejection, so 25 tokens in all, and 16 and 9 by prompt. In
        # prompt_mean, tokens weigh 1/32 and 1/18.
        ("verl:token-mean", "skyrl:token_mean", 23 / 25, 1),
        ("verl:token-mean", "skyrl:prompt_mean", 8 / 9, 8 / 9 / math.sqrt(23 * 193 / 5184)),
        (
            "skyrl:prompt_mean",
            "skyrl:sequence_mean",
            137 / 193,
            137 / 5184 / math.sqrt(193 / 5184 * (4 / 16**2 + 12 / 48**2 + 7 / 36**2)),
        ),
        ("verl:seq-mean-token-sum-norm", "verl:seq-mean-token-sum", 100, 1),
        ("verl:token-mean", "verl:seq-mean-token-sum-norm", 23 / 400, 1),
        # slime's main branch counts three rollouts. Tokens of the first, which has 16, weigh 1/48;
        # tokens of the second, which had 9 before rejection, weigh 1/27.
        (
            "slime:sample_mean",
            "skyrl:sequence_mean",
            411 / 386,
            137 / 7776 / math.sqrt(193 / 11664 * (4 / 16**2 + 12 / 48**2 + 7 / 36**2)),
        ),
        (
            "slime:calculate_per_token_loss",
            "slime:sample_mean",
            400 / 621,
            16 / 27 / math.sqrt(23 * 193 / 11664),
        ),
        ("miles/fsdp:sample_mean", "verl:seq-mean-token-mean", 1, 1),
    ],
)
def test_factor_and_cosine_are_those_worked_out_by_hand(
    case: Case, before: str, after: str, scale: float, cosine: float
) -> None:
    [found] = differences(case, find_reduction(before), find_reduction(after))

    assert found.scale == pytest.approx(scale, rel=1e-12)
    assert found.cosine == pytest.approx(cosine, rel=1e-12)


def test_norm_says_what_a_change_of_direction_adds(case: Case) -> None:
    """A token of the first prompt (16 active) weighs 1/32, of the second (7 of 9 active) 1/18."""
    prompts = find_reduction("skyrl:prompt_mean")
    [found] = differences(case, find_reduction("verl:token-mean"), prompts)

    assert found.norm == pytest.approx(math.sqrt(23 * (16 / 32**2 + 7 / 18**2)), rel=1e-12)


def test_command_prints_both_reductions_and_what_they_differ_in(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--from=verl:token-mean", "--to=slime:sample_mean", str(step)]

    assert cli.main(["convert", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["from", "verl:token-mean"]
    assert lines[1].split()[:2] == ["to", "slime:sample_mean"]
    assert "N counts: sample, then rollout" in lines
    # The scale is 16/48 + 7/27 = 16/27: 16 tokens weigh 1/48 each, and 7 weigh 1/27.
    row = "1 4 23 \N{MULTIPLICATION SIGN} 0.592593 \N{MULTIPLICATION SIGN} 0.616906 0.960589"
    assert row.split() in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("veal:token-mean", "'veal' is no framework.*choose one of .*verl"),
        ("miles/torch:token_mean", "'torch' is no engine of miles.*choose one of megatron, fsdp"),
        ("verl:token_mean", "'token_mean' is no reduction of verl.*seq-mean-token-mean"),
        ("verl", "'' is no reduction of verl"),
    ],
)
def test_unknown_names_are_told_with_the_known_ones(text: str, words: str) -> None:
    with pytest.raises(UnknownReductionError, match=words):
        find_reduction(text)


SETTINGS = {
    "openrlhf": ("deepspeed", LISTED["openrlhf"].source, "dp2-cp1-mb2-thd"),
    "skyrl": ("fsdp", "", "dp2-cp1-mb2-thd"),
    "trl": ("ddp", "", "dp2-cp1-mb2-bshd"),
    "verl": ("fsdp", "", "dp2-cp1-mb2-thd"),
}
"""The engine, the source and the layout that each framework is run with."""


@cache
def observed(reduction: str) -> np.ndarray:
    """The weights of the step of ``steps.MASKED`` that the framework's own train step gives."""
    framework, _, _ = reduction.partition(":")
    engine, source, layout = SETTINGS[framework]
    given = steps.job(mode=find_reduction(reduction).aggregation(1).mode, layout=layout)
    [ran] = observe(framework, source, [given], engine)
    return final_weights(ran.observations, 0, given, DEFAULT_CONVENTIONS)[0]


WITH_VERL = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed"),
]

WITH_BOTH = [*steps.marks("trl"), *steps.marks("openrlhf")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("skyrl:sequence_mean", "skyrl:prompt_mean"),
        pytest.param("skyrl:token_mean", "verl:seq-mean-token-mean", marks=WITH_VERL),
        pytest.param("trl:grpo", "openrlhf:seq-mean-token-mean", marks=WITH_BOTH),
        pytest.param("openrlhf:token-mean", "trl:grpo", marks=WITH_BOTH),
        pytest.param("trl:dapo", "openrlhf:seq-mean-token-mean", marks=WITH_BOTH),
    ],
)
def test_factor_is_that_of_the_weights_which_train_steps_give(before: str, after: str) -> None:
    if "openrlhf" in before + after:
        released(OpenRLHFAdapter(), LISTED["openrlhf"].source)
    old, new = observed(before), observed(after)
    [said] = differences(steps.MASKED, find_reduction(before), find_reduction(after))

    assert direction(new, old) == pytest.approx((said.scale, said.cosine), rel=1e-6)


def test_a_gradient_that_is_not_finite_has_no_direction() -> None:
    assert direction(np.array([np.inf, -np.inf]), np.array([0.0, 1.0])) == (None, None)
