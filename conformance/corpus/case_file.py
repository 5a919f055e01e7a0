"""JSON files of cases that a user gives, for example from a training run, or that are generated.

The files' JSON Schema is ``case.schema.json`` next to this module.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from conformance.corpus.cases import ALL_CASES, DIVISOR, Case
from conformance.findings.errors import InvalidCaseFileError
from conformance.findings.finding import GENERATED, FrozenModel, first_problem
from conformance.findings.report import json_schema
from reference.step import InvalidStepError, Sample, Step

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

SCHEMA: Literal["rl-loss-conformance/case/1"] = "rl-loss-conformance/case/1"

Bit = Annotated[int, Field(ge=0, le=1)]


class GivenSample(FrozenModel):
    """One sequence of a step.

    ``loss_mask`` has a 1 for each response token that is trained on and a 0 for each other one;
    without it, all ``response_length`` tokens are trained on. ``original_mask`` is the mask before
    rejection sampling. ``group`` is any name of the prompt, ``rollout`` of the trajectory; names
    are only compared for equality. Without ``rollout``, each sample is its own rollout.
    """

    prompt_length: Annotated[int, Field(ge=1)]
    response_length: Annotated[int, Field(ge=1)] | None = None
    loss_mask: Annotated[list[Bit], Field(min_length=1)] | None = None
    original_mask: list[Bit] | None = None
    group: int | str
    rollout: int | str | None = None

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if self.response_length is None and self.loss_mask is None:
            raise ValueError("neither response_length nor loss_mask is given; give one")
        masks = [mask for mask in (self.loss_mask, self.original_mask) if mask is not None]
        lengths = [len(mask) for mask in masks] + [self.response_length or len(masks[0])]
        if len(set(lengths)) > 1:
            raise ValueError(f"its masks and response_length are of {sorted(set(lengths))} tokens")
        return self

    @property
    def mask(self) -> list[int]:
        """One entry for each response token."""
        return self.loss_mask or [1] * (self.response_length or 0)


class GivenStep(FrozenModel):
    """The samples of one optimizer step, in order."""

    samples: Annotated[list[GivenSample], Field(min_length=1)]


class CaseFile(FrozenModel):
    """A batch of rollouts: its optimizer steps, and the divisor L of `constant`."""

    schema_: Literal["rl-loss-conformance/case/1"] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=80)]
    catches: str = "a step that was given"
    divisor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = DIVISOR
    steps: Annotated[list[GivenStep], Field(min_length=1)]

    def case(self) -> Case:
        """The case that the file describes.

        Raises:
            InvalidStepError: the samples of a step cannot be a training step.
        """
        steps = tuple(_step(step) for step in self.steps)
        return Case(name=self.name, catches=self.catches, steps=steps, divisor=self.divisor)


def load(path: Path) -> Case:
    """Read a case.

    Raises:
        InvalidCaseFileError: the file cannot be read, or does not describe a case.
    """
    try:
        case = CaseFile.model_validate_json(path.read_bytes()).case()
    except OSError as error:
        raise InvalidCaseFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        place, words = first_problem(error)
        raise InvalidCaseFileError(
            f"{path}: {place or 'the file'}: {words}",
            "see case.schema.json of rl-loss-conformance",
        ) from error
    except InvalidStepError as error:
        raise InvalidCaseFileError(f"{path}: {error}") from error
    if case.name in {GENERATED, *(one.name for one in ALL_CASES)}:
        raise InvalidCaseFileError(
            f"{path}: name: {case.name!r} is a case of the corpus", "choose another name"
        )
    return case


def _step(given: GivenStep) -> Step:
    groups: dict[Hashable, int] = {}
    rollouts: dict[Hashable, int] = {}
    return Step.of(
        [
            Sample(
                prompt_length=sample.prompt_length,
                loss_mask=sample.mask,
                original_mask=sample.original_mask,
                group=groups.setdefault(sample.group, len(groups)),
                rollout=None
                if sample.rollout is None
                else rollouts.setdefault(sample.rollout, len(rollouts)),
            )
            for sample in given.samples
        ]
    )


def text(case: Case, name: str) -> str:
    """The JSON text of a case, given another name: one line that may be broken at any space."""
    steps = [GivenStep(samples=[*_samples(step)]) for step in case.steps]
    file = CaseFile(schema=SCHEMA, name=name, divisor=case.divisor, steps=steps)
    return json.dumps(
        file.model_dump(mode="json", by_alias=True, exclude={"catches"}, exclude_none=True)
    )


def _samples(step: Step) -> Iterator[GivenSample]:
    """Yield the samples of a step; rollouts are left out if each sample is its own rollout."""
    has_rollouts = step.rollouts.tolist() != list(range(step.size))
    for i, response in enumerate(step.responses):
        before = step.original_mask
        yield GivenSample(
            prompt_length=step.prompt_lengths[i],
            loss_mask=step.mask[response].astype(int).tolist(),
            original_mask=None if before is None else before[response].astype(int).tolist(),
            group=int(step.groups[i]),
            rollout=int(step.rollouts[i]) if has_rollouts else None,
        )


if __name__ == "__main__":
    Path(__file__).with_name("case.schema.json").write_text(json_schema(CaseFile, SCHEMA))
