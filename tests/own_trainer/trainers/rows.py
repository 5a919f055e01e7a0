"""Rows of a data set and batches of rows, with the names of columns that Hugging Face uses."""

import torch
from torch.nn.utils.rnn import pad_sequence


def collate(rows):
    padding = {"labels": -100}
    return {
        name: pad_sequence(
            [row[name] for row in rows], batch_first=True, padding_value=padding.get(name, 0)
        )
        for name in rows[0]
    }


def row(sample, advantages):
    ids = torch.cat([sample.prompt, sample.response])
    before = torch.zeros(len(sample.prompt))
    active = torch.cat([before.bool(), sample.mask])
    return {
        "input_ids": ids,
        "labels": torch.where(active, ids, -100),
        "old_log_probs": torch.cat([before, sample.old_log_probs]),
        "advantages": torch.cat([before, advantages]),
    }
