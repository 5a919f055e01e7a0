"""The test that the author of each trainer would write; other tests assert what it says."""

import torch

from tests.own_trainer.trainers import lightning, plain, rows
from tests.own_trainer.trainers.plain import Rollout


def plain_loop(loss_conformance, trainer_class=plain.GRPOTrainer):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2, 4)):
        plain_step(step, trainer_class)


def plain_step(step, trainer_class):
    trainer = trainer_class(step.model(returns="logits"), accumulation_steps=step.micro_batches)
    rollouts = [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]
    with step.watch(trainer.optimizer):
        log = trainer.train_step(rollouts, step.advantages(per="sample"))
    step.logged(policy_loss=log["loss"])


def ddp_loop(loss_conformance, trainer_class):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2)):
        ddp_step(step, trainer_class)


def ddp_step(step, trainer_class):
    trainer = trainer_class(step.model(returns="output"), step.micro_batches)
    sequences = [torch.cat([s.prompt, s.response]) for s in step.samples]
    lengths = [len(s.prompt) for s in step.samples]
    masks = [s.mask for s in step.samples]
    with step.watch(trainer.optimizer):
        trainer.step(sequences, lengths, masks, step.advantages(per="sample"))


def fsdp_loop(loss_conformance, trainer_class):
    for step in loss_conformance(mode="token_mean", dp=2, micro_batches=(1, 2)):
        policy = trainer_class(step.model(returns="log_probs"), step.micro_batches)
        experience = []
        for s, advantages in zip(step.samples, step.advantages(), strict=True):
            row = {"mask": s.mask.float(), "old": s.old_log_probs, "adv": advantages}
            row = {name: torch.cat([torch.zeros(len(s.prompt)), row[name]]) for name in row}
            experience.append({"ids": torch.cat([s.prompt, s.response]), **row})
        with step.watch(policy.optim):
            policy.update(experience)


def hugging_face_loop(loss_conformance, trainer_class):
    sizes = {"dp": 2, "micro_batches": (1, 4), "cases": ["padded_widths"]}
    for step in loss_conformance(mode="token_mean", **sizes):
        advantages = step.advantages(samples=step.batch)
        dataset = [rows.row(*pair) for pair in zip(step.batch, advantages, strict=True)]
        size = len(step.samples) // step.micro_batches
        model = step.model(returns="hugging_face", vocabulary=1000)
        trainer = trainer_class(model, dataset, step.micro_batches, size)
        with step.watch():
            trainer.train()


def lightning_loop(loss_conformance, trainer_class):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2)):
        every = [rows.row(*p) for p in zip(step.samples, step.advantages(), strict=True)]
        tokens = sum(s.mask.sum() for s in step.samples)
        size = len(every) // step.micro_batches
        batches = [rows.collate(every[i : i + size]) for i in range(0, len(every), size)]
        for batch in batches:
            batch |= {"mask": batch.pop("labels") != -100, "tokens_of_step": tokens}
        module = trainer_class(step.model(returns="dict"))
        with step.watch():
            lightning.Trainer(step.micro_batches).fit(module, batches)


def packed_loop(loss_conformance, trainer_class):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2), packed=True):
        trainer = trainer_class(step.model(returns="tuple"), step.micro_batches)
        with step.watch(trainer.optimizer):
            trainer.fit(step.samples, step.advantages())
