import pytest

from tests.own_trainer.trainers import plain
from tests.own_trainer.trainers.plain import Rollout


@pytest.mark.parametrize("trainer_class", [plain.GRPOTrainer, plain.MeanOfMeans, plain.MaskForgotten, plain.PaddedWidth, plain.DividedTwice])
def test_loss(loss_conformance, trainer_class):
    for step in loss_conformance(mode="token_mean", micro_batches=(1, 2, 4)):
        trainer = trainer_class(step.model(returns="logits"), accumulation_steps=step.micro_batches)
        rollouts = [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]
        with step.watch(trainer.optimizer):
            log = trainer.train_step(rollouts, step.advantages(per="sample"))
        step.logged(policy_loss=log["loss"])
