"""Code that adapters share: sizes of recipes, options of a version, samples dealt to ranks."""

from argparse import ArgumentParser
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from adapters.contract import Layout, Option, Unsupported
from adapters.contract.recipe import Recipe, extend_defaults, grid_of, sizes_in
from adapters.toolkit.settings import (
    CommandLine,
    KnownOptions,
    dealt,
    largest_micro_batch,
    last_epoch,
    longest_prompt,
    longest_response,
    require_one_step,
    shares,
    word,
)
from reference.aggregation import Mode
from tests.adapters import steps

cut = partial(Recipe.cut, engine="torch", values={}, defaults={}, per_prompt=1)


class TestRecipes:
    def test_ranks_that_share_no_samples_are_data_parallel(self) -> None:
        assert grid_of(16, cp=2, tp=2) == Layout(dp=4, cp=2, tp=2)
        assert grid_of(2, pp=4).dp == 1

    def test_a_step_is_cut_by_rows_or_by_tokens(self) -> None:
        grid, options = Layout(dp=4), (Option.BALANCE_DATA,)

        by_rows = cut(grid, samples=64, rows=2, is_packed=False, options=options)
        by_tokens = cut(grid, samples=64, rows=None, is_packed=True)

        assert by_rows.layout == Layout(dp=4, micro_batches=8, options=options)
        assert by_tokens.layout == Layout(dp=4, micro_batches="tokens", format="thd")

    def test_a_step_with_fewer_samples_than_a_micro_batch_has_one(self) -> None:
        assert cut(Layout(dp=4), samples=4, rows=8, is_packed=False).layout.micro_batches == 1

    def test_a_size_that_is_not_set_is_1(self) -> None:
        assert sizes_in({"cp": "2", "tp": None, "pp": 0}, "cp", "tp", "pp", "ep") == (2, 1, 1, 1)

    def test_what_a_user_has_not_set_follows_from_other_options(self) -> None:
        values = {"rows": 4, "samples": 8, "steps": 2}

        defaults = extend_defaults({"rows": 1, "samples": 1}, values, by_user={"rows"})

        assert defaults == {"rows": 1, "samples": 8, "steps": 2}


class TestOptions:
    def test_of_a_parser(self) -> None:
        parser = ArgumentParser()
        parser.add_argument("--kind", choices=("k1", "k3"), default="k1")
        parser.add_argument("-v", action="store_true")
        options = CommandLine.read(parser)

        assert options.default("--kind") == "k1"
        assert options.default("--colour") is None
        assert [*options.names_and_choices(["--kind"])] == ["--kind", "--kind=k1", "--kind=k3"]
        assert options.values(parser.parse_args(["--kind=k3", "-v"])) == {"--kind": "k3"}

    def test_of_a_version_are_offered_with_its_choices(self) -> None:
        options = KnownOptions({"kind": "k1", "beta": 0.0}, {"kind": ("k1", "k3")})

        assert options.offers({"kind": "k3", "beta": 0.5})
        assert not options.offers({"kind": "k2"})
        assert not options.offers({"colour": "red"})

    def test_a_flag_is_typed_without_a_value(self) -> None:
        assert [word("--packed", True), word("--rows", 2)] == ["--packed", "--rows=2"]


class TestSamples:
    def test_of_each_step_are_dealt_to_ranks_in_equal_parts(self) -> None:
        job = steps.job("two_steps", Mode.TOKEN_MEAN, "dp2-cp1-mb1-bshd")
        first, second = (step.size for step in job.steps)

        parts = shares(job)

        assert [[len(part) for part in step] for step in parts] == [
            [first // 2, first // 2],
            [second // 2, second // 2],
        ]
        assert np.concatenate(parts[1]).tolist() == [*range(first, first + second)]
        expected = [*parts[0][0], *parts[1][0], *parts[0][1], *parts[1][1]]
        assert dealt(parts).tolist() == expected

    def test_of_a_micro_batch_are_as_even_as_they_can_be(self) -> None:
        job = steps.job("nine_samples", Mode.TOKEN_MEAN, "dp2-cp1-mb2-bshd")

        assert largest_micro_batch(job) == 3
        assert largest_micro_batch(job, 16) == 4
        by_tokens = replace(job, layout=Layout(dp=2, micro_batches="tokens"))
        assert largest_micro_batch(by_tokens) == 1

    def test_of_the_second_epoch_are_the_later_half(self) -> None:
        job = steps.job("nine_samples", Mode.TOKEN_MEAN, "dp2-cp1-mb2-bshd+two_epochs")

        assert last_epoch([1, 2, 3, 4], job) == [3, 4]

    def test_the_longest_prompt_and_response_need_not_be_of_one_sample(self) -> None:
        job = steps.job("long_prompts", Mode.TOKEN_MEAN, "dp1-cp1-mb1-bshd")
        [step] = job.steps

        assert longest_prompt(job) == step.prompt_lengths.max()
        assert longest_response(job) == step.response_lengths.max()

    def test_of_several_steps_are_refused_with_the_reason(self) -> None:
        job = steps.job("two_steps", Mode.TOKEN_MEAN, "dp2-cp1-mb1-bshd")

        with pytest.raises(Unsupported, match="they are whitened together"):
            require_one_step(job, "they are whitened together")
