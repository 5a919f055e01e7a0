"""Wrong use of a step: each says in one line what to change."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import conformance
from tests.own_trainer.trainers.plain import GRPOTrainer, Rollout


def train(step, model=None, optimizer=None, advantages=None, epochs=1):
    trainer = GRPOTrainer(step.model(), step.micro_batches) if model is None else model(step)
    rollouts = [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]
    given = step.advantages(per="sample") if advantages is None else advantages(step)
    with step.watch(trainer.optimizer if optimizer is None else optimizer(trainer)):
        for _ in range(epochs):
            trainer.train_step(rollouts, given)


def train_all(loss_conformance, **changed):
    for step in loss_conformance(mode="token_mean"):
        train(step, **changed)


def train_outside(loss_conformance):
    for step in loss_conformance(mode="token_mean"):
        trainer = GRPOTrainer(step.model(), step.micro_batches)
        rollouts = [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]
        trainer.train_step(rollouts, step.advantages(per="sample"))


def another_model(step):
    step.model()
    vocabulary = 512
    layers = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 4), torch.nn.Linear(4, vocabulary))
    return GRPOTrainer(layers, step.micro_batches)


def no_model(step):
    layers = torch.nn.Sequential(torch.nn.Embedding(512, 4), torch.nn.Linear(4, 512))
    return GRPOTrainer(layers, step.micro_batches)


def another_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters())


def ones(step):
    return torch.ones_like(step.advantages(per="sample"))


def shuffled(step):
    return step.advantages(per="sample").roll(1)


def normalised(step):
    advantages = step.advantages(per="sample")
    return (advantages - advantages.mean()) / advantages.std()


def never_asked_for(step):
    return torch.ones(len(step.samples))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": no_model}, "build the trainer around step.model()"),
        (
            {"model": another_model},
            "let the trainer train step.model(), and not",
        ),
        (
            {"optimizer": another_optimizer},
            "give step.watch() the optimizer that the",
        ),
        ({"advantages": ones}, "let the trainer train on step.advantages(per=…)"),
        ({"advantages": never_asked_for}, "train on step.advantages(per=…)"),
        ({"advantages": shuffled}, "turn the trainer's shuffling off"),
        ({"advantages": normalised}, "turn off what centres or normalises them"),
        ({"epochs": 2}, "the optimizer stepped 2 times in one step"),
    ],
)
def test_one_line_says_what_to_change(loss_conformance, changed, words):
    with pytest.raises(pytest.fail.Exception) as failure:
        train_all(loss_conformance, **changed)

    assert words in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1


@pytest.mark.parametrize("bound", [3e-6, 1e-6, 1e-9])
def test_a_bound_that_clips_the_tiny_gradients_of_the_test_is_told(
    loss_conformance, bound, monkeypatch
):
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda parameters, _: clip(parameters, bound)
    )

    with pytest.raises(pytest.fail.Exception, match=f"clipped to a norm of {bound:.2g}, and"):
        train_all(loss_conformance)


@pytest.mark.parametrize("adapted", ["all-linear", ["q_proj", "v_proj"]])
def test_adapters_freeze_the_model(loss_conformance, adapted):
    peft = pytest.importorskip("peft")
    steps = loss_conformance(mode="token_mean")
    step = next(iter(steps))
    config = peft.LoraConfig(target_modules=adapted, r=2)
    model = peft.get_peft_model(step.model(returns="hugging_face"), config)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad])
    [advantage, *_] = step.advantages(per="sample")
    with step.watch(optimizer):
        logits = model(input_ids=step.samples[0].response[None]).logits
        (logits.log_softmax(-1)[0, 0, 0] * advantage).backward()
        optimizer.step()

    with pytest.raises(pytest.fail.Exception, match="leave adapters out of the test"):
        next(steps)


def test_a_model_has_what_trainers_of_transformers_look_for(loss_conformance):
    for step in loss_conformance(mode="token_mean", micro_batches=1, cases=["padded_widths"]):
        model = step.model(returns="hugging_face")
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
        [layer] = model.model.layers
        assert type(layer).__name__ in model._no_split_modules
        assert [*layer.parameters()] == [*model.parameters()]
        train(step)


def test_an_optimizer_that_steps_outside_is_not_watched(loss_conformance):
    with pytest.raises(pytest.fail.Exception, match="make the train step inside"):
        train_outside(loss_conformance)


class GradientTransformation(NamedTuple):
    """An optimizer like optax's."""

    init: Callable[..., None]
    update: Callable[..., None]


def test_the_fixture_is_for_torch(loss_conformance):
    for step in loss_conformance(mode="token_mean", micro_batches=1, cases=["padded_widths"]):
        with (
            pytest.raises(ValueError, match=r"no optimizer of torch.*JAX need an adapter"),
            step.watch(GradientTransformation(print, print)),
        ):
            pass
        train(step)


def test_a_model_may_not_fit(loss_conformance):
    for step in loss_conformance(mode="token_mean"):
        with pytest.raises(ValueError, match=r"vocabulary of 32 is too small.*leave voc"):
            step.model(vocabulary=32)
        with pytest.raises(ValueError, match="choose one of logits, output"):
            step.model(returns="hidden_states")
        with pytest.raises(ValueError, match="say token or sample"):
            step.advantages(per="group")
        with pytest.raises(ValueError, match="which takes policy_loss"):
            step.logged(entropy=0.5)
        train(step)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mode": "mean"}, "mode 'mean' is unknown"),
        ({"mode": "constant"}, "divisor"),
        ({"mode": "token_mean", "micro_batches": 3}, "their product must divide the 8 samples"),
        ({"mode": "token_mean", "cases": ["none"]}, "case 'none' is unknown"),
    ],
)
def test_what_is_asked_for_may_be_wrong(loss_conformance, asked, words):
    with pytest.raises((ValueError, pytest.fail.Exception), match=words):
        next(iter(loss_conformance(**asked)))


@pytest.mark.parametrize("left", ["for step in steps: break", "pass", "[*zip(steps, [])]"])
def test_a_loop_that_is_left_early_judges_nothing(pytester, left):
    pytester.makepyfile(
        f"""
        def test_loss(loss_conformance):
            steps = loss_conformance(mode="token_mean")
            {left}
        """
    )

    result = pytester.runpytest("-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*left before its last step*let it go through all steps*"])


def test_a_script_that_takes_no_step_is_wrong(capsys):
    with conformance.check(mode="token_mean") as steps:
        pass

    assert steps.is_wrong
    assert "never begun, so that nothing was judged" in capsys.readouterr().out
