"""Statements that may have been meant, and functions that run with them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from textwrap import indent
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, TypeGuard

import numpy as np
import pytest
import torch

from adapters.contract.objective import Metric
from conformance.findings.trace import KindsOfLines, Line
from conformance.ranks.recording.editing import Editing
from conformance.ranks.recording.variables import look_at
from conformance.tracing.edits.calls import called_otherwise
from conformance.tracing.edits.edited import Edited, units
from conformance.tracing.edits.elsewhere import written_elsewhere
from conformance.tracing.edits.insertions import adding, detaching, inserting, scaling
from conformance.tracing.edits.omissions import leaving_out
from conformance.tracing.edits.operations import done_otherwise, done_twice
from conformance.tracing.edits.reductions import reduced_otherwise
from conformance.tracing.edits.statements import Statement
from conformance.tracing.edits.values import read_alike, read_otherwise, read_unread
from conformance.tracing.source import naming

SORTS = (
    read_unread,
    called_otherwise,
    done_otherwise,
    reduced_otherwise,
    read_alike,
    leaving_out,
    detaching,
    scaling,
    adding,
    inserting,
    read_otherwise,
    done_twice,
)

KINDS = {
    **dict.fromkeys(("one", "other", "mask", "rows['old']"), "numbers of (2, 2)"),
    "old_one": "numbers of (2, 2)",
    "is_on": "truths of (2, 2)",
    "count": "int",
    **dict.fromkeys(
        ("low", "high", "scale", "args.eps_low", "args.eps_high", "args.seed"), "float"
    ),
}

FUNCTION = """
import torch

def computed(one, other, mask, rows, place, low=0.0, high=1.0):
    return {text}
