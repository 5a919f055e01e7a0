"""The adapter of OpenRLHF, from a batch of rollouts to the gradient of DeepSpeed's optimizer.

Every rank runs the trainer itself; OpenRLHF's actors build their engines around
our model, which carries the probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.configuration import FaultInjection, Setting
from adapters.contract.conventions import Assumed, Documented
from adapters.contract.description import Description
from adapters.contract.job import Depth, Job, Observation
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.engines.shells import ON_FOUR, STAGES, cuts, staged
from adapters.openrlhf import departures, importing
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.worlds import observation, set_what_ray_sets
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    Mode,
    Penalties,
    TokenSet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract.conventions import Convention
MASKED = EstimatorConventions(
    valued=TokenSet.ACTIVE,
    lost_degrees_of_freedom=0,
    std_epsilon=1e-9,
    penalties=Penalties.LATER_TOKENS,
)

CONVENTIONS: Mapping[str, Convention] = {
    "empty_units": Documented(
        EmptyUnits.EXCLUDED,
        "tests/test_loss_aggregation.py, test_loss_batch_info_excludes_fully_masked_sequences",
    ),
    "denominator_mask": Assumed(DenominatorMask.ORIGINAL),
    "entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "value_loss": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "of_groups": Assumed(MASKED),
    "of_returns": Assumed(MASKED),
    "of_values": Assumed(MASKED),
}
"""What the modes leave open. Assumptions were read off the code: terms of the loss and a critic's
loss are means over tokens, whatever the mode of the policy loss (`trainer/ray/ppo_actor.py`,
`models/loss.py`), and metrics of micro-batches are weighted by tokens. Returns and GAE go through
all positions, rewards are at the last active token, values of other tokens are masked, and
advantages are whitened by the variance of active tokens; estimators with a baseline add up rewards
of later tokens, without discount (`trainer/ppo_utils/experience_maker.py`)."""

CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_agg_mode",),
    Setting.ENTROPY: ("entropy_coef",),
    Setting.KL: ("kl",),
    Setting.BATCH_SIZE: ("batch",),
}
"""What configurations may set, and OpenRLHF's names for it."""

RULES = {"default_mode": "openrlhf/cli/train_ppo_ray.py (--actor.loss_agg_mode)"}
"""Rules of configurations that OpenRLHF states, by name."""


CUTS_OF_STAGES = (
    "dp1-cp1-mb2-thd",
    "dp2-cp1-mb2-bshd",
    "dp2-cp1-mbtokens-thd",
    "dp1-cp2-mb2-thd",
    "dp4-cp1-mb1-thd",
)
"""The layouts of the stages of ZeRO that are not the default."""


class OpenRLHFAdapter(Adapter):
    """Drives OpenRLHF/OpenRLHF from 0.10.4 on."""

    name = "openrlhf"
    engine = "deepspeed"
    package = "openrlhf"
    versions = "OpenRLHF since 0.10.4"
    distribution = "openrlhf"
    tree = ("openrlhf",)
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies = ("deepspeed", "ray", "transformers")
    mode_names: ClassVar[Mapping[str, str]] = {
        "seq-mean-token-mean": "sample_mean",
        "token-mean": "token_mean",
    }

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, ring attention of 2, padded (bshd) or packed (thd).

        Micro-batches by tokens and ring attention are of packed rows alone, by OpenRLHF's command
        line. The default stage of ZeRO, 2, has all of them.
        """
        plain = [
            layout
            for layout in cuts(ON_FOUR, "bshd", "thd")
            if layout.format == "thd" or (layout.cp == 1 and layout.micro_batches != "tokens")
        ]
        overlapping = (Option.OVERLAP_GRAD_REDUCE,)
        return [
            *plain,
            *staged(CUTS_OF_STAGES),
            Layout(dp=2, micro_batches=2, format="thd", options=overlapping),
            Layout(dp=2, micro_batches="tokens", format="thd", options=overlapping),
            Layout(dp=2, micro_batches=2, format="thd", options=(Option.SHORT_BATCH,)),
            Layout(dp=2, micro_batches=2, format="thd", options=(Option.TWO_EPOCHS,)),
        ]

    def load(self, source: Path | None) -> None:
        """Import OpenRLHF, DeepSpeed and the trainer."""
        importing.import_openrlhf(source)
        from adapters.openrlhf import model

        model.put_the_seams_in()

    def describe(self) -> Description:
        """Describe OpenRLHF by what its command line knows."""
        from adapters.openrlhf import command_line, session

        modes = command_line.LOSS_AGG_MODES
        has_modes = command_line.knows(command_line.MODE)
        return Description(
            modes=frozenset(modes if has_modes else {Mode.TOKEN_MEAN}),
            default_mode=Mode.TOKEN_MEAN,
            depths=frozenset({Depth.STEP}),
            objectives=OBJECTIVES,
            metrics=session.logged(),
            options=OPTIONS,
            configurations=CONFIGURATIONS,
            records_forward_passes=True,
            declared=CONVENTIONS,
            rules=RULES,
            stubs=tuple(importing.STUBBED),
            departures=departures.ALL,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the train batches of one trainer's step."""
        from adapters.openrlhf.session import Session

        set_what_ray_sets(rank)
        batch = ProbedBatch(job.steps, job.objective)
        with rank.framework(), refusals_of_configuration(job):
            session = Session(batch, job, rank)
            if Option.SHORT_BATCH in job.layout.options:
                session.train_short_batch()
            of_rollouts = session.train(range(len(batch.responses)))
            gradients, passes = session.of_last_epoch()
            reported = session.reported(of_rollouts)
        return observation(batch, gradients, passes, reported)

    def leave_world(self) -> None:
        """Forget DeepSpeed's process groups."""
        from adapters.engines import deepspeed

        deepspeed.leave_world()


OPTIONS = frozenset({Option.OVERLAP_GRAD_REDUCE, Option.TWO_EPOCHS, Option.SHORT_BATCH, *STAGES})

OBJECTIVES = frozenset(
    {
        *(Objective.POLICY, Objective.OFF_POLICY, Objective.DUAL_CLIP, Objective.GSPO),
        *(Objective.REJECTION, Objective.TIS_TOKEN, Objective.SEQUENCE_MASKED),
        *(Objective.ENTROPY, Objective.KL, Objective.COMBINED),
        *(Objective.GROUP_NORMALISED, Objective.GROUP_CENTRED, Objective.LEAVE_ONE_OUT),
        *(Objective.REINFORCE_PP, Objective.REINFORCE_PP_BASELINE),
        *(Objective.GAE, Objective.PENALISED_GAE, Objective.VALUE),
    }
)
