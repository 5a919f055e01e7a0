"""Samples are on other ranks than a framework's own rules want."""

from __future__ import annotations

from conformance.corpus.cases import ORDERS
from conformance.plan.checks import SHARDED, check_spec
from reference.aggregation import Conventions, Mode
from tests.mutants.mutant import UNITED, WIDE, Mutant


class GroupsStriped(Mutant):
    """Samples are dealt out by number, where prompt groups are documented to stay on one rank."""

    diagnosis = "group_on_several_ranks"
    spec = check_spec("sharding")
    modes = (Mode.PROMPT_MEAN,)
    layouts = (UNITED, WIDE)
    cases = (*SHARDED, *ORDERS)
    conventions = Conventions(whole_groups=True)