"""


def edited(text: str) -> dict[str, str]:
    """The edits that are tried for the first statement: texts, by the words that describe them."""
    [unit] = units(ast.parse(text).body[0], 1)
    several = (sort("", unit, KINDS) for sort in SORTS)
    return {one.words: one.edit.text for each in several for one in each}


@pytest.mark.parametrize(
    ("text", "words", "meant"),
    [
        ("torch.min(one, other)", "with max instead of min", "torch.max(one, other)"),
        ("dist.all_reduce(one, op=Op.MAX)", "with SUM instead of MAX", None),
        ("one <= 0", "with < instead of <=", "one < 0"),
        ("one <= 0", "with > instead of <=", "one > 0"),
        ("1 - one", "with the operands of - swapped", "one - 1"),
        ("one * other", "with / instead of *", "one / other"),
        ("length // (2 * parts)", "with // rounded up", "-(-length // (2 * parts))"),
        ("one.sum(-1)", "with 0 instead of -1", "one.sum(0)"),
        ("one.sum(-1)", "with mean instead of sum", "one.mean(-1)"),
        ("one[:, 1:]", "with a slice 1 entry earlier", "one[:, :-1]"),
        ("one[:, :-1]", "with a slice 1 entry later", "one[:, 1:]"),
        ("one[start:end]", "with end one place earlier", "one[start:end - 1]"),
        ("one[:, t + 1]", "with an operand one place earlier", "one[:, t + 1 - 1]"),
        ("count += one", "with = instead of +=", "count = one"),
        ("low = other.sum()", "with += instead of =", "low += other.sum()"),
        ("one - other", "with rows['old'] instead of other", "one - rows['old']"),
        ("rows['old'] * one", "with mask instead of rows['old']", "mask * one"),
        ("one.clamp(1 - low, 1 + low)", "with high instead of low", None),
        ("1 + args.eps_low", "with args.eps_high instead of args.eps_low", "1 + args.eps_high"),
        ("torch.where(k, low, high)", "with the arguments low and high swapped", None),
        ("one + other", "with other detached", "one + other.detach()"),
        (
            "one.mean(-1)",
            "with a mean over mask",
            "(one * mask).sum(-1) / mask.sum(-1).clamp(min=1)",
        ),
        (
            "(one * mask).sum(-1)",
            "divided by the sum of mask",
            "(one * mask).sum(-1) / mask.sum(-1).clamp(min=1)",
        ),
        (
            "(one * mask).sum() / mask.sum()",
            "with a mean of the rows' means",
            "((one * mask).sum(-1) / mask.sum(-1)).mean()",
        ),
        (
            "((one * mask).sum(-1) / mask.sum(-1)).mean()",
            "with one mean instead of a mean of means",
            "(one * mask).sum() / mask.sum()",
        ),
        (
            "masked_mean(one, mask)",
            "with a mean of the rows' means",
            "masked_mean(one, mask, dim=-1).mean()",
        ),
        (
            "masked_mean(one, mask, dim=-1).mean()",
            "with one mean instead of a mean of means",
            "masked_mean(one, mask)",
        ),
        ("mask.numel()", "with sum instead of numel", "mask.sum()"),
        ("len(mask)", "with sum instead of len", "sum(mask)"),
        ("loss(one, count=1)", "with count=count", "loss(one, count=count)"),
        ("masked(mask=torch.ones_like(mask))", "without ones_like", "masked(mask=mask)"),
        ("one - other", "with other one token later", "one - other.roll(1, -1)"),
        (
            "log_one - log_other",
            "with exponentials of both operands of -",
            "log_one.exp() - log_other.exp()",
        ),
        ("loss = one.sum()", "divided by count", "loss = one.sum() / count"),
        ("total = item", "with a sum over iterations", None),
        ("one * other", "without * other", "one"),
        ("-one", "without -", "one"),
        ("one.detach() * other", "without detach", "one * other"),
        ("torch.exp(one)", "without exp", "one"),
        ("one.clamp(low, high)", "without the bound low of clamp", "one.clamp(None, high)"),
        ("one.clamp(min=0)", "without min= of clamp", "one.clamp()"),
        ("one *= other", "without it", "pass"),
        ("one = one / 2", "without it", "pass"),
        ("dist.all_reduce(one)", "without it", "pass"),
        ("one - other / count", "with other parentheses", "(one - other) / count"),
        ("(one - other) / count", "with other parentheses", "one - other / count"),
        ("one * low - other", "with * low last", "(one - other) * low"),
        ("torch.ones_like(one)", "with ones with a gradient", "(one - one.detach()).exp()"),
        (
            "is_new | is_old",
            "with is_new where is_on, else is_old",
            "torch.where(is_on, is_new, is_old)",
        ),
        ("mask.shape[-1]", "with a sum of mask instead of its shape", "mask.sum(-1).clamp(min=1)"),
        ("one.size(1)", "with count instead of a size of one", "count"),
        (
            "one = one.clamp(max=low)",
            "with old_one changed instead of one",
            "old_one = old_one.clamp(max=low)",
        ),
        ("one * low", "with count instead of low", "one * count"),
        ("index // count", "with % instead of //", "index % count"),
        ("is_first and is_last", "with or instead of and", "is_first or is_last"),
        ("one.exp().clamp(low, high)", "with exp after clamp", "one.clamp(low, high).exp()"),
        ("torch.log(one.sum(0))", "with sum after log", "torch.log(one).sum(0)"),
        (
            "torch.where(k, one, other)",
            "with the values of where swapped",
            "torch.where(k, other, one)",
        ),
        ("torch.where(k, one, other)", "with other always", "other"),
        ("one if k else other", "with one always", "one"),
        ("if count > 1:\n    pass", "with a condition that never holds", "False"),
        ("if count > 1:\n    pass", "with the opposite condition", "not count > 1"),
        ("accelerator.reduce(one, 'sum')", "without reduce", "one"),
        (
            "one.mean() / other.float().mean().clamp(min=1)",
            "with a mean of quotients",
            "(one / other.float().clamp(min=1)).mean()",
        ),
        ("other.sum(-1)", "with other multiplied by mask", "(other * mask).sum(-1)"),
        ("one + low * other", "with * scale as well", "one + low * other * scale"),
        ("one + other / low", "with / scale as well", "one + other / low / scale"),
        ("one - other", "with other multiplied by scale", "one - other * scale"),
        ("one - other", "with other multiplied by mask", "one - other * mask"),
        ("one.clamp(min=low)", "with max= instead of min=", "one.clamp(max=low)"),
        ("torch.stack(rows)", "with rows in reverse order", "torch.stack(rows[::-1])"),
        ("rows.append(one)", "with 1 - one", "rows.append(1 - one)"),
        ("one[-1] = other", "with += instead of =", "one[-1] += other"),
        ("one - other", "with square of other", "one - other.square()"),
        ("loss = one * other", "with the opposite sign", "loss = -(one * other)"),
        ("old_one = f(one) * other", "divided by other", "old_one = f(one) * other / other"),
        (
            "torch.where(one, low, high)",
            "with the first value where other > 0",
            "torch.where(other > 0, low, high)",
        ),
        ("count = len(rows)", "minus 1", "count = len(rows) - 1"),
        ("(one * mask).sum() ** 2", "with ** before the sum", "((one * mask) ** 2).sum()"),
        ("one.sigmoid() * other", "with / old_one as well", "one.sigmoid() * other / old_one"),
        ("old_one = f(other)", "with + one as well", "old_one = f(other) + one"),
        ("one * mask", "with other where mask is 0", "one * mask + other * (1 - mask)"),
        ("one.mean().expand_as(other)", "without mean and expand_as", "one"),
        ("one.masked_fill(is_on, value=1.0)", "with 0.0 instead of 1.0", None),
        ("mask.any(dim=-1).sum()", "without any", "mask.sum()"),
        (
            "rewards.sum(-1, keepdim=True) / 3",
            "with the sum of the other entries",
            "(rewards.sum(-1, keepdim=True) - rewards) / 3",
        ),
        (
            "torch.sum(one * mask, dim=-1)",
            "divided by the sum of mask",
            "torch.sum(one * mask, dim=-1) / torch.sum(mask, dim=-1).clamp(min=1)",
        ),
        (
            "masked_mean(one, mask)",
            "with the mean of each row",
            "masked_mean(one, mask, dim=-1).unsqueeze(-1)",
        ),
        ("1.0 - 0.2 * one", "with 0.4 instead of 0.2", "1.0 - 0.4 * one"),
        ("(1 - one.exp()).sum()", "with -other instead of an operand", "(-other).sum()"),
        ("old_one = one.exp()", "multiplied by is_on", "old_one = one.exp() * is_on"),
        ("one.masked_fill(is_on, 0)", "with its result assigned to one", None),
        ("one[is_on].mul_(2)", "with its result assigned to an operand", None),
        (
            "one[is_on][other[is_on] > low] = 0",
            "with both conditions in one index of one",
            "one[is_on & (other > low)] = 0",
        ),
        (
            "torch.lerp(one, other, condition=one > 1)",
            "with the first value where other > 0",
            "torch.lerp(one, other, condition=other > 0)",
        ),
        (
            "std(rewards.view(count, -1), dim=0)",
            "with the arguments count and -1 swapped and with 1 instead of 0",
            "std(rewards.view(-1, count), dim=1)",
        ),
        ("(one > 0) & (other < 0)", "with | instead of & and with >= instead of >", None),
        (
            "(one - mean[0]) / (one.std() + low)",
            "with an operand instead of std()",
            "(one - mean[0]) / (mean[0] + low)",
        ),
        ("one, other = pair", "with one and other swapped", None),
        (
            "ratio = new_log - old_log",
            "with the exponential of -",
            "ratio = (new_log - old_log).exp()",
        ),
    ],
)
def test_a_statement_may_have_been_meant_otherwise(
    text: str, words: str, meant: str | None
) -> None:
    found = edited(text)

    assert words in found
    assert meant in (None, found[words])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one * 2", "with low instead of one"),
        ("1 + args.eps_low", "with args.seed instead of args.eps_low"),
        ("x: one = 2", "with other instead of one"),
        ("low[:]", "with a slice 1 entry later"),
        ("f(one, low)", "with the arguments one and low swapped"),
        ("one[:, 1:][is_on] = 0", "with both conditions in one index of one"),
        ("one[is_on][1:, 0] = 0", "with both conditions in one index of one"),
        ("one['key'][is_on] = 0", "with both conditions in one index of one"),
    ],
)
def test_what_is_of_another_kind_is_not_meant(text: str, words: str) -> None:
    assert words not in edited(text)


@pytest.mark.parametrize("module", [torch.functional, torch.nn.functional])
def test_every_edit_of_a_statement_can_be_compiled(module: ModuleType) -> None:
    """The kinds are made up, so that edits of all sorts are made."""
    file, made = inspect.getsourcefile(module), 0
    assert file is not None
    statements = [one for one in ast.walk(ast.parse(Path(file).read_text())) if is_simple(one)]
    for unit in statements[::9]:
        names = {one.id for one in ast.walk(unit) if isinstance(one, ast.Name)}
        kinds = {**dict(zip(sorted(names), cycle({*KINDS.values()}), strict=False)), **KINDS}
        for one in chain.from_iterable(islice(sort(file, unit, kinds), 20) for sort in SORTS):
            compile_inside_a_loop(one.edit.text)
            made += 1

    assert made > 300


def is_simple(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Whether a node is a statement without a body."""
    return isinstance(node, ast.stmt) and not hasattr(node, "body")


