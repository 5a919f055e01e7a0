"""Right trainers that clip gradients, scale losses or skip steps get advice, and are not accused.

Each trainer is `tests/tinyrl` with a few added lines that real trainers have, driven by the adapter
that docs/adapters.md shows.
"""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adapters.contract import Description, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import ADVANTAGES
from adapters.contract.objective import Metric, Objective
from adapters.toolkit.probe import GradientReader
from conformance import cli
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages
from conformance.judging.metrics import judge_logged
from conformance.judging.rescaling import trial
from conformance.judging.weights import Trained, judge_weights
from reference.aggregation import Aggregation, Mode
from reference.weights import token_weights
from tests import command
from tests.documents import TINYRL, run_cli, write_tinyrl
from tests.jobs import job_of, step_of

OPTIMIZER_STEP = "        self.optimizer.step()\n"
BACKWARD = "(loss * self.world_size).backward()"
PARAMETERS = "self.model.parameters()"


def before_the_step(line: str) -> str:
    """The code of the trainer with a line inserted before its optimizer step."""
    assert OPTIMIZER_STEP in TINYRL
    return TINYRL.replace(OPTIMIZER_STEP, f"        {line}\n{OPTIMIZER_STEP}")


def with_divisor_of_zero(trainer: str = TINYRL) -> str:
    """The code of the trainer, changed so that steps without active tokens have NaN gradients."""
    assert "total.clamp(min=1)" in trainer
    return trainer.replace("total.clamp(min=1)", "total")


CLIPPING = before_the_step(f"torch.nn.utils.clip_grad_norm_({PARAMETERS}, 1.0)")
CLIPPING_TO_LITTLE = before_the_step(f"torch.nn.utils.clip_grad_norm_({PARAMETERS}, 0.037)")
CLIPPING_VALUES = before_the_step(f"torch.nn.utils.clip_grad_value_({PARAMETERS}, 0.05)")
SCALING = TINYRL.replace(BACKWARD, "(loss * self.world_size * 2.0**16).backward()")
UNSCALING = TINYRL.replace(
    "        self.optimizer = ",
    '        self.scaler = torch.amp.GradScaler("cpu")\n        self.optimizer = ',
)
UNSCALING = UNSCALING.replace(BACKWARD, "self.scaler.scale(loss * self.world_size).backward()")
UNSCALING = UNSCALING.replace(
    OPTIMIZER_STEP, "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n"
)
SKIPPING = with_divisor_of_zero().replace(
    OPTIMIZER_STEP,
    f"        norm = torch.nn.utils.clip_grad_norm_({PARAMETERS}, float('inf'))\n"
    "        if torch.isfinite(norm):\n            self.optimizer.step()\n",
)

DRAINING = "            logs = [trainer.train_step(samples) for samples in batches_of(batch)]\n"
TAKING = """\
            logs, taken = [], []
            for samples in batches_of(batch):
                logs.append(trainer.train_step(samples))
                taken.append(gradients.take())
"""


def write(folder: Path, trainer: str) -> str:
    """Write the trainer and its adapter, which takes each step's gradient if some are skipped."""
    assert trainer != TINYRL
    place = write_tinyrl(folder, trainer)
    if trainer == SKIPPING:
        path = folder / f"{place.partition(':')[0].replace('.', '/')}.py"
        code = path.read_text()
        assert DRAINING in code
        code = code.replace(DRAINING, TAKING).replace(
            "batch.weights_of_steps(gradients.drain()),",
            "batch.weights_of_steps(taken),\n            skipped_steps=frozenset(\n"
            "                index for index, one in enumerate(taken) if one is None\n"
            "            ),",
        )
        path.write_text(code)
    return place


FEW = ("--layout=dp2-cp1-mb2-thd", "--checks=weights,metric,off_policy", "--modes=token_mean")
CASES = ("-k", "one_token or no_active_token or two_steps or uneven_lengths")


