"""One mistake is one cause with the right name, and its line comes first."""

import pytest
import torch

from tests.own_trainer import loops
from tests.own_trainer.telling import bug_line, causes, first_suspect, told
from tests.own_trainer.trainers import ddp, fsdp, packed

pytestmark = pytest.mark.processes


def sample_mean_loop(loss_conformance, trainer_class):
    """The test of a trainer of `sample_mean`; the right logged number rules out other mistakes."""
    for step in loss_conformance(mode="sample_mean", dp=(1, 2), micro_batches=(1, 2)):
        loops.ddp_step(step, trainer_class)
        pairs = zip(step.advantages("sample", step.batch), step.batch, strict=True)
        losses = [-float(advantage) for advantage, s in pairs if s.mask.any()]
        step.logged(policy_loss=sum(losses) / len(step.batch))


class FSDPAveragedTwice(fsdp.Policy):
    def normalise(self, per_token, mask, total):
        return torch.where(mask > 0, per_token, 0.0).sum() / total  # bug


@pytest.mark.parametrize(
    ("loop", "wrong", "name"),
    [
        (loops.ddp_loop, ddp.AveragedTwice, "divided_by_dp"),
        pytest.param(
            *(sample_mean_loop, ddp.SampleMeanAveragedTwice, "divided_by_dp"),
            marks=pytest.mark.thorough,
        ),
        (sample_mean_loop, ddp.SampleMeanDividedTwice, "divided_by_micro_batches"),
        pytest.param(
            *(loops.packed_loop, packed.PackedMean, "packed_length_as_divisor"),
            marks=pytest.mark.thorough,
        ),
        (loops.packed_loop, packed.PackedRowAsDivisor, "packed_length_as_divisor"),
    ],
)
def test_one_mistake_is_one_cause(loss_conformance, loop, wrong, name):
    words = told(loss_conformance, loop, wrong)

    assert causes(words) == [name]
    assert first_suspect(words) == (wrong.__module__.rpartition(".")[2], bug_line(wrong))


def test_fsdp_averages_as_well(loss_conformance):
    words = told(loss_conformance, loops.fsdp_loop, FSDPAveragedTwice)

    assert causes(words) == ["divided_by_dp"]
    assert f"suspect 1: tests/own_trainer/test_causes.py:{bug_line(FSDPAveragedTwice)}" in words
    assert "with 11.5 (active tokens of the step / ranks) instead of 23" in words


def test_a_right_mean_over_samples_conforms(loss_conformance):
    sample_mean_loop(loss_conformance, ddp.SampleMean)


def test_a_step_that_breaks_with_other_values_is_judged_all_the_same(pytester):
    pytester.makepyfile(
        """
        from tests.own_trainer.loops import plain_step
        from tests.own_trainer.trainers.plain import MeanOfMeans

        class Whole(MeanOfMeans):
            def reduce(self, losses, mask, tokens):
                count = mask.sum().float().clamp(min=1)
                assert count % 1 == 0, "a part of a token"
                return (losses * mask).sum() / count / self.accumulation_steps

        def test_loss(loss_conformance):
            for step in loss_conformance(mode="token_mean", micro_batches=2):
                plain_step(step, Whole)
        """
    )

    result = pytester.runpytest("-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*denominators_per_micro_batch]"])
    result.stdout.no_fnmatch_line("*a part of a token*")