def compile_inside_a_loop(text: str) -> None:
    """Compile a statement that may contain ``return`` or ``continue``."""
    compile(f"def _():\n while True:\n  {indent(text, '  ').lstrip()}", "edited", "exec")


def test_a_comprehension_is_beside_the_other_statements_of_its_function(tmp_path: Path) -> None:
    path = tmp_path / "packed.py"
    path.write_text(
        "def packed(rows, at):\n    rows[1:] = at\n    return [rows[one] for one in at]\n"
    )
    units_of = [units(ast.parse(path.read_text()), number)[0] for number in (2, 3)]
    lines = [Line(str(path), 2, "packed"), Line(str(path), 3, "<listcomp>")]

    one, other = (Statement(*both, {}) for both in zip(lines, units_of, strict=True))

    assert one.is_beside(other)


def test_of_a_compound_statement_the_header_is_edited() -> None:
    [statement] = ast.parse("if count > 1:\n    count = 2").body

    assert [ast.unparse(one) for one in units(statement, 1)] == ["count > 1"]
    assert [ast.unparse(one) for one in units(statement, 2)] == ["count = 2"]


NAMED = """
def logged(self, losses, mask):
    clip_ratio = losses.mean()
    self.log(clip_ratio=losses.max(), kl=losses.min())
    self.metrics["actor/clip_ratio"].append(clip_ratio)
    return {
        "loss": losses.sum(),
        "actor/clip_ratio@mean":
            losses.mean(),
        "actor/my_clip_ratio": losses.mean(),
    }
"""


