"""Records of frameworks: what follows from them, and that the adapters' records are complete."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from adapters.contract import Departure, DepartureKind, Job, Layout, Option, Unsupported
from adapters.contract.description import (
    Assumed,
    DefaultValue,
    Description,
    Documented,
)
from adapters.contract.framework import (
    Configurable,
    Framework,
    OptionRow,
    Substitute,
    nested,
)
from adapters.contract.job import Configuration, Defaults, Setting
from adapters.contract.layout import expanded
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.contract.tables import RecordFile, read_departures, read_options
from conformance.runs import registry
from reference.aggregation import Aggregation, AuxiliaryAggregation, EstimatorConventions, Mode
from tests.jobs import job_of, step_of

RECORD = Framework(
    title="Example",
    modes={
        "token": (Mode.TOKEN_MEAN, {"loss.per_token": True}),
        "norm": (Mode.CONSTANT, {"loss.kind": "norm"}),
        "sums": ("constant:1", {"loss.kind": "sums"}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.DUAL_CLIP: {"loss.clip_c": 3.0},
        Objective.REJECTION: {"loss.reject": "token"},
    },
    layout={
        "mb": {"batch.number": lambda job: job.layout.micro_batches},
        "mbtokens bshd": {"batch.padded": True},
        Option.OVERLAP_GRAD_REDUCE: {"overlap": True},
    },
    always={"lr": 0.0},
    configurations={
        Setting.MODE: Configurable({"loss.per_token": ""}, ("per_token",)),
        Setting.BATCH_SIZE: Configurable({"batch.size": lambda job: job.configuration.batch_size}),
    },
    metrics={Metric.POLICY_LOSS: "loss", Metric.POLICY_KL: "-kl", Metric.REJECTED: "1 - kept"},
)


def job(layout: str = "dp1-cp1-mb2-thd", objective: Objective = Objective.POLICY) -> Job:
    return job_of(layout=Layout.parse(layout), objective=objective)


def described(*missing: str, default: Callable[[str], object] = {}.get) -> Description:
    """The description of a version that lacks the options ``missing``."""
    return RECORD.description(
        lambda settings: not {*settings} & {*missing}, (), default, stubs=("ray",)
    )


def test_settings_are_those_of_the_mode_the_layout_and_the_objective() -> None:
    assert RECORD.settings(job(objective=Objective.DUAL_CLIP)) == {
        "lr": 0.0,
        "loss.per_token": True,
        "batch.number": 2,
        "loss.clip_c": 3.0,
    }
    assert RECORD.settings(job("dp1-cp1-mbtokens-thd+overlap_grad_reduce")) == {
        "lr": 0.0,
        "loss.per_token": True,
        "batch.padded": True,
        "overlap": True,
    }


def test_configuration_comes_last_and_an_empty_text_leaves_an_option_out() -> None:
    configured = replace(job(), configuration=Configuration(says_mode=False, batch_size=3))

    assert RECORD.settings(configured) == {"lr": 0.0, "batch.number": 2, "batch.size": 3}
    assert described().configurations == {Setting.MODE: ("per_token",), Setting.BATCH_SIZE: ()}


def test_documented_defaults_are_left_out_or_typed_by_the_first_objective_that_sets_them() -> None:
    whole = {"loss.clip_c": 3.0, "loss.reject": "token", "loss.other": 1}
    record = replace(
        RECORD,
        objectives={**RECORD.objectives, Objective.GSPO: {"loss.clip_c": 3.0}},
        defaults={name: Documented(value, "a page") for name, value in whole.items()},
    )
    clipped = job(objective=Objective.DUAL_CLIP)
    typed = replace(clipped, defaults=Defaults.TYPED)
    found = record.description(lambda _: True, (), {"loss.clip_c": 2.0}.get)

    assert record.with_defaults == {
        Objective.DUAL_CLIP: ["loss.clip_c"],
        Objective.REJECTION: ["loss.reject"],
    }
    assert record.settings(typed) == record.settings(clipped)
    assert "loss.clip_c" not in record.settings(replace(typed, defaults=Defaults.LEFT_OUT))
    assert found.defaults[Objective.DUAL_CLIP] == (
        DefaultValue("loss.clip_c", record.defaults["loss.clip_c"], 2.0),
    )


def test_record_of_a_version_has_nothing_to_choose_that_needs_an_option_it_lacks() -> None:
    lacking = {"loss.kind", "loss.clip_c", "batch.size", "batch.number", "overlap"}
    narrowed = RECORD.narrowed(lambda settings: not {*settings} & lacking)

    assert {*narrowed.modes} == {"token"}
    assert {*narrowed.objectives} == {Objective.POLICY, Objective.REJECTION}
    assert {*narrowed.layout} == {"mb", "mbtokens bshd"}, "every job has a number of micro-batches"
    assert {*narrowed.configurations} == {Setting.MODE}


def test_mode_that_a_framework_lacks_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="no sample_mean"):
        RECORD.settings(replace(job(), aggregation=Aggregation(Mode.SAMPLE_MEAN)))


def test_uneven_micro_batches_are_unsupported_unless_options_cut_them() -> None:
    cut = replace(RECORD, layout={"mbuneven": {"batch.sizes": "uneven"}})

    assert cut.settings(job("dp1-cp1-mbuneven-thd"))["batch.sizes"] == "uneven"
    with pytest.raises(Unsupported, match="no micro-batches by uneven"):
        RECORD.settings(job("dp1-cp1-mbuneven-thd"))


def test_loss_is_unsupported_in_modes_that_it_is_documented_not_to_have() -> None:
    of_one = replace(RECORD, only_modes={Objective.DUAL_CLIP: Mode.CONSTANT})

    assert of_one.settings(job())
    with pytest.raises(Unsupported, match="dual_clip is documented to have no token_mean"):
        of_one.settings(job(objective=Objective.DUAL_CLIP))


def test_version_offers_what_its_configuration_has() -> None:
    whole, older = described(), described("loss.reject", "loss.kind")

    assert whole.modes == {Mode.TOKEN_MEAN, Mode.CONSTANT}
    assert whole.default_mode is Mode.TOKEN_MEAN
    assert whole.objectives == {*RECORD.objectives}
    assert whole.metrics == {*RECORD.metrics}
    assert whole.options == {Option.OVERLAP_GRAD_REDUCE}
    assert whole.stubs == ("ray",)
    assert older.modes == {Mode.TOKEN_MEAN}
    assert older.objectives == {Objective.POLICY, Objective.DUAL_CLIP}
    assert older.metrics == {Metric.POLICY_LOSS, Metric.POLICY_KL}


def test_options_whose_values_depend_on_the_job_are_not_asked_for() -> None:
    asked: list[str] = []
    record = Framework(
        title="Example",
        modes={"token": (Mode.TOKEN_MEAN, {})},
        objectives={Objective.GROUP_CENTRED: {"group": len, "std": None}},
    )
    record.description(lambda settings: asked.extend(settings) or True, ())

    assert asked == ["std"]


def test_options_and_choices_that_no_row_speaks_of_are_new() -> None:
    record = Framework(
        title="Example",
        modes={"token": (Mode.TOKEN_MEAN, {"mode": "token"})},
        objectives={},
        always={"lr": 0.0},
        options=(OptionRow(("mode", "low"), "the mode and a bound", "`sum` is the user's"),),
    )
    choices = ["mode=token", "mode=sum", "mode=fifth"]
    found = record.description(lambda _: True, ["lr", "low", "use_fifth_loss", "mode", *choices])

    assert found.new_options == ("mode=fifth", "use_fifth_loss")


def test_a_description_says_what_users_type() -> None:
    typed = described().chosen_by

    assert typed[Objective.DUAL_CLIP] == ("loss.clip_c=3.0",)
    assert typed[Mode.TOKEN_MEAN] == ("loss.per_token",)
    assert typed[Mode.CONSTANT] == ("loss.kind=norm",)
    assert Objective.POLICY not in typed


def test_nobody_types_what_is_the_default() -> None:
    typed = described(default={"loss.kind": "norm"}.get).chosen_by

    assert Mode.CONSTANT not in typed
    assert typed[Mode.TOKEN_MEAN] == ("loss.per_token",)


def test_a_number_that_is_off_by_default_is_a_switch_and_a_stand_in_is_not_shown() -> None:
    """One example is AReaL's ``m2_threshold``, which no other option switches on."""
    m2po = {"decoupled": True, "m2_threshold": 0.04, "eps_clip": 0.25, "code": Substitute("ours")}
    record = Framework(
        title="Example",
        modes={"token": (Mode.TOKEN_MEAN, {})},
        objectives={Objective.M2PO: m2po},
    )
    typed = record.description(lambda _: True, (), {"eps_clip": 0.2}.get).chosen_by

    assert typed[Objective.M2PO] == ("decoupled", "m2_threshold=0.04", "code")


