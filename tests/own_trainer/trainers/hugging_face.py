"""A subclass of Hugging Face's Trainer with a loss of its own."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments

from tests.own_trainer.trainers.rows import collate


class GRPOTrainer(Trainer):
    def __init__(self, model, rows, accumulation, size, **options):
        arguments = TrainingArguments(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        super().__init__(model, arguments, train_dataset=rows, data_collator=collate, **options)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        labels = inputs["input_ids"][:, 1:, None]
        log_probs = logits.log_softmax(-1).gather(-1, labels).squeeze(-1)
        ratio = torch.exp(log_probs - inputs["old_log_probs"][:, 1:])
        losses = -ratio * inputs["advantages"][:, 1:]
        mask = inputs["labels"][:, 1:] != -100
        return self.reduced(losses, mask, num_items_in_batch)

    def reduced(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens * self.accelerator.num_processes


class MeanOfMeans(GRPOTrainer):
    def reduced(self, losses, mask, tokens):
        mean = (losses * mask).sum() / mask.sum()  # bug
        return mean / self.current_gradient_accumulation_steps


class LocalCount(GRPOTrainer):
    def get_batch_samples(self, *arguments):
        batches, _ = super().get_batch_samples(*arguments)
        return batches, sum((batch["labels"] != -100).sum() for batch in batches)  # bug

    def reduced(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens


class MaskForgotten(GRPOTrainer):
    def reduced(self, losses, mask, tokens):
        return losses.sum() / tokens * self.accelerator.num_processes  # bug


class PaddedWidth(GRPOTrainer):
    def reduced(self, losses, mask, tokens):
        mean = (losses * mask).mean()  # bug
        return mean / self.current_gradient_accumulation_steps


class DividedTwice(GRPOTrainer):
    def reduced(self, losses, mask, tokens):
        loss = super().reduced(losses, mask, tokens)
        return loss / self.current_gradient_accumulation_steps  # bug
