"""Objections of a framework's validation, in its own words."""

from argparse import ArgumentParser

import pytest

from adapters.contract import Refused
from adapters.toolkit.calls import refusals


def parser() -> ArgumentParser:
    made = ArgumentParser()
    made.add_argument("--loss-aggregation", choices=["token_mean"])
    return made


def test_a_refusal_by_argparse_keeps_its_message() -> None:
    with pytest.raises(Refused) as refused, refusals():
        parser().parse_args(["--loss-aggregation=median"])

    assert str(refused.value).startswith(
        "ArgumentError: argument --loss-aggregation: invalid choice: 'median'"
    )


def test_an_option_that_a_version_lacks_is_no_refusal() -> None:
    options = ["--eps-clip-c=3", "--a=1", "--b=1", "--c=1"]

    with pytest.raises(LookupError) as lacking, refusals():
        parser().parse_args(options)

    assert str(lacking.value) == "this version has no --eps-clip-c=3, --a=1, --b=1 and 1 more"


def test_a_framework_goes_on_where_argparse_exits_in_a_part_of_its_parsing() -> None:
    incomplete = ArgumentParser()
    incomplete.add_argument("--rollout-batch-size", required=True)

    with refusals():
        with pytest.raises(SystemExit):
            incomplete.parse_known_args([])
        parsed = parser().parse_args(["--loss-aggregation=token_mean"])

    assert parsed.loss_aggregation == "token_mean"