def test_modes_have_the_frameworks_own_names() -> None:
    names = {"token": "token_mean", "norm": "constant", "sums": "constant:1"}
    assert RECORD.mode_names == names


def test_metrics_are_read_by_their_names_and_signs() -> None:
    logs = [{"loss": 1.0, "kl": 0.5}, {"loss": 2.0, "kl": None, "kept": 0.75}]

    assert RECORD.reported(logs) == {
        Metric.POLICY_LOSS: (1.0, 2.0),
        Metric.POLICY_KL: (-0.5, None),
        Metric.REJECTED: (None, 0.25),
    }


def test_names_with_dots_are_sections() -> None:
    assert nested({"a.b.c": 1, "a.d": 2, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}


def test_tables_beside_a_record_have_its_options_and_departures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "example_adapter"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tables.toml").write_text(
        """
        [[options]]
        names = "low, high"
        changes = "the bounds"
        [[fsdp_options]]
        names = '''
        norm,
        clip'''
        changes = "the gradient"
        note = '''
        it is read
        before'''
        [[departures]]
        passed_by = "a check"
        why = "it only checks"
        """
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert read_options("example_adapter") == (OptionRow(("low", "high"), "the bounds"),)
    assert read_options("example_adapter", "fsdp_options") == (
        OptionRow(("norm", "clip"), "the gradient", "it is read before"),
    )
    assert read_departures("example_adapter") == (
        Departure(DepartureKind.PASSED_BY, "a check", "it only checks"),
    )


TABLES = """
title = "Example"
driven = ["dp{1,2}-cp1-mb2-thd"]

[shared]
clipped = { low = "$clip_low", clip.high = "$clip_high" }

[modes]
mean = ["token_mean", {}]
fixed = ["constant", { mode = "fixed", divisor = "$job.aggregation.divisor" }]

[objectives]
off_policy = "clipped"
gspo = ["clipped", { low = 0.5, ratio = "sequence" }]

[always]
ranks = "$job.layout.world_size"
norm = "$none"
steps = "$twice"

[conventions]
entropy = "token_mean"
kl = { value = "with_policy_loss", where = "a page" }
of_groups = { lost_degrees_of_freedom = 0 }

[rules]
"divisor_zero, divisor_nan" = "its validation"

[[defaults]]
where = "another page"
clip.high = 0.2

[[variants.other.departures]]
set = "nothing"
why = "it is an example"

[variants.other.always]
norm = 1.0
"""


@pytest.fixture
def record_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RecordFile]:
    """A function that writes a record's text to a file in a new package."""

    def written(text: str) -> RecordFile:
        package = tmp_path / f"{tmp_path.name}_{len(text)}"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "tables.toml").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return RecordFile(package.name, globals())

    return written