@pytest.mark.parametrize(
    ("trainer", "name", "says", "shown"),
    [
        (CLIPPING, "gradients_clipped", "clipped to norm 1 before the optimizer reads them", 1),
        (CLIPPING_TO_LITTLE, "gradients_clipped", "are clipped to norm 0.037 before", 4),
        (CLIPPING_VALUES, "gradient_values_clipped", "to values of at most 0.05 before", 4),
        (SCALING, "loss_scaled", "65536 = 2^16 times the right one", 4),
        (SKIPPING, "step_skipped", "its gradient is NaN or infinite; none of its tokens is", 2),
    ],
    ids=["norm", "small norm", "values", "loss scale", "skipped steps"],
)
def test_run_names_what_a_right_trainer_does_to_gradients_and_accuses_nothing(
    tmp_path: Path, trainer: str, name: str, says: str, shown: int
) -> None:
    """``shown`` findings are advice; in others gradients are too small, zero or not skipped."""
    result = command.run(tmp_path, write(tmp_path, trainer), *FEW, *CASES)
    report = command.load(tmp_path / "reports" / "latest" / "tinyrl.json")
    verdicts = Counter(finding.verdict for finding in report.findings)

    assert result.status == 0, result.output
    assert verdicts.keys() <= {Verdict.CONFORMS, Verdict.ADVICE, Verdict.UNSUPPORTED}
    assert verdicts[Verdict.ADVICE] == shown
    assert [cause.name for cause in report.causes] == [name]
    assert says in " ".join(result.output.split())


def test_skipped_step_that_the_adapter_does_not_hand_over_is_not_driven(tmp_path: Path) -> None:
    """The adapter is that of docs/adapters.md: it reads the gradients of all steps at the end."""
    place = write_tinyrl(tmp_path, SKIPPING)
    result = command.run(tmp_path, place, *FEW, "-k", "weights and no_active_token")
    [found] = command.load(tmp_path / "reports" / "latest" / "tinyrl.json").findings

    assert found.verdict is Verdict.NOT_DRIVEN
    assert "0 optimizer steps were made of 1; if the trainer skips steps" in result.output
    assert "GradientReader.take" in result.output


def test_loss_scaler_that_unscales_before_the_step_is_right(tmp_path: Path) -> None:
    result = command.run(tmp_path, write(tmp_path, UNSCALING), *FEW, *CASES)

    assert result.status == 0, result.output
    assert "advice" not in result.output


def test_what_is_wrong_besides_clipping_is_still_a_mismatch(tmp_path: Path) -> None:
    """Masked tokens have a weight in a trainer that clips to norm 0.037."""
    trainer = CLIPPING_TO_LITTLE.replace("* mask * weight", "* weight")
    result = command.run(tmp_path, write(tmp_path, trainer), *FEW, "-k", "uneven_lengths")

    assert result.status == 1
    assert "[inactive_tokens_weigh]" in result.output


def test_factor_of_all_gradients_is_not_taken_for_clipping(tmp_path: Path) -> None:
    trainer = TINYRL.replace(BACKWARD, "loss.backward()")
    result = command.run(tmp_path, write(tmp_path, trainer), *FEW, *CASES)

    assert result.status == 1
    assert "[divided_by_dp]" in result.output
    assert "clipped" not in result.output


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        (CLIPPING, "gradients_clipped in .* to norm 1 before .* Turn clipping off where the adapt"),
        (CLIPPING_TO_LITTLE, "gradients_clipped in sample_mean.* to norm 0.037 before"),
        (CLIPPING_VALUES, "gradient_values_clipped in sample_mean.* of at most 0.05 before"),
        (SCALING, "loss_scaled in sample_mean.* Read gradients after they are unscaled"),
    ],
    ids=["norm", "small norm", "values", "loss scale"],
)
def test_check_adapter_names_what_the_trainer_does_to_gradients(
    tmp_path: Path, trainer: str, says: str
) -> None:
    status, output = run_cli(tmp_path, "check-adapter", write(tmp_path, trainer))
    text = " ".join(output.split())

    assert status == cli.WORSE
    assert re.match(says, text)
    assert "framework's own mistake" not in text


