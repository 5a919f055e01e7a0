"""Trainers that compute advantages from rewards, whether the test states the estimator or not."""

import pytest
import torch

from tests.own_trainer.trainers.plain import GRPOTrainer, MeanOfMeans, Rollout


def of_groups(function):
    """An estimator that applies a function to the rewards of each prompt's adjacent samples."""

    def of_all(rewards, groups):
        sizes = torch.unique_consecutive(groups, return_counts=True)[1]
        return torch.cat([function(part) for part in rewards.split(sizes.tolist())])

    return of_all


NORMALISED = of_groups(lambda r: (r - r.mean()) / (r.std() + 1e-4))
BIASED = of_groups(lambda r: (r - r.mean()) / (r.std(correction=0) + 1e-6))
CENTRED = of_groups(lambda r: r - r.mean())
OTHERS = of_groups(lambda r: (r - r.mean()) * len(r) / (len(r) - 1))
SCALED = of_groups(lambda r: r / r.std())


def whitened(rewards, groups):
    return (rewards - rewards.mean()) / rewards.std()


def as_given(rewards, groups):
    return rewards


def train(step, estimate, rewards, trainer_class=GRPOTrainer):
    trainer = trainer_class(step.model(), step.micro_batches)
    rollouts = [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]
    with step.watch(trainer.optimizer):
        groups = torch.tensor([s.group for s in step.samples])
        trainer.train_step(rollouts, estimate(rewards, groups))


def check(loss_conformance, estimate, stated, **given):
    for step in loss_conformance(
        mode="token_mean", micro_batches=(1, 2), **({"advantages": stated} if stated else {})
    ):
        rewards = step.rewards if stated else step.advantages(per="sample")
        train(step, estimate, rewards, **given)


@pytest.mark.parametrize(
    ("estimate", "stated"),
    [
        (NORMALISED, "group_normalised"),
        (BIASED, "group_normalised_biased"),
        (CENTRED, "group_centred"),
        (OTHERS, "leave_one_out"),
    ],
)
def test_a_right_trainer_makes_the_advantages_that_it_states(loss_conformance, estimate, stated):
    check(loss_conformance, estimate, stated)


def test_a_wrong_count_is_named_beside_computed_advantages(loss_conformance):
    with pytest.raises(pytest.fail.Exception, match=r"\[denominators_per_micro_batch\]"):
        check(loss_conformance, NORMALISED, "group_normalised", trainer_class=MeanOfMeans)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (NORMALISED, "advantages='group_normalised'"),
        (CENTRED, "advantages='group_centred'"),
        (SCALED, "divides them by the standard deviation of each prompt's"),
        (whitened, "turn off what centres or normalises them"),
    ],
)
@pytest.mark.parametrize("trainer_class", [GRPOTrainer, MeanOfMeans])
def test_given_advantages_that_are_changed_are_told(
    loss_conformance, estimate, words, trainer_class
):
    with pytest.raises(pytest.fail.Exception) as failure:
        check(loss_conformance, estimate, None, trainer_class=trainer_class)

    assert str(failure.value).startswith("the trainer changes advantages: ")
    assert words in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1


@pytest.mark.parametrize("estimate", [CENTRED, BIASED])
def test_another_estimator_than_the_stated_one_is_told(loss_conformance, estimate):
    with pytest.raises(pytest.fail.Exception, match="group_normalised is stated; say"):
        check(loss_conformance, estimate, "group_normalised")


def test_rewards_need_an_estimator_and_take_the_place_of_advantages(loss_conformance):
    for step in loss_conformance(mode="token_mean", micro_batches=1, cases=["padded_widths"]):
        with pytest.raises(ValueError, match="advantages from rewards is not stated"):
            step.rewards  # noqa: B018 - read for its error
        train(step, as_given, step.advantages(per="sample"))
    for step in loss_conformance(
        mode="token_mean", micro_batches=1, advantages="group_centred", cases=["padded_widths"]
    ):
        with pytest.raises(ValueError, match=r"by group_centred; give it step\.rewards, or leave"):
            step.advantages()
        with pytest.raises(ValueError, match="which takes none"):
            step.logged(policy_loss=0.5)
        train(step, CENTRED, step.rewards)
    with pytest.raises(ValueError, match="'grpo' is unknown; choose one of group_normalised, "):
        loss_conformance(mode="token_mean", advantages="grpo")


def test_a_prompt_with_one_sample_has_no_advantage(loss_conformance):
    given = {"mode": "token_mean", "advantages": "group_centred", "cases": ["groups_of_one"]}

    with pytest.raises(pytest.fail.Exception, match="advantage of 0 by group_centred; choose ca"):
        next(iter(loss_conformance(**given, micro_batches=1)))
