"""The code that slime's and miles' adapters share, without either framework."""

import argparse
from dataclasses import replace
from functools import partial

import pytest
import torch

from adapters.contract import (
    Assumed,
    Description,
    Documented,
    Job,
    Layout,
    Option,
    Unsupported,
)
from adapters.contract.framework import Framework
from adapters.contract.objective import Objective
from adapters.engines import megatron_core
from adapters.slime_family import adapter, driving, importing
from adapters.slime_family.framework import ON_MEGATRON, version_record
from adapters.toolkit.calls import call_supported
from adapters.toolkit.settings import shared_budget
from conformance.corpus.cases import CORPUS, Case
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    DenominatorMask,
    Mode,
    SampleUnit,
)
from tests.jobs import job_of

CASES = {case.name: case for case in CORPUS}


def job(case: str, mode: Mode = Mode.TOKEN_MEAN, **layout: object) -> Job:
    return job_of(
        *CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=Layout(**{"format": "thd", **layout}),
    )


def parser(*flags: str) -> argparse.ArgumentParser:
    known = importing.base_parser()
    for name in (
        "rollout-batch-size",
        "n-samples-per-prompt",
        "global-batch-size",
        "num-rollout",
        "micro-batch-size",
        "max-tokens-per-gpu",
    ):
        known.add_argument(f"--{name}", type=int)
    for name in ("eps-clip", "eps-clip-high"):
        known.add_argument(f"--{name}", type=float)
    known.add_argument("--use-dynamic-batch-size", action="store_true")
    for flag in flags:
        known.add_argument(flag)
    return known


def version(known: argparse.ArgumentParser) -> Framework:
    return version_record(ON_MEGATRON, partial(importing.has, known))


def parsed(a_job: Job) -> dict[str, object]:
    known = parser()
    with importing.typed(version(known), a_job, known) as words:
        return vars(known.parse_args(words))


def described(known: argparse.ArgumentParser) -> Description:
    return version(known).description(lambda _: True, ())


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 2), (2, 4)])
def test_budget_of_all_ranks_of_a_slice_holds_the_longest_sample(
    case: Case, grid: tuple[int, int]
) -> None:
    dp, cp = grid
    longest = max((step.prompt_lengths + step.response_lengths).max() for step in case.steps)
    layout = Layout(dp=dp, cp=cp, micro_batches="tokens", format="thd")
    budget = shared_budget(replace(job("uneven_lengths"), steps=case.steps, layout=layout))

    assert budget * cp > longest


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"micro_batches": "uneven"}, "no micro-batches by uneven"),
        ({"dp": 4, "micro_batches": 2}, "no micro-batch size that cuts the samples of every"),
        ({"format": "bshd"}, "no format bshd"),
    ],
)
def test_layouts_that_cannot_be_spelt_are_unsupported(
    layout: dict[str, object], message: str
) -> None:
    with pytest.raises(Unsupported, match=message):
        parsed(job("unequal_groups", **layout))


def test_options_of_layouts_are_switched_on_and_offered_where_known() -> None:
    args = parsed(job("uneven_lengths", options=(Option.OVERLAP_GRAD_REDUCE,)))
    of_megatron = {
        *(Option.AVERAGE_IN_COLLECTIVE, Option.DISTRIBUTED_OPTIMIZER, Option.EXPERT_PARALLEL),
        *(Option.INTERLEAVED, Option.OVERLAP_GRAD_REDUCE),
    }
    replayed = parser("--use-rollout-routing-replay")

    assert args["overlap_grad_reduce"] is True
    assert args["use_distributed_optimizer"] is False
    assert described(parser()).options == of_megatron
    assert described(parser("--balance-data")).options == of_megatron | {Option.BALANCE_DATA}
    assert described(replayed).options == of_megatron | {Option.ROUTING_REPLAY}


