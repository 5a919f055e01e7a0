"""Startup validation that accepts a wrong configuration, or refuses a right one."""

from dataclasses import replace
from typing import ClassVar

from adapters.contract import Job, Layout, Refused
from adapters.native import options as native
from adapters.native.options import Options
from adapters.native.packing import SampleTensors
from adapters.native.trainer import assign_denominators, denominators
from conformance.corpus.configurations import CONFIG_CASES, ConfigCase
from conformance.findings.verdict import Check
from conformance.plan.checks import CheckSpec
from reference.aggregation import Mode
from tests.mutants.mutant import Mutant


def config_cases(*names: str) -> tuple[ConfigCase, ...]:
    """The configurations whose names begin with one of these."""
    return tuple(case for case in CONFIG_CASES if case.name.startswith(names))


class StartupMutant(Mutant, spec=CheckSpec(check=Check.ARGUMENTS)):
    """A mutant whose training is right; configurations show its mistake."""

    layout = Layout(micro_batches=2, format="thd")

    config_cases: ClassVar[tuple[ConfigCase, ...]] = CONFIG_CASES

    @classmethod
    def started(cls, job: Job) -> None:
        options = native.merged(job)
        cls.validate(options, job)
        native.validate_data(options, job)

    @classmethod
    def validate(cls, options: Options, job: Job) -> None:
        native.validate(options, job)


class DivisorOnlyCompared(
    StartupMutant,
    diagnosis="accepted",
    config_cases=config_cases("divisor_nan", "divisor_infinite", "divisor_zero"),
):
    """`divisor <= 0` is refused, which is false for NaN and infinity."""

    @classmethod
    def validate(cls, options: Options, job: Job) -> None:
        if options.mode == Mode.CONSTANT and options.divisor and float(options.divisor) <= 0:
            raise Refused(f"divisor {options.divisor} is not positive")


class ValidatedBeforeTheFile(StartupMutant, diagnosis="accepted"):
    """The command line is validated, but not a configuration file that is read later."""

    @classmethod
    def started(cls, job: Job) -> None:
        if not job.configuration.in_file:
            super().started(job)


class DivisorOfEachLength(
    StartupMutant, diagnosis="several_divisors", config_cases=config_cases("divisor_by_default")
):
    """A missing divisor is the length of each response."""

    @classmethod
    def started(cls, job: Job) -> None:
        """Accept a missing divisor, which has a default."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return assign_denominators(
            samples, [float(len(samples) * sample.response_length) for sample in samples]
        )


class DivisorIgnoredElsewhere(
    StartupMutant, diagnosis="accepted", config_cases=config_cases("divisor_of_another_mode")
):
    """`constant` reads a divisor; every other mode silently ignores it."""

    @classmethod
    def validate(cls, options: Options, job: Job) -> None:
        if options.mode == Mode.CONSTANT:
            native.validate(options, job)


class NamelessRefusal(StartupMutant, diagnosis="refused_without_naming"):
    """Everything wrong is refused, but the error does not say what to change."""

    @classmethod
    def started(cls, job: Job) -> None:
        try:
            super().started(job)
        except Refused as error:
            raise Refused("AssertionError: invalid arguments") from error


class GroupsNotAskedFor(
    StartupMutant,
    diagnosis="accepted",
    config_cases=config_cases("groups_missing", "denominators_dropped"),
):
    """Samples without a prompt group are put into one group."""

    @classmethod
    def started(cls, job: Job) -> None:
        native.validate(native.merged(job), job)


class LegacyFlagForgotten(
    StartupMutant, diagnosis="not_the_same", config_cases=config_cases("legacy_flag")
):
    """Since modes exist, the flag that selected `token_mean` is ignored."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.job.configuration.says_mode:
            return super().divided(samples)
        per_sample = replace(self.aggregation, mode=Mode.SAMPLE_MEAN)
        return assign_denominators(samples, denominators(samples, per_sample))


class CustomReducerAfterMode(
    StartupMutant, diagnosis="reducer_ignored", config_cases=config_cases("custom_reducer")
):
    """The mode's reducer is used, and the custom one only by default."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.aggregation.mode is Mode.SAMPLE_MEAN:
            return super().divided(samples)
        return assign_denominators(samples, denominators(samples, self.aggregation))
