"""One step of a real run is watched: a transformer of two layers, on one rank and on two."""

import numpy as np
import pytest
import torch
from torch import nn

import conformance
from tests.own_trainer.trainers.plain import GRPOTrainer, MeanOfMeans, Rollout, collate

VOCABULARY = 512


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layers(self.embedding(ids), mask=mask, is_causal=True))


def watched(step, rollouts, advantages, trainer_class=GRPOTrainer):
    """The step of the real model, watched."""
    trainer = trainer_class(Transformer(), step.micro_batches)
    with torch.no_grad():
        for rollout in rollouts:
            ids = torch.cat([rollout.prompt, rollout.response])[None]
            log_probs = trainer.log_probs(ids)[0]
            rollout.old_log_probs = log_probs[-len(rollout.response) :]
    masks = collate(rollouts, advantages)["mask"]
    with conformance.watch(
        trainer.model,
        log_probs=(trainer, "log_probs"),
        mode="token_mean",
        masks=masks,
        advantages=advantages,
    ) as seen:
        trainer.train_step(rollouts, advantages)
    return seen


def rollouts_of(step):
    return [Rollout(s.prompt, s.response, s.old_log_probs, s.mask) for s in step.samples]


@pytest.mark.processes
def test_weights_are_those_of_the_fixture(loss_conformance, capsys):
    for step in loss_conformance(mode="token_mean", dp=(1, 2), micro_batches=(1, 2)):
        advantages = step.advantages(per="sample")
        seen = watched(step, rollouts_of(step), advantages)
        trainer = GRPOTrainer(step.model(), step.micro_batches)
        with step.watch(trainer.optimizer):
            trainer.train_step(rollouts_of(step), advantages)

        gradient, own = step.shown().gradient, step.advantages("sample", step.batch)
        pairs = zip(step.batch, own.numpy(), strict=True)
        of_fixture = [-gradient[s.response.numpy()] / one for s, one in pairs]
        active = torch.cat([s.mask for s in step.batch]).numpy()
        of_fixture = np.concatenate(of_fixture)[active]
        assert np.allclose(seen.weights[seen.expected > 0], of_fixture, rtol=1e-4)
        assert seen.judgement.verdict == "conforms"


def test_a_mistake_is_named_in_place(loss_conformance, capsys):
    for step in loss_conformance(mode="token_mean", micro_batches=2, cases=["padded_widths"]):
        advantages = step.advantages(per="sample")
        seen = watched(step, rollouts_of(step), advantages, MeanOfMeans)
        trainer = GRPOTrainer(step.model(), step.micro_batches)
        with step.watch(trainer.optimizer):
            trainer.train_step(rollouts_of(step), advantages)

    words = capsys.readouterr().out
    assert seen.judgement.diagnosis.name == "denominators_per_micro_batch"
    assert "tokens do not weigh as token_mean says" in words
    assert "each micro-batch is normalised by its own count" in words
    assert "The fixture loss_conformance sees all of it." in words


def rows(scale):
    """A trainer with log-probabilities of two rows, whose loss is their sum times a factor."""

    class Trainer:
        def log_probs(self):
            return torch.zeros(2, 3, requires_grad=True) * 1.0

        def step(self):
            (-self.log_probs() * scale).sum().backward()

    return Trainer()


def watch_rows(trainer, masks, name="log_probs"):
    with conformance.watch(
        nn.Linear(1, 1),
        log_probs=(trainer, name),
        mode="token_mean",
        masks=masks,
        advantages=[1.0] * len(masks),
    ) as seen:
        trainer.step()
    return seen


def test_the_table_has_a_factor_for_each_sample(capsys):
    seen = watch_rows(rows(1 / 3), [[True, True, False], [True, True, False]])

    assert "every weight is" not in str(seen)
    table = [line.split() for line in str(seen).splitlines() if line[:1].isdigit()]
    assert table == [["0", "2", "0.3333", "0.25", "1.333"], ["1", "2", "0.3333", "0.25", "1.333"]]


def test_what_is_watched_must_be_trained():
    with pytest.raises(ValueError, match=r"not called with gradients.*the one that the loss"):
        watch_rows(Untrained(), [[True]])
    with pytest.raises(ValueError, match="trained 2 rows, and there are 1 masks"):
        watch_rows(rows(1.0), [[True]])