def test_the_lines_that_name_a_logged_number_are_found_with_its_value() -> None:
    [function] = ast.parse(NAMED).body
    assert isinstance(function, ast.FunctionDef)
    found = naming(function, "train/actor/clip_ratio")

    assert {number: value and ast.unparse(value) for number, value in found.items()} == {
        4: "losses.max()",
        5: None,
        8: "losses.mean()",
    }
    assert naming(function, "") == {}


@pytest.fixture
def framework(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    path = tmp_path / "a_framework.py"
    path.write_text(FUNCTION.format(text=request.param))
    spec = importlib.util.spec_from_file_location("a_framework", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["a_framework"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["a_framework"]


SEVERAL_CALLS = """
import torch

def computed(one, other, mask, rows, place, low=0.0, high=1.0):
    total = place + 1
    dist.all_reduce(one, group=other.get_group())
    loss(one, mask=mask)
    return loss(one, mask=other) + dist.all_reduce(other)

def grouped(mesh):
    return mesh["dp"].get("dp"), mesh["dp"].get("dp_cp")
"""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("with mask=mask, as in another call", "loss(one, mask=mask)"),
        ("with 'dp_cp' instead of 'dp', as in another call", "mesh['dp'].get('dp_cp')"),
        ("over other.get_group()", "dist.all_reduce(other, group=other.get_group())"),
    ],
)
def test_a_call_may_lack_what_other_calls_have(tmp_path: Path, words: str, meant: str) -> None:
    path = tmp_path / "several_calls.py"
    path.write_text(SEVERAL_CALLS)
    tree = ast.parse(path.read_text())
    several = (called_otherwise(str(path), *units(tree, number), KINDS) for number in (8, 11))

    texts = {one.words: one.edit.text for found in several for one in found}

    assert meant in texts[words]


CONDITIONS = """
def clipped(one, other, low, high):
    is_high = (one > high) & (other > 0)
    is_low = one < low
    return is_high | is_low
"""


def test_a_condition_may_lack_another_of_its_function(tmp_path: Path) -> None:
    path = tmp_path / "conditions.py"
    path.write_text(CONDITIONS)
    [unit] = units(ast.parse(path.read_text()), 4)

    found = {one.words: one.edit.text for one in adding(str(path), unit, KINDS)}

    assert found["only where other < 0"] == "is_low = (one < low) & (other < 0)"
    assert not any("one <" in words for words in found)


MODES = """
def estimate(ratio, kind):
    if kind == "k1":
        return ratio
    return ratio.abs() if kind in ("abs", "size") else ratio.square()
"""


@pytest.mark.parametrize("call", ["estimate(one, 'k1')", "estimate(one, kind='k1')"])
def test_a_mode_may_be_another_that_the_called_function_knows(tmp_path: Path, call: str) -> None:
    (tmp_path / "losses.py").write_text(MODES)
    path = tmp_path / "trainer.py"
    path.write_text(f"from losses import estimate\n\ndef loss(one):\n    return {call}\n")
    [unit] = units(ast.parse(path.read_text()), 4)

    texts = [one.edit.text for one in called_otherwise(str(path), unit, KINDS)]

    assert texts == [f"return {call.replace('k1', mode)}" for mode in ("abs", "size")]


def test_a_call_may_lack_a_parameter_that_its_file_has_as_an_attribute(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(MODES)
    path = tmp_path / "trainer.py"
    path.write_text(
        "from losses import estimate\n\ndef loss(args, one):\n    return estimate(one)\n\n"
        "def logged(args, one):\n    return one if args.kind else args.size\n"
    )
    [unit] = units(ast.parse(path.read_text()), 4)

    texts = {one.words: one.edit.text for one in called_otherwise(str(path), unit, KINDS)}

    assert texts == {"with kind=args.kind": "return estimate(one, kind=args.kind)"}


@pytest.mark.parametrize(
    ("shape", "meant"),
    [
        ("(2,)", ["(one * mask)[last]"]),
        (
            "(2, 1)",
            [
                "(one * mask).gather(1, last)",
                "torch.zeros_like(one * mask).scatter(1, last, (one * mask).gather(1, last))",
            ],
        ),
    ],
)
def test_of_a_value_the_entries_at_unread_indices_may_be_meant(
    tmp_path: Path, shape: str, meant: list[str]
) -> None:
    path = tmp_path / "unread.py"
    path.write_text("def kept(one, mask):\n    last = last_of(mask)\n    return one * mask\n")
    [unit] = units(ast.parse(path.read_text()), 3)
    kinds = {"one": "numbers of (2, 3)", "mask": "numbers of (2, 3)"}

    found = read_unread(str(path), unit, kinds | {"last": f"integers of {shape}"})

    assert {f"return {one}" for one in meant} <= {one.edit.text for one in found}


def test_an_unread_logarithm_of_each_row_may_be_meant_as_a_column_of_exponentials(
    tmp_path: Path,
) -> None:
    path = tmp_path / "unread.py"
    path.write_text("def kept(one):\n    log_sums = one.log().sum(-1)\n    return one.prod(-1)\n")
    [unit] = units(ast.parse(path.read_text()), 3)
    kinds = {"one": "numbers of (2, 3)", "log_sums": "numbers of (2,)"}

    texts = [one.edit.text for one in read_unread(str(path), unit, kinds)]

    assert texts[:4] == [
        f"return log_sums{form}"
        for form in ("", ".exp()", ".unsqueeze(-1)", ".unsqueeze(-1).exp()")
    ]


def test_an_unread_variable_is_read_instead_or_as_well(tmp_path: Path) -> None:
    path = tmp_path / "unread.py"
    path.write_text(SEVERAL_CALLS)
    [unit] = units(ast.parse(path.read_text()), 7)
    kinds = {"mask": "int", "total": "int", "place": "int"}

    texts = [one.edit.text for one in read_unread(str(path), unit, kinds)]

    assert texts == [
        "loss(one, mask=total)",
        "total",
        "loss(one, mask=mask) + total",
        "loss(one, mask=mask) * total",
        "min(loss(one, mask=mask), total)",
        "max(loss(one, mask=mask), total)",
        "loss(one, mask=mask + total)",
        "loss(one, mask=mask * total)",
        "loss(one, mask=min(mask, total))",
        "loss(one, mask=max(mask, total))",
    ]


def test_an_unread_condition_holds_as_well_or_not(tmp_path: Path) -> None:
    path = tmp_path / "unread.py"
    path.write_text("def kept(one, low, high):\n    above = one > high\n    return one & ~low\n")
    [unit] = units(ast.parse(path.read_text()), 3)
    kinds = dict.fromkeys(("one", "low", "above"), "truths of (2,)")

    texts = [one.edit.text for one in read_unread(str(path), unit, kinds)]

    assert "return one & ~low & ~above" in texts


ASSIGNED_ELSEWHERE = """
def group_mean(scores, index):
    for i in range(len(index)):
        count = len(scores[index[i]])

def group_std(scores, index, size, low, high, weights):
    for i in range(len(index)):
        count = size
        is_low = weights[index[i]] < low - 1
        is_high = weights[index[i]] > low + 1
    return weights

def of_batch(groups):
    count = len(groups)
"""


@pytest.mark.parametrize(
    ("number", "meant"),
    [
        (8, ["count = len(scores[index[i]])"]),
        (10, ["is_high = weights[index[i]] < low - 1"]),
    ],
)
def test_an_expression_may_be_meant_as_the_file_has_it_elsewhere(
    tmp_path: Path, number: int, meant: list[str]
) -> None:
    """Such an expression is tried only if all its variables are known at the line."""
    path = tmp_path / "elsewhere.py"
    path.write_text(ASSIGNED_ELSEWHERE)
    [unit] = units(ast.parse(path.read_text()), number)

    assert [one.edit.text for one in written_elsewhere(str(path), unit, KINDS)] == meant


REDUCED_ELSEWHERE = """
import torch

def computed(one, other, accelerator):
    total = one.sum()
    count = accelerator.reduce(other, reduction="sum")
    dist.all_reduce(other, op=Op.SUM)
    return total / count
"""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            "with accelerator.reduce(its value, reduction='sum'), as in another call",
            "total = accelerator.reduce(one.sum(), reduction='sum')",
        ),
        (
            "followed by dist.all_reduce(total, op=Op.SUM), as elsewhere",
            "if True:\n    total = one.sum()\n    dist.all_reduce(total, op=Op.SUM)",
        ),
    ],
)
def test_a_value_may_be_reduced_as_others_in_its_file(
    tmp_path: Path, words: str, meant: str
) -> None:
    path = tmp_path / "reduced.py"
    path.write_text(REDUCED_ELSEWHERE)
    [unit] = units(ast.parse(path.read_text()), 5)

    texts = {one.words: one.edit.text for one in inserting(str(path), unit, KINDS)}

    assert texts[words] == meant