def twice(job: Job) -> int:
    return 2 * len(job.steps)


def test_a_file_has_a_record_whose_values_depend_on_the_job(
    record_file: Callable[[str], RecordFile],
) -> None:
    record = record_file(TABLES).record()

    settings = record.settings(
        job_of(step_of([1]), mode=Mode.TOKEN_MEAN, objective=Objective.GSPO, layout=Layout(dp=2))
    )
    assert settings == {
        "ranks": 2,
        "norm": None,
        "steps": 2,
        "low": 0.5,
        "clip.high": CONSTANTS.clip_high,
        "ratio": "sequence",
    }
    assert record.driven == (*expanded("dp1-cp1-mb2-thd"), *expanded("dp2-cp1-mb2-thd"))
    assert record.conventions == {
        "entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, "a page"),
        "of_groups": Assumed(EstimatorConventions(lost_degrees_of_freedom=0)),
    }
    assert record.rules == dict.fromkeys(("divisor_zero", "divisor_nan"), "its validation")
    assert record.defaults == {"clip.high": Documented(0.2, "another page")}


def test_a_variant_adds_to_another_record(record_file: Callable[[str], RecordFile]) -> None:
    file = record_file(TABLES)
    base = file.record()
    variant = file.variant("other", base=base)

    assert variant.always == {**base.always, "norm": 1.0}
    assert variant.objectives == base.objectives
    assert [one.what for one in variant.departures] == ["nothing"]


