"""The users whom a cause reaches, in options as they type them, and the order of causes."""

from collections.abc import Sequence

import pytest

from conformance.findings.cause import EMPTY_SAMPLE, Harm
from tests.causes.found import found
from tests.findings import right, wrong

EMPTY = "policy_loss/empty_samples_counted"


@pytest.mark.parametrize(
    ("identity", "reach", "harm"),
    [
        ("weights/sample_mean/a/dp2-cp1-mb2-thd", "by default", Harm.GRADIENT_BY_DEFAULT),
        (
            "weights/token_mean/a/dp2-cp1-mb2-thd",
            "only seen with --per-token",
            Harm.GRADIENT_WITH_OPTION,
        ),
        (
            "auxiliary.entropy/token_mean/a/dp1-cp2-mb2-thd+allgather_cp",
            "only seen with --per-token --entropy --context-parallel-size --allgather-cp",
            Harm.GRADIENT_WITH_OPTION,
        ),
        ("advantages.gae/token_mean/a/dp1-cp1-mb1-thd", "by default", Harm.GRADIENT_BY_DEFAULT),
        ("metric.entropy/sample_mean/a/dp1-cp1-mb1-thd", "by default", Harm.NUMBER_BY_DEFAULT),
        (
            "metric/token_mean/a/dp1-cp1-mb1-thd",
            "only seen with --per-token",
            Harm.NUMBER_OTHERWISE,
        ),
        ("weights/sample_mean/a/dp1-cp1-mb2-bshd", "by default", Harm.GRADIENT_BY_DEFAULT),
    ],
)
def test_options_are_those_that_the_step_needs(identity: str, reach: str, harm: Harm) -> None:
    [cause] = found(wrong(identity, EMPTY))

    assert str(cause.reach) == reach
    assert cause.harm is harm


def test_the_finding_that_needs_fewest_options_says_whom_a_cause_reaches() -> None:
    [cause] = found(
        wrong("weights/token_mean/a/dp1-cp2-mb2-thd", EMPTY),
        wrong("weights/sample_mean/a/dp1-cp2-mb2-thd", EMPTY),
    )
    assert cause.reach.options == ["--context-parallel-size"]


def test_layout_options_are_named_only_if_all_findings_have_them() -> None:
    [cause] = found(
        wrong("weights/token_mean/a/dp1-cp2-mb2-thd", EMPTY),
        wrong("weights/token_mean/a/dp1-cp1-mb2-thd+allgather_cp", EMPTY),
    )
    assert cause.reach.options == ["--per-token"]


@pytest.mark.parametrize(("parts", "reach"), [(2, "only seen with --parts"), (1, "by default")])
def test_micro_batches_are_an_option_where_a_step_has_one_by_default(
    parts: int, reach: str
) -> None:
    said = wrong(f"weights/sample_mean/a/dp1-cp1-mb{parts}-thd", EMPTY)
    [cause] = found(said, chosen_by={"accumulated": ("--parts",)})
    assert str(cause.reach) == reach


def test_parallelism_is_named_where_no_record_says_what_sets_it() -> None:
    [cause] = found(wrong("weights/token_mean/a/dp1-cp2-mb2-thd", EMPTY), chosen_by={})
    assert str(cause.reach) == "only seen with context parallelism"


def test_a_gradient_is_wrong_for_a_rare_batch_if_only_such_batches_show_it() -> None:
    [cause] = found(
        wrong("weights/sample_mean/a/dp1-cp1-mb2-thd", EMPTY, facts=[EMPTY_SAMPLE]),
        right("weights/sample_mean/b/dp1-cp1-mb2-thd", EMPTY),
    )
    assert str(cause.reach) == EMPTY_SAMPLE
    assert cause.harm is Harm.GRADIENT_AT_EDGE


def test_only_wrong_gradients_say_whom_a_wrong_gradient_reaches() -> None:
    [cause] = found(
        wrong("weights/token_mean/a/dp1-cp1-mb2-thd", EMPTY),
        wrong("metric/sample_mean/a/dp1-cp1-mb2-thd", EMPTY),
    )
    assert str(cause.reach) == "only seen with --per-token"


