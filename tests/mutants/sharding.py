"""Samples are on other ranks than a framework's own rules require."""

from conformance.plan.checks import check_spec
from reference.aggregation import Conventions, Mode
from tests.mutants.mutant import Mutant


class GroupsStriped(Mutant):
    """Samples are dealt by index, although prompt groups are documented to stay on one rank."""

    diagnosis = "group_on_several_ranks"
    spec = check_spec("sharding")
    modes = (Mode.PROMPT_MEAN,)
    conventions = Conventions(whole_groups=True)
