"""A user's own step is run like the corpus, or refused with the error in the file."""

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conformance.corpus.case_file import SCHEMA, CaseFile, load
from conformance.corpus.cases import DIVISOR
from conformance.findings.errors import InvalidCaseFileError
from conformance.findings.report import json_schema
from tests import command

SAMPLES = [
    {"prompt_length": 3, "loss_mask": [1, 1, 0, 1], "group": "q-17", "rollout": "r1"},
    {"prompt_length": 3, "response_length": 2, "group": "q-17", "rollout": "r2"},
    {"prompt_length": 9, "loss_mask": [0, 1], "group": 4, "rollout": "r2"},
    {"prompt_length": 1, "loss_mask": [0], "group": 4, "rollout": 7},
]

GIVEN = {
    "schema": "rl-loss-conformance/case/1",
    "name": "step_1234",
    "catches": "what our run of Tuesday did",
    "divisor": 16,
    "steps": [{"samples": SAMPLES}],
}


def written(folder: Path, document: object) -> Path:
    path = folder / "case.json"
    path.write_text(json.dumps(document))
    return path


def with_sample(**fields: Any) -> dict[str, Any]:
    return GIVEN | {"steps": [{"samples": [SAMPLES[0] | fields]}]}


def test_published_schema_is_up_to_date_and_describes_the_example() -> None:
    """`python -m conformance.corpus.case_file` writes the schema again."""
    published = (command.ROOT / "conformance" / "corpus" / "case.schema.json").read_text()
    schema = json.loads(published)

    assert published == json_schema(CaseFile, SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(GIVEN, schema)


def test_file_is_read_as_a_case(tmp_path: Path) -> None:
    case = load(written(tmp_path, GIVEN))
    [step] = case.steps

    assert (case.name, case.catches, case.divisor) == ("step_1234", GIVEN["catches"], 16)
    assert step.prompt_lengths.tolist() == [3, 3, 9, 1]
    assert step.mask.astype(int).tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0]
    assert step.groups.tolist() == [0, 0, 1, 1]
    assert step.rollouts.tolist() == [0, 1, 1, 2]
    assert step.original_mask is None


def test_rejection_has_a_mask_of_before(tmp_path: Path) -> None:
    [step] = load(written(tmp_path, with_sample(original_mask=[1, 1, 1, 1]))).steps

    assert step.original_mask.all()


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (GIVEN | {"name": "Step 1"}, "name: String should match pattern"),
        (GIVEN | {"name": "one_token"}, "'one_token' is a case of the corpus; choose another name"),
        (GIVEN | {"name": "generated"}, "'generated' is a case of the corpus"),
        (GIVEN | {"divisor": 0}, "divisor: Input should be greater than 0"),
        (GIVEN | {"steps": []}, "steps: List should have at least 1 item"),
        (GIVEN | {"schema": "rl-loss-conformance/case/2"}, "schema: Input should be"),
        (GIVEN | {"losses": []}, "losses: Extra inputs are not permitted"),
        (with_sample(loss_mask=[1, 2]), "steps.0.samples.0.loss_mask.1: Input should be less"),
        (with_sample(response_length=3), "its masks and response_length are of [3, 4] tokens"),
        (with_sample(original_mask=[1]), "its masks and response_length are of [1, 4] tokens"),
        (with_sample(loss_mask=None), "neither response_length nor loss_mask is given"),
        (with_sample(original_mask=[1, 0, 0, 1]), "1 active tokens are not in the original"),
        (with_sample(prompt_length=0), "prompt_length: Input should be greater than or equal"),
        (
            GIVEN | {"steps": [{"samples": [SAMPLES[0], SAMPLES[1] | {"rollout": None}]}]},
            "only some samples have a rollout",
        ),
        ([1], "the file: Input should be an object"),
    ],
)
def test_a_file_that_is_no_case_is_refused_with_the_place(
    tmp_path: Path, document: object, complaint: str
) -> None:
    with pytest.raises(InvalidCaseFileError) as refused:
        load(written(tmp_path, document))

    assert complaint in str(refused.value)
    assert "case.json" in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"schema": "rl-')

    with pytest.raises(InvalidCaseFileError, match=r"torn\.json: the file: Invalid JSON: EOF"):
        load(tmp_path / "torn.json")
    with pytest.raises(InvalidCaseFileError, match=r"none\.json cannot be read: No such file"):
        load(tmp_path / "none.json")


def test_given_step_is_run_and_nothing_else_and_can_be_run_again(tmp_path: Path) -> None:
    written(tmp_path, GIVEN)
    chosen = ("--case-file=case.json", "--layout=dp2-cp1-mb2-thd", "--layout=dp1-cp1-mb1-bshd")
    result = command.run(tmp_path, "native", *chosen, "--checks=weights,auxiliary")
    options = ("--checks=weights", "--modes=token_mean", "--no-trace", "--tb=short")
    wrong = command.run(tmp_path, "onetokenshort", *chosen, *options)

    assert result.status == 0, result.output
    ids = {finding.id for finding in result.report.findings}
    assert "weights/token_mean/step_1234/dp2-cp1-mb2-thd" in ids
    assert "auxiliary.entropy/sample_mean/step_1234/dp2-cp1-mb2-thd" in ids
    assert {finding.case for finding in result.report.findings} == {"step_1234"}
    assert result.report.request.case == "step_1234"
    assert "case: what our run of Tuesday did" in wrong.output
    assert "--layout=dp1-cp1-mb1-bshd --case-file=FILE -k" in wrong.output


def test_a_step_too_small_for_a_layout_is_refused_before_any_rank_starts(tmp_path: Path) -> None:
    written(tmp_path, with_sample())
    result = command.run(tmp_path, "native", "--case-file=case.json", "--layout=dp2-cp1-mb1-bshd")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert (
        "nothing to run: no chosen case fits layout dp2-cp1-mb1-bshd, which needs a sample for"
        in (result.output)
    )


def test_a_step_of_a_million_tokens_conforms(tmp_path: Path) -> None:
    samples = [
        {"prompt_length": 100, "loss_mask": [1] * (8000 + i) + [0] * (100 - i), "group": i // 4}
        for i in range(124)
    ]
    document = GIVEN | {"divisor": DIVISOR, "steps": [{"samples": samples}]}
    path = written(tmp_path, document)
    start = time.monotonic()
    tokens = int(load(path).steps[0].mask.size)
    seconds = time.monotonic() - start
    print(f"{tokens} tokens, {path.stat().st_size / 1e6:.1f} MB read in {seconds:.1f} s")

    result = command.run(
        tmp_path, "native", "--case-file=case.json", "--layout=dp2-cp1-mb2-thd", "--checks=weights"
    )

    assert tokens > 1_000_000
    assert result.status == 0, result.output
    assert result.report.summary.verdicts == {"conforms": 4}
