"""Rules that versions of slime and miles state, found in their code."""

import argparse

from adapters.contract.job import Column
from adapters.native.adapter import NATIVE
from adapters.slime_family import adapter
from conformance.corpus.configurations import CONFIG_CASES, LOG_CASES

KNOWN = {case.rule for case in (*CONFIG_CASES, *LOG_CASES)}


def positive(args: argparse.Namespace) -> None:
    if not args.pg_loss_divisor > 0:
        raise ValueError("--pg-loss-divisor")


def whole_groups(args: argparse.Namespace) -> None:
    if args.loss_aggregation_divisor is not None:
        raise ValueError("--loss-aggregation-divisor")
    if args.global_batch_size % args.n_samples_per_prompt:
        raise ValueError("--global-batch-size")


def parser(*options: str) -> argparse.ArgumentParser:
    known = argparse.ArgumentParser()
    for option in options:
        known.add_argument(option, type=float)
    return known


def test_every_rule_is_of_a_row_and_every_row_has_a_rule_that_may_be_stated() -> None:
    traced = {rule for rules in adapter.TRACES.values() for rule in rules}

    assert traced | {*adapter.HELP} | {*adapter.TYPED} == KNOWN
    assert {*NATIVE.rules} <= KNOWN | {
        "poison",
        "poison.logged",
        *(f"no_gradient.{column}" for column in Column),
    }


def test_rules_are_stated_where_there_is_code_that_keeps_them() -> None:
    stated = adapter.stated(parser(), [positive, whole_groups])

    assert set(stated) == {
        "divisor_missing",
        "divisor_by_default",
        "divisor_zero",
        "divisor_negative",
        "divisor_nan",
        "divisor_of_another_mode",
        "per_token_with_another_mode",
        "batch_of_partial_groups",
    }
    assert stated["divisor_zero"].endswith("(positive)"), "the first function that keeps it"
    assert stated["divisor_missing"].endswith("(whole_groups)")


def test_rules_are_stated_where_an_option_is_documented_or_has_a_type() -> None:
    older = adapter.stated(parser("--pg-loss-divisor", "--calculate-per-token-loss"), [])
    newer = adapter.stated(parser("--loss-aggregation", "--calculate-per-token-loss"), [])

    assert older["divisor_text"] == "the type of --pg-loss-divisor"
    assert older["default_mode"] == "the documentation of --calculate-per-token-loss"
    assert newer["default_mode"] == "the documentation of --loss-aggregation"
    assert "divisor_text" not in newer