class Returning:
    """A trainer whose function returns log-probabilities of two rows together with other values."""

    def __init__(self, returned, scale=1 / 4):
        self.returned, self.scale = returned, scale

    def log_probs(self):
        self.used = -torch.ones(2, 3, requires_grad=True) * 1.0
        return self.returned(self.used, -2.0 * self.used)

    def step(self):
        self.log_probs()
        (-self.used * torch.tensor([True, True, False]) * self.scale).sum().backward()


@pytest.mark.parametrize(
    "returned",
    [
        lambda log_probs, entropy: (log_probs, entropy),
        lambda log_probs, entropy: (entropy, log_probs),
        lambda log_probs, entropy: {"entropy": entropy.detach(), "log_probs": log_probs},
        lambda log_probs, entropy: (None, [log_probs], 0.5),
    ],
)
def test_log_probabilities_may_be_returned_with_others(returned, capsys):
    seen = watch_rows(Returning(returned), [[True, True, False]] * 2)

    assert seen.judgement.verdict == "conforms"
    assert seen.weights.sum() == 1.0


def test_what_returns_no_log_probabilities_is_told_after_the_step():
    with pytest.raises(ValueError, match="or returned no log-probabilities"):
        watch_rows(Returning(lambda _, entropy: (entropy, 0.5)), [[True, True, False]] * 2)


class Packed:
    """Packed rows of sequences of 3 and 4, and of 2 and 5 tokens, whose first tokens have no loss.

    Log-probabilities have an entry for each token, or for each token except a row's first.
    """

    ends = ((0, 3, 7), (0, 2, 7))

    def __init__(self, weigh, shift):
        self.weigh, self.shift = weigh, shift
        starts = [torch.tensor([1, 0, 0, 1, 0, 0, 0]), torch.tensor([1, 0, 1, 0, 0, 0, 0])]
        self.masks = [(1 - start).bool()[shift:] for start in starts]

    def log_probs(self, row):
        return -torch.ones(1, 7 - self.shift, requires_grad=True) * 1.0

    def step(self):
        for row, mask in enumerate(self.masks):
            losses = -self.log_probs(row)[0] * mask
            for start, end in zip(self.ends[row], self.ends[row][1:], strict=False):
                part = slice(max(start - self.shift, 0), end - self.shift)
                (losses[part].sum() * self.weigh(int(mask[part].sum()))).backward(retain_graph=True)


def watch_packed(trainer, mode, **given):
    with conformance.watch(
        nn.Linear(1, 1),
        log_probs=(trainer, "log_probs"),
        mode=mode,
        masks=trainer.masks,
        **({"cu_seqlens": trainer.ends, "advantages": [1.0, 1.0]} | given),
    ) as seen:
        trainer.step()
    return seen


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("mode", "weigh"),
    [
        ("token_mean", lambda tokens: 1 / 10),
        ("sample_mean", lambda tokens: 1 / (4 * tokens)),
        ("prompt_mean", lambda tokens: 1 / (2 * 5)),  # prompts of 2 + 3 and of 1 + 4 tokens
    ],
)
def test_packed_rows_are_watched(mode, weigh, shift, capsys):
    right = watch_packed(Packed(weigh, shift), mode, groups=[0, 0, 1, 1])
    wrong = watch_packed(Packed(lambda tokens: weigh(tokens) * tokens, shift), mode)

    assert right.judgement.verdict == "conforms"
    assert wrong.judgement.verdict == "mismatch"
    assert [line.split()[:2] for line in right.lines if line[:1].isdigit()] == [
        ["0", "2"],
        ["1", "3"],
        ["2", "1"],
        ["3", "4"],
    ]


def test_sequences_of_packed_rows_have_advantages_of_their_own(capsys):
    advantages = [torch.ones(2, dtype=torch.bfloat16), torch.ones(7, 1)[:, 0]]

    seen = watch_packed(Packed(lambda tokens: 1 / 10, 0), "token_mean", advantages=advantages)

    assert seen.judgement.verdict == "conforms"


def test_packed_rows_need_their_ends_and_groups():
    packed = Packed(lambda tokens: 1 / 10, 0)
    with pytest.raises(ValueError, match="packed row 1 has no ends of sequences; give cu_seqlens"):
        watch_packed(packed, "token_mean", cu_seqlens=[[0, 3, 7]])
    with pytest.raises(ValueError, match="trained 4 sequences, and there are 2 groups"):
        watch_packed(packed, "token_mean", groups=[0, 1])


class Untrained:
    def log_probs(self):
        return torch.zeros(1)

    def step(self):
        self.log_probs()
