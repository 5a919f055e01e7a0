"""Columns that keep the gradient of what computed them."""

from typing import ClassVar

from adapters.native.packing import SampleTensors
from adapters.native.trainer import CONSTANTS_OF_LOSS, detach
from tests.mutants.mutant import Mutant


class Retaining(Mutant):
    """A mutant that forgets to detach one column."""

    column: ClassVar[str]

    def __init_subclass__(cls, **says: object) -> None:
        """All have one diagnosis."""
        super().__init_subclass__(diagnosis="gradient_of_constants", **says)

    def constant(self, sample: SampleTensors) -> SampleTensors:
        others = [one for one in CONSTANTS_OF_LOSS if one != self.column]
        return detach(sample, others)


class OldPolicyRetained(Retaining, check="no_gradient.old_log_probs", column="old_log_probs"):
    """Old log-probabilities are computed with a gradient, which the ratio passes on."""


class AdvantagesRetained(Retaining, check="no_gradient.advantages", column="advantages"):
    """Advantages keep the gradient of what they are computed from."""


class RolloutPolicyRetained(
    Retaining, check="no_gradient.rollout_log_probs", column="rollout_log_probs"
):
    """Importance weights pass a gradient on to the rollout policy."""


class ReferenceRetained(
    Retaining,
    check="no_gradient.reference_log_probs",
    column="reference_log_probs",
):
    """The reference policy is trained towards the policy."""


class RewardsRetained(
    Retaining,
    check="no_gradient.reference_log_probs_in_rewards",
    column="advantages",
):
    """Penalties in rewards pass a gradient on to the reference policy."""


class CriticRetained(Retaining, check="no_gradient.values", column="advantages"):
    """The policy loss trains the critic through advantages."""


class TeacherRetained(Retaining, check="no_gradient.teacher_log_probs", column="advantages"):
    """Distillation passes a gradient on to the teacher (miles pull request 1966)."""
