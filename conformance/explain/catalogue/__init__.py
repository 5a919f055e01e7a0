"""The known mistakes: a record of each, and what each makes of a step.

`mistake` has what a record is, and the mistakes that no prediction of weights is about. Every other
module declares the mistakes of its subject with `known` and predicts what they give; `predictions`
yields those that a step alone tells, the most plausible first, and `misalignments` those that are
read off what was observed. A mistake is added in one of these modules, and nowhere else.
"""

# These two import all others.
from conformance.explain.catalogue import misalignments as misalignments
from conformance.explain.catalogue import predictions as predictions
