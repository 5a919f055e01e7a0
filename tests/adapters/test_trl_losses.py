"""Loss functions that users run instead of TRL's, from PyPI: Liger's and Unsloth's."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from adapters.contract import Depth, Description, Job
from adapters.contract.objective import Objective
from adapters.trl.engines import TrlLigerAdapter
from adapters.trl_losses.adapter import LOSSES, LossAdapter
from adapters.trl_losses.liger import LigerAdapter
from adapters.trl_losses.unsloth import UnslothAdapter
from conformance.findings.errors import StartError
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_off_policy
from conformance.judging.weights import Trained, judge_weights, step_context
from conformance.ranks.pool import RankPool
from conformance.sources.source import resolve
from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode
from tests import toys
from tests.adapters import steps
from tests.adapters.steps import MASKED
from tests.pools import released, trained

LAYOUT, ONE_RANK = "dp2-cp1-mb2-bshd", "dp1-cp1-mb2-bshd"


class LigerOf(LigerAdapter):
    """Runs every job with further settings."""

    def __init__(self, **more: Any) -> None:
        self.more = more

    def settings(self, job: Job) -> dict[str, Any]:
        return super().settings(job) | self.more


class UnslothOf(UnslothAdapter):
    """Runs every job with further settings; `vespo` also gets a function of TRL's trainer."""

    def __init__(self, **more: Any) -> None:
        self.more = more

    def settings(self, job: Job) -> dict[str, Any]:
        found = super().settings(job) | self.more
        if found["loss_type"] == "vespo":
            from trl.trainer.grpo_trainer import GRPOTrainer

            found["get_gamma_weights"] = GRPOTrainer.get_gamma_weights
        return found


pytestmark = pytest.mark.trl


def _needs(package: str) -> pytest.MarkDecorator:
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


ADAPTERS = {"liger_kernel": LigerOf, "unsloth_zoo": UnslothOf}
each_library = pytest.mark.parametrize(
    "adapter", [pytest.param(one, marks=_needs(name), id=name) for name, one in ADAPTERS.items()]
)


def description() -> Description:
    return Description(declared=LOSSES.conventions)


def job(
    mode: Mode = Mode.TOKEN_MEAN,
    objective: Objective = Objective.POLICY,
    case: str = MASKED.name,
    layout: str = LAYOUT,
) -> Job:
    return replace(steps.job(case, mode, layout, objective), depth=Depth.LOSS)


@each_library
def test_bnpo_is_the_mean_over_tokens_of_each_micro_batch(
    adapter: Callable[..., LossAdapter],
) -> None:
    given = job(layout=ONE_RANK)
    with RankPool(adapter(loss_type="bnpo"), None, 1) as pool:
        observations = trained(pool, given).observations

    context = step_context(given, 0, observations, description())
    documented = context.of_term(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN).expected
    assert observations[0].token_weights[0] == pytest.approx(documented, rel=1e-6)


@each_library
@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "cispo", "epsilon_high": 1.3125}, {"loss_type": "vespo"}],
    ids=lambda settings: settings["loss_type"],
)
def test_losses_without_a_formula_in_the_reference_have_their_documented_derivative(
    adapter: Callable[..., LossAdapter], settings: dict[str, Any]
) -> None:
    given = job(objective=Objective.OFF_POLICY, layout=ONE_RANK)
    with RankPool(adapter(**settings), None, 1) as pool:
        [rank] = trained(pool, given).observations

    found = steps.gradient(given, rank.token_weights[0])
    expected = steps.documented_gradient(settings["loss_type"], given)
    assert found == pytest.approx(expected, rel=1e-5)


@each_library
def test_luspo_with_ratios_of_sequences_adds_the_tokens_of_a_sample_up(
    adapter: Callable[..., LossAdapter],
) -> None:
    of_one = replace(job(objective=Objective.GSPO), aggregation=Aggregation(Mode.CONSTANT, 1.0))
    with RankPool(adapter(loss_type="luspo"), None, 2) as pool:
        observations = trained(pool, of_one).observations

    judged = judge_off_policy(Trained(of_one, observations, description()))
    assert judged.verdict is Verdict.CONFORMS


@_needs("liger_kernel")
@pytest.mark.usefixtures("other_release")
def test_liger_that_takes_no_count_of_a_step_averages_its_micro_batches(tmp_path: Path) -> None:
    adapter, given = LigerAdapter(), job(layout=ONE_RANK)
    release = released(adapter, "pypi:0.8.0")
    shutil.copytree(release / "liger_kernel", tmp_path / "src" / "liger_kernel")
    toys.commit(tmp_path)
    extracted = resolve(adapter, f"{tmp_path}@HEAD").path
    with RankPool(adapter, resolve(adapter, str(tmp_path)).path, 1) as pool:
        judged = judge_weights(Trained(given, trained(pool, given).observations, pool.description))

    assert extracted is not None
    assert (extracted / "src" / "liger_kernel").is_dir()
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "denominators_per_micro_batch"


@_needs("trl")
@_needs("liger_kernel")
@pytest.mark.usefixtures("other_release")
@pytest.mark.parametrize(
    ("release", "mistake"),
    [("1.10.0", "denominators_per_micro_batch_of_all_ranks"), ("1.14.2", None)],
)
def test_trainer_scales_the_loss_of_liger(release: str, mistake: str | None) -> None:
    adapter, given = TrlLigerAdapter(), replace(job(), depth=Depth.STEP)
    with RankPool(adapter, released(adapter, f"pypi:{release}"), 2) as pool:
        judged = judge_weights(Trained(given, trained(pool, given).observations, pool.description))

    assert (judged.diagnosis and judged.diagnosis.name) == mistake


@_needs("trl")
@_needs("liger_kernel")
@pytest.mark.usefixtures("other_release")
def test_trainer_whose_loss_does_not_use_liger_is_not_driven() -> None:
    with RankPool(TrlLigerAdapter(), None, 1) as pool, pytest.raises(StartError, match="no loss"):
        pool.description  # noqa: B018 - starts the ranks