@pytest.mark.parametrize("trainer", [UNSCALING, SKIPPING], ids=["unscaled", "skipped steps"])
def test_check_adapter_has_no_complaint_about_what_is_right(tmp_path: Path, trainer: str) -> None:
    status, output = run_cli(tmp_path, "check-adapter", write(tmp_path, trainer))

    assert status == 0, output


ONE, NONE = (step_of([active] * 2, [active] * 2, groups=[0, 1]) for active in (1, 0))


def test_skipped_step_with_active_tokens_is_a_mismatch_of_that_name() -> None:
    skipped = Observation(token_weights=(np.zeros(4),), skipped_steps=frozenset({0}))
    judgement = judge_weights(Trained(job_of(ONE), [skipped], Description()))

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "step_skipped"
    assert "4 active tokens are not trained on" in judgement.diagnosis.explanation
    assert judgement.clues.explanations == [[["policy_loss/step_skipped"]]]


def test_a_skipped_step_is_no_step_whose_advantages_are_all_0() -> None:
    step = replace(ONE, rewards=np.array([0.5, 0.5]), groups=np.array([0, 0]))
    given = replace(job_of(step), objective=Objective.GROUP_NORMALISED)
    trained = Observation(token_weights=(np.zeros(4),))
    skipped = replace(trained, skipped_steps=frozenset({0}))

    assert judge_advantages(Trained(given, [trained], Description())).verdict is Verdict.CONFORMS
    assert (
        judge_advantages(Trained(given, [skipped], Description())).diagnosis.name == "step_skipped"
    )


def test_nan_that_is_logged_of_a_skipped_step_has_the_same_cause() -> None:
    skipped = Observation(
        token_weights=(np.zeros(4),),
        skipped_steps=frozenset({0}),
        reported={Metric.POLICY_LOSS: (float("nan"),)},
    )
    judgement = judge_logged(Trained(job_of(ONE), [skipped], Description()))

    assert judgement.diagnosis.name == "step_skipped"
    assert judgement.clues.explanations == [[["policy_loss/step_skipped"]]]


def test_step_after_a_skipped_one_is_judged() -> None:
    right = token_weights(ONE, Aggregation(Mode.TOKEN_MEAN))
    seen = Observation(token_weights=(np.zeros(4), right), skipped_steps=frozenset({0}))
    wrong = replace(seen, token_weights=(np.zeros(4), right / 2))

    assert (
        judge_weights(Trained(job_of(NONE, ONE), [seen], Description())).verdict is Verdict.ADVICE
    )
    assert (
        judge_weights(Trained(job_of(NONE, ONE), [wrong], Description())).verdict
        is Verdict.MISMATCH
    )


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2, micro_batches=2), Layout(dp=3)], ids=str)
def test_trial_has_two_steps_of_large_gradients_with_different_norms(layout: Layout) -> None:
    """By hand: n tokens of advantage -4 weigh 1 / n; n more, of advantage 1, halve all weights."""
    tried = trial(replace(job_of(ONE), layout=layout))
    batch = ProbedBatch(tried.steps)
    samples = tried.steps[0].size
    norms = [
        float(np.linalg.norm(token_weights(step, tried.aggregation) * derivatives))
        for step, derivatives in zip(tried.steps, batch.split(batch.dloss_dlogprob), strict=True)
    ]

    assert samples >= layout.dp * int(layout.micro_batches)
    assert np.abs(ADVANTAGES).max() == 4
    assert norms == pytest.approx([4 / samples**0.5, 17**0.5 / 2 / samples**0.5])


def test_reader_hands_over_a_step_at_a_time_and_none_for_a_skipped_one() -> None:
    probe = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([probe], lr=0.0)
    reader = GradientReader(optimizer)
    probe.grad = torch.ones(2)
    optimizer.step()

    assert reader.take() == pytest.approx(np.ones(2))
    assert reader.take() is None
    optimizer.step()
    optimizer.step()
    with pytest.raises(ValueError, match="2 optimizer steps were made of 1"):
        reader.take()