@pytest.mark.parametrize(
    ("others", "reach"),
    [
        (["weights/token_mean/a/dp1-cp1-mb2-thd+allgather_cp"], "with --context-parallel-size"),
        (["weights/token_mean/a/dp1-cp2-mb2-thd"], "with --allgather-cp"),
        (
            [
                "weights/token_mean/a/dp1-cp1-mb2-thd+allgather_cp",
                "weights/token_mean/a/dp1-cp2-mb2-thd",
                "weights/sample_mean/a/dp1-cp2-mb2-thd+allgather_cp",
            ],
            "with --per-token --context-parallel-size --allgather-cp",
        ),
        (["weights/sample_mean/a/dp1-cp1-mb2-thd"], ""),
    ],
)
def test_an_option_is_needed_if_all_is_right_where_it_alone_is_missing(
    others: Sequence[str], reach: str
) -> None:
    wrong_one = wrong("weights/token_mean/a/dp1-cp2-mb2-thd+allgather_cp", EMPTY)
    [cause] = found(wrong_one, *map(right, others))

    shown, _, _ = str(cause.reach).partition("only seen ")
    assert shown.removesuffix(", ") == reach
    assert cause.harm is Harm.GRADIENT_WITH_OPTION


def test_several_losses_without_a_common_option_reach_those_who_set_one_of_them() -> None:
    chosen_by = {"token_mean": ("--mean=token",), "constant": ("--mean=sum", "--divisor")}
    wrong_ones = [
        wrong("weights/token_mean/a/dp1-cp1-mb2-thd", EMPTY),
        wrong("weights/constant/a/dp1-cp1-mb2-thd", EMPTY),
    ]
    [unseen] = found(*wrong_ones, chosen_by=chosen_by)
    [needed] = found(
        *wrong_ones, right("weights/sample_mean/a/dp1-cp1-mb2-thd", EMPTY), chosen_by=chosen_by
    )

    assert str(unseen.reach) == "only seen with --mean=token or --mean=sum --divisor"
    assert str(needed.reach) == "with --mean=token or --mean=sum --divisor"
    assert needed.harm is Harm.GRADIENT_WITH_OPTION


def test_no_loss_is_picked_where_another_is_the_default() -> None:
    """One example is ms-swift, whose log-probabilities are misaligned with any loss_type."""
    [cause] = found(
        wrong("weights/token_mean/a/dp1-cp2-mb2-thd", EMPTY),
        wrong("weights/sample_mean/a/dp1-cp2-mb2-thd", EMPTY),
        wrong("off_policy.gspo/token_mean/a/dp1-cp2-mb2-thd", EMPTY),
        chosen_by={"token_mean": ("--mean=token",), "gspo": ("--gspo",), "cp": ("--cp",)},
    )
    assert cause.reach.options == ["--cp"]


def test_given_advantages_do_not_show_that_an_estimators_option_is_needed() -> None:
    [cause] = found(
        wrong("advantages.gae/sample_mean/a/dp1-cp1-mb2-thd", EMPTY),
        right("weights/sample_mean/a/dp1-cp1-mb2-thd", EMPTY),
        chosen_by={"gae": ("--whiten",)},
    )
    assert str(cause.reach) == "only seen with --whiten"


def test_a_rare_fact_of_all_cases_of_a_check_is_no_condition() -> None:
    """One example is AReaL, where a critic with context parallelism crashes on any batch."""
    [cause] = found(
        wrong("other_losses.value/sample_mean/a/dp1-cp2-mb2-thd", EMPTY, facts=[EMPTY_SAMPLE]),
        right("other_losses.value/sample_mean/a/dp1-cp1-mb2-thd", EMPTY, facts=[EMPTY_SAMPLE]),
        right("weights/sample_mean/b/dp1-cp2-mb2-thd", EMPTY),
    )
    assert EMPTY_SAMPLE not in cause.condition
    assert EMPTY_SAMPLE not in cause.reach.tested


def test_parallelism_is_named_where_its_option_is_one_that_everybody_sets() -> None:
    """One example is AReaL's ``backend``, which gives the number of ranks of each kind."""
    [cause] = found(
        wrong("weights/sample_mean/a/dp1-cp2-mb2-thd", EMPTY),
        right("weights/sample_mean/a/dp2-cp1-mb2-thd", EMPTY),
        chosen_by={"dp": ("backend",), "cp": ("backend",)},
    )
    assert str(cause.reach) == "only seen with context parallelism"


def test_what_users_lose_most_by_comes_first() -> None:
    option = wrong("weights/token_mean/a/dp1-cp1-mb2-thd", "policy_loss/multiplied_by_cp")
    default = wrong("weights/sample_mean/a/dp2-cp1-mb2-thd", "policy_loss/multiplied_by_dp")
    number = wrong("metric/sample_mean/a/dp1-cp1-mb4-thd", "policy_loss/divided_by_dp")

    assert [cause.name for cause in found(number, option, default)] == [
        "multiplied_by_dp",
        "multiplied_by_cp",
        "divided_by_dp",
    ]
