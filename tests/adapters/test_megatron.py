"""What slime's and miles' adapters share, without either framework."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adapters import megatron
from adapters.contract import Depth, Job, Layout, Unsupported
from adapters.probe import ProbedBatch
from conformance.cases import CORPUS
from reference.aggregation import Aggregation, Mode

CASES = {case.name: case for case in CORPUS}


def job(case: str, mode: Mode = Mode.TOKEN_MEAN, **layout: object) -> Job:
    return Job(
        steps=CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=Layout(**layout),  # type: ignore[arg-type]
        depth=Depth.STEP,
    )


def test_sizes_are_spelt_out_in_rollouts() -> None:
    assert megatron.batch_options(job("two_steps", dp=2, cp=2, micro_batches=2)) == [
        "--rollout-batch-size=8",
        "--n-samples-per-prompt=2",
        "--global-batch-size=8",
        "--num-rollout=1",
        "--context-parallel-size=2",
        "--micro-batch-size=2",
    ]
    assert "--n-samples-per-prompt=2" in megatron.batch_options(job("unequal_groups"))


def test_micro_batches_by_tokens_take_a_budget() -> None:
    options = megatron.batch_options(job("uneven_lengths", dp=2, micro_batches="tokens"))

    assert "--use-dynamic-batch-size" in options
    assert "--max-tokens-per-gpu=12" in options, "67 tokens, a third of a rank's share"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"micro_batches": "uneven"}, "no micro-batches by uneven"),
        ({"dp": 4, "micro_batches": 2}, "no size of micro-batches that makes 8"),
    ],
)
def test_layouts_that_cannot_be_spelt_are_unsupported(
    layout: dict[str, object], message: str
) -> None:
    with pytest.raises(Unsupported, match=message):
        megatron.batch_options(job("unequal_groups", **layout))


@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ([], {Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN}),
        (["--pg-loss-divisor"], {Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT}),
        (["--loss-aggregation", "--loss-aggregation-divisor"], set(Mode)),
    ],
)
def test_modes_are_what_the_options_offer_and_parse_as_spelt(
    options: list[str], modes: set[Mode]
) -> None:
    parser = megatron.base_parser()
    for option in options:
        parser.add_argument(option)

    assert megatron.modes(parser) == modes
    for mode in modes:
        spelt = megatron.mode_options(job("uneven_lengths", mode), parser)
        args = parser.parse_args(spelt)
        if not options:
            assert args.calculate_per_token_loss is (mode is Mode.TOKEN_MEAN)
        elif mode is Mode.CONSTANT:
            assert "40.0" in (getattr(args, o.strip("-").replace("-", "_")) for o in options)


def test_identifiers_are_unique_over_the_steps_of_a_batch() -> None:
    batch = ProbedBatch(CASES["two_steps"].steps)
    fields = megatron.sample_fields(batch)

    assert [rollout for rollout, _ in fields] == list(range(16))
    assert [common["group_index"] for _, common in fields] == [i // 2 for i in range(16)]
    assert [len(common["loss_mask"]) for _, common in fields] == [
        common["response_length"] for _, common in fields
    ]


def test_advantages_find_their_samples_in_any_order() -> None:
    batch = ProbedBatch(CASES["uneven_lengths"].steps)
    order = [5, 0, 7]
    tokens = [
        torch.from_numpy(np.concatenate([batch.prompts[i], batch.responses[i]])) for i in order
    ]

    found = megatron.advantages_of(tokens, batch)

    assert [values.tolist() for values in found] == [batch.advantages[i].tolist() for i in order]


def test_several_samples_of_a_rollout_are_unsupported_where_rollouts_are_unknown() -> None:
    with pytest.raises(Unsupported, match="no several samples of one rollout"):
        megatron.require_one_sample_per_rollout(ProbedBatch(CASES["unequal_groups"].steps))


def test_seam_adds_the_probe_to_the_log_probabilities_of_the_tokens() -> None:
    seam = megatron.ProbeSeam()
    seam.probe = torch.arange(5.0, requires_grad=True)
    seen = []

    def calculate(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, None]:
        seen.extend(tokens.tolist())
        return torch.zeros(len(tokens), 1), None

    log_probs, _ = seam.around(calculate)(torch.zeros(3, 1), torch.tensor([4, 0, 2]))

    assert log_probs.tolist() == [[4.0], [0.0], [2.0]]
    assert seen == [0, 0, 0], "the policy knows one token"


def test_aggregation_of_the_corpus_is_the_default_divisor() -> None:
    assert job("uneven_lengths", Mode.CONSTANT).aggregation == Aggregation(Mode.CONSTANT, 40)