REDUCED_BESIDE = """
def logged(log, one, other, mask):
    log["one"].append(gathered(one).mean())
    log["other"].append(masked_mean(other, mask))
"""


def test_a_tensor_may_be_reduced_as_others_in_its_function(tmp_path: Path) -> None:
    path = tmp_path / "beside.py"
    path.write_text(REDUCED_BESIDE)
    [unit] = units(ast.parse(path.read_text()), 3)

    texts = {one.words: one.edit.text for one in reduced_otherwise(str(path), unit, KINDS)}

    assert (
        texts["with masked_mean() instead of mean(), as for other"]
        == "log['one'].append(masked_mean(one, mask))"
    )


def edits_of(module: ModuleType) -> dict[str, Edited]:
    file = str(module.__file__)
    [unit] = units(ast.parse(Path(file).read_text()), 5)
    several = (sort(file, unit, KINDS) for sort in SORTS)
    return {one.words: one for each in several for one in each}


def computed(module: ModuleType, one: torch.Tensor) -> Any:
    return module.computed(one, torch.full((2, 2), 2.0), None, {}, 0)


@pytest.mark.parametrize("framework", ["torch.min(one, other)"], indirect=True)
def test_a_function_runs_with_an_edit_as_long_as_that_is_entered(framework: ModuleType) -> None:
    leaf = torch.tensor([[1.0, 3.0], [4.0, 5.0]], requires_grad=True)
    function = framework.computed

    with Editing(edits_of(framework)["with max instead of min"].edit):
        computed(framework, leaf).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[0.0, 1.0], [1.0, 1.0]]
    assert framework.computed is function
    assert computed(framework, leaf.detach())[1].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("framework", ["one[:, place] + other[:, 1:].sum(-1)"], indirect=True)
