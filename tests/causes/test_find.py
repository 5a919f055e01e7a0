"""The causes of a report are the fewest mistakes that explain it and contradict nothing right."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract import Layout
from conformance.comparing.report_file import assembled
from conformance.corpus.cases import CORPUS, REJECTION
from conformance.explain.catalogue.mistake import commonness
from conformance.explain.causes import causes, with_traces
from conformance.explain.conditions import wording
from conformance.explain.conditions.facts import facts, of_finding, of_steps
from conformance.explain.reach import RARE
from conformance.findings.cause import (
    EMPTY_SAMPLE,
    Cause,
    CauseTrace,
    Clues,
    Severity,
    SuspectedLine,
    TracedFactor,
)
from conformance.findings.finding import Diagnosis, Finding, Logged
from conformance.findings.report import Selection
from conformance.findings.verdict import Verdict
from conformance.laws.law import rewards_shifted
from conformance.laws.rows import rows_of, step_of
from reference.step import Sample, Step
from tests.findings import (
    CP,
    EMPTY,
    HEADER,
    MICRO,
    UNEXPLAINED,
    Said,
    explained,
    right,
    wrong,
)

TIS_WHERE_CUT = "in the same step when the step is cut (truncated importance sampling token)"


def found(*said: Said) -> list[Cause]:
    findings = [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)]
    return causes(findings, [clues for _, clues in said], {})


def named(*said: Said) -> list[tuple[str, tuple[str, ...], int]]:
    return [(one.name, tuple(one.condition), len(one.findings)) for one in found(*said)]


def test_one_mistake_that_explains_everything_needs_no_condition() -> None:
    assert named(
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP),
        wrong("weights/sample_mean/a/dp1-cp4-mb1-thd", CP, MICRO),
        right("weights/token_mean/a/dp2-cp1-mb1-thd", MICRO),
    ) == [("multiplied_by_cp", (), 2)]


def test_a_mistake_that_only_another_version_knows_explains_nothing() -> None:
    gone = "policy_loss/a_mistake_of_another_version"

    assert named(wrong("weights/token_mean/a/dp1-cp2-mb1-thd", gone, CP)) == [
        ("multiplied_by_cp", (), 1)
    ]
    [(name, _, findings)] = named(wrong("weights/token_mean/a/dp1-cp2-mb1-thd", gone))
    assert (name, findings) == ("unexplained", 1)


def test_a_right_finding_tells_two_mistakes_apart_that_one_finding_does_not() -> None:
    ambiguous = wrong("weights/token_mean/a/dp1-cp2-mb2-thd", CP, MICRO)

    assert named(ambiguous, right("weights/token_mean/a/dp1-cp2-mb1-thd", CP)) == [
        ("multiplied_by_micro_batches", (), 1)
    ]
    assert named(ambiguous, right("weights/token_mean/a/dp1-cp1-mb2-thd", MICRO)) == [
        ("multiplied_by_cp", (), 1)
    ]


@pytest.mark.parametrize(
    ("others", "statement"),
    [
        (
            [],
            "an extra factor of cp (context-parallel ranks) or of the number of micro-batches per"
            " rank",
        ),
        (
            [right("weights/token_mean/a/dp1-cp2-mb1-thd", CP)],
            "an extra factor of the number of micro-batches per rank",
        ),
        (
            [wrong("weights/token_mean/a/dp1-cp4-mb2-thd", CP)],
            "an extra factor of cp (context-parallel ranks)",
        ),
    ],
)
def test_factors_that_nothing_tells_apart_are_all_named(
    others: Sequence[Said], statement: str
) -> None:
    [cause] = found(wrong("weights/token_mean/a/dp1-cp2-mb2-thd", CP, MICRO), *others)
    assert cause.words == statement


def test_a_right_finding_limits_a_mistake_to_a_condition() -> None:
    assert named(
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP),
        wrong("weights/token_mean/b/dp1-cp2-mb1-thd", CP),
        right("weights/sample_mean/a/dp1-cp2-mb1-thd", CP),
    ) == [("multiplied_by_cp", ("in token_mean",), 2)]


def test_what_a_mistake_needs_is_its_condition_and_makes_it_likelier_than_a_common_one() -> None:
    """By definition, clamped shares show only in steps with fewer tokens than ranks."""
    fewer = "where there are fewer active tokens than data-parallel ranks"
    clamped, per_rank = (
        f"policy_loss/{name}" for name in ("shares_of_ranks_clamped", "denominators_per_rank")
    )
    [cause] = found(
        wrong("weights/token_mean/a/dp2-cp1-mb1-thd", clamped, per_rank, facts=[fewer]),
        right("weights/token_mean/b/dp2-cp1-mb1-thd", per_rank),
    )

    assert (cause.name, cause.condition, cause.untested) == (
        "shares_of_ranks_clamped",
        [fewer],
        [],
    )
    assert cause.reach.rare == [fewer]


def test_a_condition_has_two_facts_where_one_would_contradict_what_is_right() -> None:
    [(name, condition, count)] = named(
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", EMPTY, facts=[EMPTY_SAMPLE]),
        right("weights/token_mean/b/dp1-cp2-mb1-thd", EMPTY),
        right("weights/sample_mean/a/dp1-cp2-mb1-thd", EMPTY, facts=[EMPTY_SAMPLE]),
    )

    assert (name, count) == ("empty_samples_counted", 1)
    assert condition == ("in token_mean", EMPTY_SAMPLE)


def test_terms_of_the_loss_that_are_logged_wrongly_are_one_cause() -> None:
    """One line of code logs the loss and its terms; another line logs the diagnostics."""
    shares = "shares_averaged_by_tokens"

    def logged(metric: str, make: Callable[..., Said]) -> Said:
        finding, clues = make(f"metric.{metric}/token_mean/a/dp1-cp1-mb2-thd", f"{metric}/{shares}")
        return finding, clues.model_copy(update={"terms": [metric]})

    assert named(
        *(logged(metric, wrong) for metric in ("loss", "entropy", "kl")),
        *(logged(metric, right) for metric in ("clip_fraction", "policy_kl")),
    ) == [(shares, ("in logged terms of the loss",), 3)]


def test_all_logged_numbers_of_the_loss_are_one_cause_if_those_of_rollouts_are_right() -> None:
    """As in ROLL: logged sums have a wrong divisor; numbers that are means are right."""
    windows, metrics = "windows_counted_by_samples", ("clip_fraction", "policy_kl", "kl")

    def logged(slug: str, term: str, make: Callable[..., Said]) -> Said:
        finding, clues = make(f"{slug}/token_mean/a/dp1-cp1-mb2-thd", f"{term}/{windows}")
        return finding, clues.model_copy(update={"terms": [term]})

    assert named(
        *(logged(f"metric.{metric}", metric, wrong) for metric in metrics),
        logged("rejection.metric", "rejected", right),
        logged("rollouts.reward", "reward", right),
    ) == [(windows, ("in logged numbers of the loss",), 3)]


def test_two_mistakes_of_one_finding_are_those_of_findings_that_have_one_each() -> None:
    """As in ROLL: rejected tokens are trained on if log-probabilities are not recomputed."""
    left_out, counted = "rejection_left_out", "original_mask_counted"
    policy, kl, not_kl = f"policy_loss/{left_out}", f"kl/{counted}", f"kl/{left_out}"
    where = "token_mean/a/dp1-cp1-mb2-thd"
    both = ("policy_loss", "kl")

    def of(terms: Sequence[str], said: Said) -> Said:
        return said[0], said[1].model_copy(update={"terms": [*terms]})

    assert sorted(
        named(
            wrong(f"rejection/{where}", policy),
            of(["kl"], wrong(f"rejection.kl/{where}", kl, excluded=[not_kl])),
            explained(
                f"rejection.combined/{where}",
                [policy],
                [kl],
                terms=both,
                excluded=[not_kl, f"policy_loss/{counted}"],
            ),
            right(f"rejection.off_policy/{where}", policy),
            of(both, right("rejection.combined/sample_mean/a/dp1-cp1-mb2-thd", policy, kl)),
        )
    ) == [
        (counted, ("in token_mean", "of the kl term"), 2),
        (left_out, ("in token_mean", "of the policy_loss term where ratios are 1"), 2),
    ]


def test_what_is_wrong_unless_tokens_are_rejected_before_they_are_counted_is_one_cause() -> None:
    """As in ROLL, which counts before rejection unless ratios to the old policy differ from 1."""
    counted, where = "sample_units_counted", "sample_mean/a/dp1-cp1-mb2-thd"
    policy, rejected = f"policy_loss/{counted}", ["where tokens are rejected"]

    def of(term: str, said: Said) -> Said:
        return said[0], said[1].model_copy(update={"terms": [term]})

    assert named(
        wrong(f"rejection/{where}", policy, facts=rejected),
        of("kl", wrong(f"rejection.kl/{where}", f"kl/{counted}", facts=rejected)),
        right(f"rejection.off_policy/{where}", policy, facts=rejected),
        of("rejected", right(f"rejection.metric/{where}", f"rejected/{counted}")),
        right(f"weights/{where}", policy),
    ) == [(counted, ("where tokens are rejected and ratios are 1",), 2)]


def test_another_wrong_finding_that_excludes_a_mistake_contradicts_it_too() -> None:
    both = named(
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP),
        wrong("weights/sample_mean/a/dp1-cp2-mb1-thd", EMPTY, excluded=[CP]),
    )

    assert sorted(both) == [
        ("empty_samples_counted", (), 1),
        ("multiplied_by_cp", ("in token_mean",), 1),
    ]


@pytest.mark.parametrize(
    ("fact", "slugs"),
    [
        ("in gradients and the logged loss", {"weights", "auxiliary.combined", "metric.loss"}),
        ("in logged losses", {"metric", "metric.loss"}),
    ],
)
def test_the_logged_loss_goes_with_gradients_and_with_the_logged_policy_loss(
    fact: str, slugs: set[str]
) -> None:
    checks = ("weights", "auxiliary.combined", "metric", "metric.loss", "metric.kl")
    of_checks = [
        (wrong if check in slugs else right)(f"{check}/token_mean/a/dp1-cp2-mb1-thd", CP)
        for check in checks
    ]

    assert named(*of_checks) == [("multiplied_by_cp", (fact,), len(slugs))]


def test_losses_and_what_is_logged_of_them_are_one_cause_if_diagnostics_are_right() -> None:
    """verl counts the mask before rejection sampling in every term, and not in its diagnostics."""
    wrong_ones = ("", ".combined", ".policy_loss", ".entropy", ".kl")
    right_ones = (".clip_fraction", ".policy_kl")
    said = [
        *(wrong(f"rejection{name}/token_mean/a/dp1-cp2-mb1-thd", CP) for name in wrong_ones),
        *(right(f"rejection{name}/token_mean/a/dp1-cp2-mb1-thd", CP) for name in right_ones),
    ]

    assert named(*said) == [("multiplied_by_cp", ("except in logged diagnostics",), 5)]


def test_two_causes_that_only_together_explain_are_both_named() -> None:
    together = explained(
        "auxiliary.combined/token_mean/a/dp1-cp2-mb1-thd",
        ["kl/multiplied_by_cp"],
        ["entropy/term_without_gradient"],
        terms=("policy_loss", "entropy", "kl"),
    )

    assert sorted(named(together)) == [
        ("multiplied_by_cp", (), 1),
        ("term_without_gradient", (), 1),
    ]


def test_a_mistake_of_several_terms_of_a_finding_claims_it_once() -> None:
    both_terms = explained(
        "auxiliary.combined/token_mean/a/dp1-cp2-mb1-thd",
        ["kl/multiplied_by_cp"],
        ["entropy/multiplied_by_cp"],
        terms=("policy_loss", "entropy", "kl"),
    )

    assert named(both_terms) == [("multiplied_by_cp", (), 1)]


def of_input(identity: str, verdict: Verdict) -> Said:
    diagnosis = Diagnosis(name="accepted", explanation="a NaN divisor is accepted")
    return Finding(id=identity, verdict=verdict, diagnosis=diagnosis), Clues(terms=[])


def test_a_mistake_in_the_losses_of_tokens_is_one_cause_whatever_terms_they_have() -> None:
    layout, mistake = "dp1-cp1-mb2-thd", "multiplied_by_micro_batches"
    policy, kl, entropy = (f"{term}/{mistake}" for term in ("policy_loss", "kl", "entropy"))
    logged = Finding(id=f"metric.kl/token_mean/a/{layout}", verdict=Verdict.CONFORMS)

    assert named(
        wrong(f"weights/token_mean/a/{layout}", policy),
        explained(f"auxiliary.kl/token_mean/a/{layout}", [kl], terms=["kl"]),
        explained(
            f"metric.loss/token_mean/a/{layout}",
            [policy, kl],
            terms=["policy_loss", "entropy", "kl"],
            excluded=[entropy],
        ),
        (logged, Clues(terms=["kl"], excluded=[kl])),
    ) == [(mistake, ("of the policy_loss and kl terms of the loss",), 3)]


def test_good_configuration_that_trains_wrong_weights_is_a_wrong_gradient() -> None:
    divided = Finding(
        id="arguments.divisor_by_default/constant/a/dp1-cp1-mb2-thd",
        verdict=Verdict.MISMATCH,
        scale=1.0,
        cosine=0.9,
        diagnosis=Diagnosis(name="several_divisors", explanation="divided by 5 to 13"),
    )

    [cause] = found((divided, Clues(terms=[])))

    assert cause.severity is Severity.GRADIENT
    assert cause.statement == (
        "tokens of one step are divided by different numbers:"
        " constant with a divisor that is left to the framework"
    )


def test_advice_is_never_one_cause_with_what_breaks_a_rule_of_the_framework() -> None:
    causes = found(
        of_input("arguments.divisor_nan/constant/a/dp1-cp1-mb1-thd", Verdict.MISMATCH),
        of_input("arguments.divisor_zero/constant/a/dp1-cp1-mb1-thd", Verdict.ADVICE),
        of_input("sharding.boundary_gap/prompt_mean/a/dp1-cp1-mb1-thd", Verdict.MISMATCH),
    )

    assert {(cause.severity, cause.statement) for cause in causes} == {
        (Severity.ACCEPTED, "bad input is accepted: constant with a divisor that is NaN"),
        (
            Severity.ACCEPTED,
            "bad input is accepted: prompt_mean with a sample between two groups",
        ),
        (
            Severity.ADVICE,
            "bad input is accepted, against no rule that it states:"
            " constant with a divisor that is 0",
        ),
    }


def test_a_statement_names_three_bad_inputs_and_counts_the_others() -> None:
    names = ("zero", "negative", "nan", "infinite", "bool")
    [cause] = found(
        *(
            of_input(f"arguments.divisor_{name}/constant/a/dp1-cp1-mb1-thd", Verdict.MISMATCH)
            for name in names
        )
    )

    assert cause.statement == (
        "bad input is accepted: constant with a divisor that is 0;"
        " constant with a divisor that is NaN; constant with a divisor that is a bool;"
        " and 2 more"
    )


def test_lost_tokens_come_before_bad_input() -> None:
    lost = Finding(
        id="sharding/prompt_mean/a/dp2-cp1-mb1-thd",
        verdict=Verdict.MISMATCH,
        diagnosis=Diagnosis(name="tokens_not_held", explanation=""),
    )
    bad = of_input("arguments.divisor_nan/constant/a/dp1-cp1-mb1-thd", Verdict.MISMATCH)

    statements = [one.statement for one in found(bad, (lost, Clues(terms=[])))]
    assert statements[0] == "active tokens are on no rank"


def test_a_number_that_is_not_logged_is_no_wrong_gradient() -> None:
    missing = Finding(
        id="metric.kl/token_mean/a/dp1-cp2-mb1-thd",
        verdict=Verdict.MISMATCH,
        diagnosis=Diagnosis(name="not_logged", explanation=""),
    )
    [cause] = causes([missing], [], {})

    assert cause.severity is Severity.LOGGED


def test_what_nothing_explains_is_one_cause_for_each_pattern() -> None:
    [cause] = found(
        explained("weights/token_mean/a/dp1-cp2-mb1-thd", []),
        explained("weights/token_mean/b/dp1-cp2-mb1-thd", []),
    )

    assert cause.name == "unexplained"
    assert "one ratio per rank" in cause.statement
    assert cause.condition == []


def of_untrained(identity: str) -> Finding:
    return Finding(id=identity, verdict=Verdict.UNSUPPORTED)


def crashed(identity: str, line: int, words: str) -> Said:
    place = f"fw/loss.py:{line} (step)"
    finding = Finding(id=identity, verdict=Verdict.CRASHED, message=words, place=place)
    return finding, Clues(terms=["policy_loss"])


def test_crashes_are_one_cause_for_each_place_and_kind_of_error() -> None:
    statements = [
        cause.statement
        for cause in found(
            crashed("weights/token_mean/a/dp1-cp2-mb1-thd", 7, "IndexError: 3 of 2"),
            crashed("weights/token_mean/b/dp1-cp2-mb1-thd", 7, "IndexError: 12 of 11"),
            crashed("weights/token_mean/c/dp1-cp2-mb1-thd", 7, "ValueError: 3\nTraceback"),
            crashed("weights/token_mean/d/dp1-cp2-mb1-thd", 7, "ValueError: 3\nTraceback of"),
        )
    ]

    assert [statement.partition(" (step)")[0] for statement in sorted(statements)] == [
        "IndexError: # of #, at fw/loss.py:#",
        "ValueError: 3, at fw/loss.py:7",
    ]


LOST, SPLIT = "policy_loss/tokens_lost", "where a prompt group is in several micro-batches"


@pytest.mark.parametrize(
    ("others", "condition"),
    [
        ([right("weights/sample_mean/a/dp1-cp1-mb2-thd", facts=[SPLIT])], ("in token_mean",)),
        # a finding that lacks two facts, or is of another case, does not show which fact matters
        ([right("weights/sample_mean/a/dp1-cp1-mb2-bshd", facts=[SPLIT])], ()),
        ([right("weights/sample_mean/b/dp1-cp1-mb2-thd", facts=[SPLIT])], ()),
        ([right("weights/token_mean/b/dp1-cp1-mb2-thd")], (SPLIT,)),
        # a finding that was not trained shows nothing, and lacks the facts of a cut
        (
            [(of_untrained("weights/token_mean/b/dp1-cp1-mb2-thd"), Clues(terms=["policy_loss"]))],
            (),
        ),
        # a fact that only one of three right findings lacks is not named
        (
            [
                right("weights/token_mean/b/dp1-cp1-mb2-thd"),
                right("weights/token_mean/c/dp1-cp1-mb2-thd", facts=[SPLIT]),
                right("weights/token_mean/d/dp1-cp1-mb2-thd", facts=[SPLIT]),
            ],
            (),
        ),
        # the absence of a fact, here of context parallelism, is not a condition
        ([right("weights/token_mean/b/dp1-cp2-mb2-thd", facts=[SPLIT])], ()),
    ],
)
def test_what_nothing_predicts_has_a_condition_if_it_halves_what_is_right(
    others: Sequence[Said], condition: tuple[str, ...]
) -> None:
    lost = wrong("weights/token_mean/a/dp1-cp1-mb2-thd", LOST, facts=[SPLIT])
    assert named(lost, *others) == [("tokens_lost", condition, 1)]


def test_a_condition_that_only_describes_does_not_decide_between_mistakes() -> None:
    """If two mistakes have the same evidence, the more common one explains the finding."""
    rarer, commoner = sorted((LOST, "policy_loss/tokens_miscounted"), key=_commonness, reverse=True)
    said = [
        wrong("weights/token_mean/a/dp1-cp1-mb2-thd", rarer, commoner),
        wrong("weights/sample_mean/b/dp1-cp2-mb2-thd", CP, rarer),
        right("weights/sample_mean/a/dp1-cp1-mb2-thd"),
        right("weights/sample_mean/c/dp1-cp1-mb2-thd"),
    ]

    assert {cause.name for cause in found(*said)} == {
        "multiplied_by_cp",
        commoner.partition("/")[2],
    }


def _commonness(named: str) -> tuple[int, int]:
    return commonness(named.partition("/")[2])


BALANCED = "dp2-cp2-mb1-thd+balance_data"


@pytest.mark.parametrize(
    ("others", "condition"),
    [
        ([], ()),
        (["weights/token_mean/b/dp2-cp2-mb1-thd"], ("with balance_data",)),
        (["weights/token_mean/c/dp2-cp2-mb1-thd"], ()),
        (["weights/token_mean/b/dp2-cp1-mb1-thd"], ()),
        (["weights/sample_mean/b/dp2-cp2-mb1-thd"], ()),
        (["weights/sample_mean/b/dp2-cp2-mb1-thd+balance_data"], ("in token_mean",)),
    ],
)
def test_few_crashes_name_a_condition_only_if_a_step_is_trained_without_it_alone(
    others: Sequence[str], condition: tuple[str, ...]
) -> None:
    both = [crashed(f"weights/token_mean/{case}/{BALANCED}", 7, "IndexError") for case in "ab"]
    assert named(*both, *map(right, others)) == [("crashed", condition, 2)]


def test_conditions_are_in_the_words_of_users() -> None:
    typed = {"token_mean": ("--per-token",), "balance_data": ("--balance-data",)}
    mistake = [CP]
    said = [
        wrong(f"weights/token_mean/a/{BALANCED}", *mistake),
        right("weights/token_mean/a/dp2-cp2-mb1-thd", *mistake),
        right(f"weights/sample_mean/a/{BALANCED}", *mistake),
    ]
    findings = [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)]
    [cause] = causes(findings, [clues for _, clues in said], typed)

    assert cause.condition == ["in token_mean", "with balance_data"]
    assert cause.statement == f"{cause.words}, with --per-token, with --balance-data"


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ("in off_policy.gspo", "with --estimator=gspo"),
        ("in off_policy.m2po", "in the gradient of the M2PO loss where ratios are not 1"),
        ("in advantages.gae", "in the gradient of the policy loss with GAE advantages"),
        ("in metric.policy_kl", "in the logged policy KL"),
        ("in laws.cut_tis_token", TIS_WHERE_CUT),
        ("where cp > 1", "with context parallelism"),
        ("with padded rows", "with --format=bshd"),
        ("without legacy_trainer", "without --use-v1=False"),
        ("with split_generation", "where every micro-batch is a generation of its own"),
        ("in token_mean", "in token_mean"),
    ],
)
def test_facts_are_said_without_names_of_this_project(fact: str, words: str) -> None:
    typed = {
        "gspo": ("--estimator=gspo",),
        "m2po": ("--decoupled",),
        "icepop": ("--decoupled", "--mask"),
        "bshd": ("--format=bshd",),
        "legacy_trainer": ("--use-v1=False",),
        "split_generation": ("--steps-per-generation",),
    }
    assert wording.said(fact, typed) == words


def test_no_words_of_a_fact_have_a_comma() -> None:
    """Commas separate a statement from its condition."""
    assert not [fact for fact in facts() if ", " in wording.said(fact, {})]


def test_the_smallest_reproduction_comes_first() -> None:
    [cause] = found(
        wrong("weights/token_mean/a/dp4-cp2-mb1-thd", CP),
        wrong("weights/token_mean/b/dp1-cp2-mb1-thd", CP),
        wrong("weights/token_mean/c/dp1-cp2-mb1-thd+balance_data", CP),
    )

    assert [name.split("/")[2] for name in cause.findings] == ["b", "c", "a"]


def test_causes_come_by_what_they_do() -> None:
    logged, clues = wrong("metric.kl/token_mean/a/dp1-cp2-mb1-thd", EMPTY)
    logged = logged.model_copy(update={"logged": Logged(expected=2.0, reported=3.0)})
    gradient, more = wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP)
    gradient = gradient.model_copy(update={"scale": 2.0, "cosine": 1.0})
    advice = Finding(
        id="logging/token_mean/a/dp1-cp1-mb1-thd",
        verdict=Verdict.ADVICE,
        diagnosis=Diagnosis(name="accepted", explanation=""),
    )
    all_three = found((logged, clues), (gradient, more), (advice, Clues(terms=[])))

    assert [cause.severity for cause in all_three] == [
        Severity.GRADIENT,
        Severity.LOGGED,
        Severity.ADVICE,
    ]


MISTAKES = [CP, MICRO, EMPTY, "policy_loss/not_divided"]
FACTS = ["where a", "where b", "where c"]
LAYOUTS = ["dp1-cp2-mb1-thd", "dp2-cp1-mb2-bshd", "dp1-cp1-mbtokens-thd"]


@st.composite
def tables(draw: st.DrawFn) -> list[Said]:
    said = []
    for place in range(draw(st.integers(1, 12))):
        mode = draw(st.sampled_from(["token_mean", "sample_mean"]))
        identity = f"weights/{mode}/c{place}/{draw(st.sampled_from(LAYOUTS))}"
        facts = draw(st.lists(st.sampled_from(FACTS), unique=True))
        excluded = draw(st.lists(st.sampled_from(MISTAKES), unique=True))
        explaining = draw(st.lists(st.sampled_from(MISTAKES), unique=True))
        explaining = [name for name in explaining if name not in excluded]
        if draw(st.booleans()):
            said.append(right(identity, *excluded, facts=facts))
        else:
            said.append(wrong(identity, *explaining, excluded=excluded, facts=facts))
    return said


@given(tables(), st.randoms())
def test_no_cause_contradicts_a_finding_and_the_order_of_findings_is_nothing(
    said: list[Said], chance: random.Random
) -> None:
    of_all = found(*said)

    for cause in of_all:
        mistake = f"policy_loss/{cause.name}"
        for finding, clues in said:
            facts = {*clues.conditions, *of_finding(finding, "policy_loss")}
            if mistake in clues.excluded:
                assert cause.name == "unexplained" or not facts >= {
                    *cause.condition,
                    *cause.untested,
                }
            if finding.id in cause.findings and cause.name != "unexplained":
                assert mistake in clues.explanations[0][0]
    claimed = {name for cause in of_all for name in cause.findings}
    assert claimed == {finding.id for finding, _ in said if finding.verdict is Verdict.MISMATCH}
    chance.shuffle(said)
    report = assembled(
        HEADER,
        [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)],
        [clues for _, clues in said],
        Selection(selected=len(said), deselected=0),
    )
    again = assembled(HEADER, report.findings[::-1], report.clues, report.selection)
    assert again.to_json() == report.to_json()


def test_a_report_of_what_is_right_keeps_no_clues() -> None:
    finding, clues = right("weights/token_mean/a/dp1-cp2-mb1-thd", CP)
    finding = finding.model_copy(update={"clues": 0})
    report = assembled(HEADER, [finding], [clues], Selection(selected=1, deselected=0))

    assert report.clues == []
    assert report.causes == []
    assert report.findings[0].clues is None


def test_clues_are_kept_once_and_only_on_what_is_suspected() -> None:
    said = [
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP),
        right("weights/token_mean/b/dp1-cp1-mb1-thd", MICRO),
        right("weights/token_mean/c/dp1-cp1-mb1-thd", EMPTY),
    ]
    findings = [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)]
    report = assembled(
        HEADER, findings, [clues for _, clues in said], Selection(selected=3, deselected=0)
    )

    assert [finding.clues for finding in report.findings] == [0, 1, 1]
    assert report.clues[1].excluded == []


@pytest.mark.parametrize("verdict", [Verdict.REFUSED, Verdict.UNSUPPORTED])
def test_what_is_not_wrong_has_no_cause(verdict: Verdict) -> None:
    finding = Finding(id="weights/token_mean/a/dp1-cp2-mb1-thd", verdict=verdict, message="no")

    assert causes([finding], [], {}) == []


def test_diagnostics_are_told_from_logged_losses() -> None:
    logged = [
        explained(
            f"metric.{term}/token_mean/a/dp1-cp2-mb1-thd",
            [f"{term}/multiplied_by_cp"],
            terms=(term,),
        )
        for term in ("entropy", "kl")
    ]
    whole = explained(
        "metric.loss/token_mean/a/dp1-cp2-mb1-thd",
        [],
        terms=("entropy", "kl"),
        excluded=["entropy/multiplied_by_cp", "kl/multiplied_by_cp"],
    )

    causes = [(cause.name, cause.condition) for cause in found(*logged, whole)]
    assert ("multiplied_by_cp", ["in logged diagnostics"]) in causes


def test_a_fact_that_implies_another_does_not_hide_it() -> None:
    """Fully masked samples are also empty samples; the right step has samples of neither kind."""
    implied = "where a sample has no active token"
    facts = [implied, "where all tokens of a sample are masked"]
    failed, clues = crashed("weights/token_mean/a/dp1-cp1-mb1-thd", 7, "ZeroDivisionError: 1 / 0")
    [cause] = found(
        (failed, clues.model_copy(update={"conditions": facts})),
        right("weights/token_mean/b/dp1-cp1-mb1-thd"),
    )

    assert cause.condition == [implied]


def test_given_advantages_say_nothing_of_computed_ones() -> None:
    """Findings of `rejection` have given advantages, so they show nothing about rewards."""
    rejected = "where some samples of a prompt are rejected"
    split = "where a prompt group is in several micro-batches"
    said = Finding(
        id="advantages.group_centred/token_mean/a/dp1-cp1-mb2-thd",
        verdict=Verdict.ADVICE,
        diagnosis=UNEXPLAINED.model_copy(update={"name": "rejected_siblings_counted"}),
    )
    [cause] = found(
        (said, Clues(terms=["policy_loss"], conditions=[rejected, split])),
        right("advantages.group_centred/token_mean/b/dp1-cp1-mb2-thd", facts=[split]),
        right("rejection/token_mean/a/dp1-cp1-mb1-thd", facts=[rejected]),
    )

    assert split not in cause.condition
    assert rejected in (*cause.condition, *cause.untested)


def test_step_says_whether_tokens_are_rejected() -> None:
    plain, rejected = (set(of_steps(case.steps, Layout())) for case in (CORPUS[0], REJECTION[0]))

    assert "where no token is rejected" in plain - rejected
    assert "where tokens are rejected" in rejected - plain


def test_rewards_that_a_law_shifts_hardly_differ_beside_their_size() -> None:
    [case] = [case for case in CORPUS if case.name == "split_groups"]
    [rows] = rows_of(case.steps)
    given, shifted = (step_of(of, is_rejecting=False) for of in (rows, rewards_shifted(rows)))
    facts_of_size = {"where rewards of a prompt hardly differ", "where rewards are large"}

    assert facts_of_size <= {*RARE}
    assert not facts_of_size & {*of_steps((given,), Layout())}
    assert facts_of_size <= {*of_steps((shifted,), Layout())}


def test_what_a_layout_alone_decides_is_known_of_a_step_that_crashed() -> None:
    on_ranks = "where a batch is no multiple of the data-parallel ranks"
    in_micro_batches = "where micro-batches differ in their number of samples"
    [five] = [one.steps for one in REJECTION if one.name == "rejected_of_five"]

    assert not {on_ranks, in_micro_batches} & {*of_steps(five, Layout())}
    assert {on_ranks, in_micro_batches} <= {*of_steps(five, Layout(dp=2))}
    assert {on_ranks, in_micro_batches} & {*of_steps(five, Layout(micro_batches=2))} == {
        in_micro_batches
    }


@pytest.mark.parametrize(
    ("layout", "holds"),
    [
        ("dp1-cp1-mb1-bshd", True),  # each sample is a row
        ("dp1-cp1-mb2-thd", False),
        ("dp2-cp1-mb2-thd", True),  # the first micro-batch has two masked samples
        ("dp2-cp1-mb2-bshd+masked_truncation", False),
    ],
)
def test_row_without_active_tokens_is_a_sample_or_a_micro_batch(layout: str, holds: bool) -> None:
    masked, active = (Sample(prompt_length=1, loss_mask=[mask] * 2, group=0) for mask in (0, 1))
    steps = (Step.of([masked, masked, active, active, active, masked, active, active]),)

    fact = "where all tokens of a row are masked"
    assert fact in RARE
    assert (fact in of_steps(steps, Layout.parse(layout))) is holds


@pytest.mark.parametrize(
    ("layout", "holds"),
    [
        ("dp1-cp1-mb1-bshd", False),
        ("dp2-cp1-mb1-bshd", True),
        # its other tokens are active until truncated samples are masked
        ("dp2-cp1-mb2-bshd+masked_truncation", False),
    ],
)
def test_ranks_with_less_than_a_token_are_known(layout: str, holds: bool) -> None:
    [one_token] = [case.steps for case in CORPUS if case.name == "one_token"]
    fact = "where there are fewer active tokens than data-parallel ranks"

    assert fact in RARE
    assert (fact in of_steps(one_token, Layout.parse(layout))) is holds


def suspected(line: int) -> CauseTrace:
    found = SuspectedLine(file="toy/loss.py", line=line, function="reduce", why="2 instead of 4")
    return CauseTrace(suspects=[found], chain=[TracedFactor(value=0.5)])


def test_estimators_that_add_up_rewards_are_one_condition() -> None:
    """One example is verl's lost rewards, which estimators over a prompt's rewards do not lose."""
    lost = "policy_loss/reward_at_a_masked_token_lost"
    names = ("gae", "penalised_gae", "reinforce_pp")
    [(name, condition, count)] = named(
        *(wrong(f"advantages.{one}/sample_mean/a/dp1-cp1-mb2-thd", lost) for one in names),
        right("advantages.group_normalised/sample_mean/b/dp1-cp1-mb2-thd", lost),
    )
    assert (name, count) == ("reward_at_a_masked_token_lost", 3)
    assert condition == ("in advantages that add up the rewards of tokens",)


def test_what_no_mistake_explains_is_told_by_its_line() -> None:
    modes = ("constant", "prompt_mean", "token_mean")
    names = [f"weights/{mode}/odd_groups/dp1-cp1-mb1-bshd" for mode in modes]
    said = [wrong(name) for name in names]
    findings = {finding.id: finding for finding, _ in said}
    [whole] = found(*said)

    traces = {names[0]: suspected(7), names[1]: suspected(9)}
    one, other = with_traces([whole], traces, findings)

    assert one.statement == "a different factor at toy/loss.py:7 (reduce)"
    assert one.findings == [names[0], names[2]]
    assert other.statement == "a different factor at toy/loss.py:9 (reduce)"
    assert other.suspects == traces[names[1]].suspects
    assert with_traces([whole], {}, findings) == [whole]

    lost = {names[0]: suspected(7).model_copy(update={"chain": []})}
    [untold] = with_traces([whole], lost, findings)
    assert untold.statement == whole.statement, "no line of these has a factor"
    assert untold.suspects == lost[names[0]].suspects


def test_causes_that_one_line_tells_are_one() -> None:
    """No known mistake explains a gradient and a logged number, but both have the same line."""
    names = (
        "weights/token_mean/odd_groups/dp1-cp1-mb1-bshd",
        "metric.entropy/token_mean/odd_groups/dp1-cp2-mb1-bshd",
    )
    said = [wrong(name) for name in names]
    findings = {finding.id: finding for finding, _ in said}
    several = [cause for one in said for cause in found(one)]

    [one] = with_traces(several, {name: suspected(7) for name in names}, findings)

    assert one.statement == "a different factor at toy/loss.py:7 (reduce)"
    assert one.severity is Severity.GRADIENT
    assert sorted(one.findings) == sorted(names)
    assert one.reach.options == []


def test_numbers_that_nothing_explains_are_one_cause_for_each_kind_of_number() -> None:
    """One example is a sum that includes masked tokens, which differs from step to step."""
    metric, entropy = ("metric", "metric.entropy")
    ids = (f"{metric}/token_mean/a/dp1-cp1-mb1-thd", f"{metric}/token_mean/b/dp1-cp1-mb1-thd")
    several = [
        Finding(id=name, verdict=Verdict.MISMATCH, error=1.0, diagnosis=reported(number))
        for number, name in enumerate((*ids, f"{entropy}/token_mean/a/dp1-cp1-mb1-thd"))
    ]

    one, other = causes(several, [], {})

    assert one.statement.endswith("explains it: another number is reported than expected")
    assert (one.findings, other.findings) == ([*ids], [several[2].id])
    assert other.statement.endswith("explains it: 2 is reported instead of 7")


def reported(number: int) -> Diagnosis:
    return Diagnosis(
        name=UNEXPLAINED.name,
        explanation=f"{number} is reported instead of 7",
        numbers={"reported": number, "expected": 7},
    )


def test_what_no_mistake_explains_is_a_part_of_the_one_at_its_line() -> None:
    """One example is verl's gradients that are not reduced: one batch of them fits no mistake."""
    said = [
        wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP),
        wrong("weights/token_mean/b/dp1-cp2-mb2-thd"),
        wrong("metric/token_mean/c/dp1-cp2-mb2-thd"),
    ]
    whole = found(*said)
    findings = {finding.id: finding for finding, _ in said}
    lines = dict(zip(findings, (7, 7, 9), strict=True))

    one, other = with_traces(whole, {name: suspected(lines[name]) for name in findings}, findings)

    assert [one.name, other.name] == ["multiplied_by_cp", "unexplained"]
    assert one.statement == "an extra factor of cp (context-parallel ranks)"
    assert [len(cause.findings) for cause in (one, other)] == [2, 1]
    assert one.suspects[0].line == 7


def test_a_finding_that_was_traced_for_another_cause_tells_less() -> None:
    """One finding has both mistakes; its trace is used for the mistake without other findings."""
    both, alone = (
        f"weights/{mode}/odd_groups/dp1-cp1-mb1-bshd" for mode in ("constant", "token_mean")
    )
    said = [wrong(both), wrong(alone)]
    findings = {finding.id: finding for finding, _ in said}
    [cause] = found(*said)
    named = cause.model_copy(update={"name": "entropy_not_divided", "findings": [both, alone]})
    other = cause.model_copy(update={"name": "kl_not_divided", "findings": [both]})

    one, two = with_traces([named, other], {both: suspected(7), alone: suspected(9)}, findings)

    assert (one.suspects[0].line, two.suspects[0].line) == (9, 7)
