"""``check-adapter`` names the faults of an adapter, and no others."""

import re
from pathlib import Path

import pytest

from conformance import cli
from tests import command
from tests.minimal import broken
from tests.minimal.right import MinimalAdapter


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status and what is printed, on one line."""
    status = cli.main(["check-adapter", *arguments])
    return status, " ".join(capsys.readouterr().out.split())


COMPLAINTS = {
    broken.ReturningGradients: (
        "gradients_returned",
        "holds the gradients of the probe and not the weights: divide them by"
        " ProbedBatch.dloss_dlogprob",
    ),
    broken.NegatingWeights: ("wrong_sign", "every weight has the wrong sign"),
    broken.TakingOneAdvantagePerSample: (
        "advantages_per_sample",
        "all tokens of a sample have the gradient of one advantage, that of its first token",
    ),
    broken.NotZeroingTheGradient: (
        "gradient_not_zeroed",
        "the second of two equal jobs gives the sum of both",
    ),
    broken.NotZeroingTheGradientOnOneRank: (
        "gradient_not_zeroed",
        "the gradient of the probe is not set to 0 after it was read",
    ),
    broken.MovingTheProbe: (
        "state_left_behind",
        "has its optimizer step changed the probe? It must be 0 again, so give a learning rate of",
    ),
    broken.MovingTheProbeOnOneRank: ("state_left_behind", "so something of the first is left"),
    broken.RecordingNoForwardPasses: (
        "forward_passes_not_recorded",
        "describe() declares records_forward_passes, and 80 of 80 tokens are in none",
    ),
    broken.RecordingNoPrompts: (
        "prompts_not_recorded",
        "the first token of every response is in no forward pass",
    ),
    broken.PaddingWithTheIdOfAToken: (
        "padding_has_the_id_of_a_token",
        "1 of 93 tokens are in a forward pass without the rest of their sample: token 15 of sample"
        " 7. Is padding given the id of a token?",
    ),
    broken.RunningIntoTheNextSample: (
        "padding_reaches_the_probe",
        "69 of 93 tokens have another weight than the rest of their sample",
    ),
    broken.TakingOldLogProbsOfZero: (
        "ratio_not_one",
        "the ratio of the new to the old policy is 1.604e-28 and not exactly 1, so that tokens with"
        " negative advantages are clipped: new log-probabilities are the old ones -64.",
    ),
    broken.TrainingAPlainSoftmax: (
        "derivative_not_one",
        "the derivative of a log-probability by the probe is 0.9980469 = 1 - 1/512 and not 1: the"
        " model's logits are those of a plain softmax over 512 tokens. Use"
        " adapters.toolkit.probe.logits_head",
    ),
    broken.TrainingAPlainSoftmaxOffPolicy: (
        "ratio_not_one",
        "new log-probabilities are the old ones -6.24 (a plain softmax over 512 tokens gives 1/512",
    ),
    broken.TakingTheProbeForLogits: (
        "depends_on_the_whole_probe",
        "the log-probability of every token depends on the whole probe",
    ),
    broken.AddingTheProbeOfTheInput: (
        "probe_of_another_token",
        "each token has the weight of the token after it",
    ),
    broken.DetachingTheProbe: ("no_gradient", "the gradient of the probe is 0 for every token"),
    broken.DeclaringAModeItLacks: (
        "declared_and_not_delivered",
        "describe() declares all that this job needs, and observe() raised Unsupported: no prompt",
    ),
    broken.DeclaringAMetricItDoesNotLog: (
        "declared_and_not_delivered",
        "the adapter reads no policy_loss, of ordinary steps neither",
    ),
    broken.IgnoringTheConfiguration: (
        "configuration_ignored",
        "it declares that a configuration may set mode, and tokens weigh the same whatever is set",
    ),
    broken.RefusingTwoRanks: (
        "refused",
        "an ordinary step is refused: batch size 8 is not divisible by 3",
    ),
    broken.ReturningOneArray: (
        "wrong_shape",
        "an entry for each response token: [80, 80] entries, and it has the shapes [(160,)]",
    ),
    broken.NotDrainingTheReader: (
        "not_driven",
        "every job must start with an empty GradientReader",
    ),
    broken.LosingGradientsOffPolicy: (
        "declared_and_not_delivered",
        "RuntimeError: 0 optimizer steps were made of 1",
    ),
    broken.DeclaringNoObjective: ("nothing_to_run", "declares no objectives policy"),
    broken.DeclaringNoDevice: (
        "nothing_to_run",
        'before the class has devices = ("cpu",) and a layout in layouts()',
    ),
}
"""The name of the complaint about each broken adapter, and words of it."""


@pytest.mark.parametrize("adapter", COMPLAINTS, ids=lambda adapter: adapter.__name__)
def test_broken_adapter_is_told_what_is_wrong(
    capsys: pytest.CaptureFixture[str], adapter: type[MinimalAdapter]
) -> None:
    name, words = COMPLAINTS[adapter]
    status, text = printed(capsys, f"{broken.__name__}:{adapter.__name__}")

    assert status == cli.WORSE
    assert text.startswith(f"{name} in ")
    assert words in text
    assert "may be the framework's own mistake" not in text


def test_every_broken_adapter_is_looked_at() -> None:
    classes = [one for one in vars(broken).values() if isinstance(one, type)]

    assert {
        one
        for one in classes
        if issubclass(one, MinimalAdapter) and one.__module__ == broken.__name__
    } == {*COMPLAINTS}


NOT_SHOWN = "nothing that could be run shows it"


@pytest.mark.parametrize(
    ("adapter", "status", "words", "absent"),
    [
        (
            "tests.minimal.right:MinimalAdapter",
            0,
            "^6 findings show nothing wrong. Not declared, and so never run: modes: prompt_mean,"
            " constant depths: loss, reducer objectives: off_policy, ",
            NOT_SHOWN,
        ),
        ("native", 0, "findings show nothing wrong", NOT_SHOWN),
        (
            "tests.minimal.mistaken:DrivingAMistake",
            0,
            "which may be the framework's own mistake in weights/sample_mean/.* show nothing wrong",
            "Traceback",
        ),
        (
            "tests.minimal.mistaken:ListingALayoutOfOtherVersions",
            0,
            f"Declared, and {NOT_SHOWN}: layout dp1-cp1-mb1-thd.",
            "Traceback",
        ),
        ("tests.minimal.mistaken:HavingALossOfOneMode", 0, "show nothing wrong", NOT_SHOWN),
        (
            "tests.broken:OneTokenShort",
            cli.WORSE,
            "^factor, which may be the framework's own mistake in sample_mean, depth .* every"
            " weight is 1.015873 times as large as it should be",
            "Traceback",
        ),
    ],
)
def test_what_is_right_or_of_the_framework_is_no_complaint_about_the_adapter(
    capsys: pytest.CaptureFixture[str], adapter: str, status: int, words: str, absent: str
) -> None:
    found, text = printed(capsys, adapter)

    assert found == status
    assert re.search(words, text), text
    assert absent not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "adapter 'nobody' is unknown; installed are .* or as module:Class"),
        (["native", "--engine=jax"], "engine 'jax' is none of native's; choose torch"),
        (["native", "--source=."], "native has no source of its own"),
        (
            ["tests.minimal.nowhere:Adapter"],
            "cannot be imported: No module named 'tests.minimal.no",
        ),
        (["tests.minimal.right:Nobody"], "has no attribute 'Nobody'; name a module in the current"),
        (["tests.minimal.right:Trainer"], "is no adapters.contract.Adapter"),
        (["tests/minimal/right.py:Trainer"], "is not of the form module:Class; write my_package"),
        (
            ["tests.minimal.unfinished:WithoutObserve"],
            r"class WithoutObserve of tests.minimal.unfinished lacks describe\(\), observe\(\); ",
        ),
        (["tests.minimal.unfinished:WithoutAName"], "class WithoutAName of .* lacks name; docs/"),
        (["tests.broken:Unloadable"], r"(?s)cannot be loaded: ImportError: .*rank [01] raised"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.main(["check-adapter", *arguments]) == cli.USAGE_ERROR
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize("unfinished", ["WithoutObserve", "WithoutAName"])
def test_unfinished_class_is_one_line_of_a_run(tmp_path: Path, unfinished: str) -> None:
    result = command.run(tmp_path, f"tests.minimal.unfinished:{unfinished}", "--checks=weights")

    assert result.status == pytest.ExitCode.USAGE_ERROR, result.output
    assert f"ERROR: class {unfinished} of tests.minimal.unfinished lacks " in result.output
    assert "Traceback" not in result.output
    assert "INTERNALERROR" not in result.output