def test_a_misspelt_table_or_value_is_no_record(
    record_file: Callable[[str], RecordFile],
) -> None:
    with pytest.raises(ValidationError, match="objektives"):
        record_file(TABLES.replace("[objectives]", "[objektives]")).record()
    with pytest.raises(LookupError, match="clip_lowest"):
        record_file(TABLES.replace("$clip_low", "$clip_lowest")).record()


# `native` has no users who would read about its options.
RECORDS = [
    pytest.param(adapter.framework, id=f"{name}-{engine}")
    for name in sorted({*registry.known()} - {"native"})
    for engine, adapter in registry.adapter_classes(name).items()
    if adapter.framework is not None
]


@pytest.mark.parametrize("record", RECORDS)
def test_options_that_jobs_set_are_documented(record: Framework) -> None:
    of_modes = [settings for _, settings in record.modes.values()]
    chosen = [*of_modes, *record.objectives.values(), *record.layout.values()]
    documented = [name for row in record.options for name in row.names]

    assert {name for settings in chosen for name in settings} <= {*documented}
    assert len(documented) == len({*documented})


@pytest.mark.parametrize("record", RECORDS)
def test_parts_of_layouts_that_set_options_exist(record: Framework) -> None:
    named = {part for words in record.layout for part in words.split()}
    cuts = ("mb", "mbuneven", "mbtokens")
    cut_and_stored = {f"{cut}-{stored}" for cut in cuts for stored in ("thd", "bshd")}

    sizes = {"dp", "cp", "tp", "pp", "accumulated"}
    assert named <= {*sizes, *cuts, "thd", "bshd", *cut_and_stored, *Option}


@pytest.mark.parametrize("record", RECORDS)
def test_departures_are_told_once(record: Framework) -> None:
    assert {one.kind for one in record.departures} >= {"set"}
    assert len({one.what for one in record.departures}) == len(record.departures)


def test_reported_numbers_have_a_gap_where_a_log_lacks_one() -> None:
    names = {Metric.LOSS: "loss", Metric.KL: "-kl", Metric.REWARD: "reward"}
    record = Framework(title="Toy", modes={}, objectives={}, metrics=names)

    found = record.reported([{"loss": 1, "kl": 0.5}, {"loss": 2}])

    assert found == {Metric.LOSS: (1.0, 2.0), Metric.KL: (-0.5, None)}


def test_metrics_of_rollouts_are_read_from_their_own_log() -> None:
    names = {Metric.LOSS: "loss", Metric.REWARD: "reward"}
    record = Framework(title="Toy", modes={}, objectives={}, metrics=names)

    found = record.reported([{"loss": 1, "reward": 3}, {"loss": 2}], rollouts={"reward": 4})

    assert found == {Metric.LOSS: (1.0, 2.0), Metric.REWARD: (4.0,)}