def test_pipelines_are_told_to_training_and_to_the_rollout_side() -> None:
    interleaved = Layout(pp=4, micro_batches=2, format="thd", options=(Option.INTERLEAVED,))
    args = parsed(replace(job("uneven_lengths"), layout=interleaved))

    assert args["pipeline_model_parallel_size"] == 4
    assert args["virtual_pipeline_model_parallel_size"] == 2
    assert driving.train_parallel_config(interleaved) == {
        "dp_size": 1,
        "cp_size": 1,
        "vpp_size": 2,
        "microbatch_group_size_per_vp_stage": 4,
    }
    assert driving.train_parallel_config(Layout(pp=4))["vpp_size"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_carry_token_ids_exactly(dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 1, 255, 256], [257, 65_537, 2**24 - 1, 99]])

    handed_on = megatron_core.activations(ids, torch.zeros(8), width=8).to(dtype)

    assert handed_on.shape == (4, 2, 8)
    assert torch.equal(megatron_core.ids_of(handed_on), ids)


def test_probes_of_earlier_stages_have_the_gradient_of_the_last_one_s() -> None:
    """The second row repeats the first; the token with id 1 is predicted by no position."""
    ids = torch.tensor([[1, 2, 3, 0], [1, 2, 3, 0]])
    first = torch.zeros(8, requires_grad=True)
    handed_on = megatron_core.activations(ids, first, width=8)
    of_first = megatron_core.probe_of(handed_on, megatron_core.ids_of(handed_on), capacity=8)

    (of_first[torch.tensor([2, 3, 4])] * torch.tensor([0.5, 0.25, 2.0])).sum().backward()

    assert first.grad.tolist() == [0, 0, 0.5, 0.25, 2, 0, 0, 0]


def test_what_stands_beside_the_policy_loss_is_sampled_where_modes_are_offered() -> None:
    by_rollout, by_sample = Assumed(SampleUnit.ROLLOUT), Assumed(SampleUnit.SAMPLE)
    older = adapter.conventions(parser(), by_rollout)
    of_samples = adapter.conventions(parser(), by_rollout, by_sample)
    newer = adapter.conventions(parser("--loss-aggregation"), by_sample)
    stated = Documented(AuxiliaryAggregation.SAMPLE_MEAN, "the documentation of --loss-aggregation")

    assert older["entropy"] == Assumed(AuxiliaryAggregation.WITH_TOKEN_MEAN)
    assert older["denominator_mask"] == Assumed(DenominatorMask.ORIGINAL)
    assert of_samples["denominator_mask"] == Assumed(DenominatorMask.MODIFIED)
    assert of_samples["sample_unit"] == by_sample
    assert [newer[name] for name in ("entropy", "kl", "diagnostics")] == [stated] * 3
    assert "denominator_mask" not in newer


def test_every_sample_is_a_rollout_where_rollouts_are_unknown() -> None:
    """11 samples cannot be split evenly, and as single rollouts they form no whole prompts."""
    given = job("unequal_groups", Mode.SAMPLE_MEAN)
    [step] = driving.single_sample_job(given).steps

    assert step.rollouts.tolist() == [*range(11)]
    assert driving.single_sample_job(job("two_steps")) == job("two_steps")
    for uneven in (
        replace(given, layout=Layout(micro_batches=2)),
        replace(given, layout=Layout(dp=2)),
        replace(given, aggregation=Aggregation(Mode.PROMPT_MEAN)),
        replace(given, objective=Objective.GROUP_CENTRED),
    ):
        with pytest.raises(Unsupported, match="no rollouts of several samples"):
            driving.single_sample_job(uneven)


def test_steps_that_megatron_declines_to_cut_are_unsupported_where_it_would_cut_them() -> None:
    driving.require_even(job("two_steps"))
    for layout in (Layout(micro_batches=2), Layout(dp=2)):
        with pytest.raises(Unsupported, match="not divisible"):
            driving.require_even(replace(job("unequal_groups"), layout=layout))


def test_modules_are_looked_for_where_versions_have_had_them() -> None:
    assert importing.home("adapters", "slime_family.moved.away", "slime_family.model", "native")
    with pytest.raises(ModuleNotFoundError, match=r"adapters\.of_the_oldest"):
        importing.home("adapters", "slime_family.newer", "of_the_oldest")


def test_functions_are_offered_only_what_they_know() -> None:
    assert call_supported(lambda a, *, b=2: (a, b), 1, b=3, c=4) == (1, 3)