def test_a_function_whose_edit_raises_does_as_before(framework: ModuleType) -> None:
    one = torch.tensor([[1.0, 3.0], [4.0, 5.0]])
    before = computed(framework, one)

    with Editing(edits_of(framework)["with -2 instead of -1"].edit):
        pass
    with Editing(edits_of(framework)["with rows['old'] instead of other"].edit):
        assert torch.equal(computed(framework, one), before)


def reading(log: dict[str, float], other: SimpleNamespace) -> FrameType | None:
    """The frame of a call of this function, with two variables."""
    assert log
    assert other
    return inspect.currentframe()


def test_what_a_function_can_read_is_named_as_its_source_would() -> None:
    """A key that is a member of an enum has no literal; an attribute may be no identifier."""
    other = SimpleNamespace(**{"a b": 1.0, "ab": 2.0})
    frame, known = reading({Metric.KL: 1.0, "loss": 2.0}, other), KindsOfLines()
    assert frame is not None

    look_at(frame, known)

    assert [ast.parse(text, mode="eval") for text in known]
    [kind] = known["log['loss']"].values()
    assert known["log['loss']"] == known["other.ab"]
    assert kind == "float"


def test_an_array_has_the_kind_of_a_tensor() -> None:
    other = SimpleNamespace(array=np.ones((2, 3)), tensor=torch.ones(2, 3), words=np.array(["a"]))
    frame, known = reading({"loss": 2.0}, other), KindsOfLines()
    assert frame is not None

    look_at(frame, known)

    assert known["other.array"] == known["other.tensor"]
    assert [*known["other.array"].values()] == ["numbers of (2, 3)"]
    assert [*known["other.words"].values()] == [None]


def test_a_variable_has_the_kind_of_its_value_at_each_line() -> None:
    """A loss is often reduced to a number of the same name."""

    def summed() -> Iterator[FrameType | None]:
        total: Any = 0
        yield inspect.currentframe()
        total = total + torch.ones(2)
        yield inspect.currentframe()
        total = total.sum()
        yield inspect.currentframe()
        assert total is not None

    known = KindsOfLines()
    for frame in summed():
        assert frame is not None
        look_at(frame, known)

    kinds = known["total"]
    assert [*kinds.values()] == ["int", "numbers of (2,)", "numbers of ()"]
    assert [*kinds] == sorted(kinds)
