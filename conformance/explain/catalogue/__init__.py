"""The known mistakes: a record of each, and what each makes of a step.

`mistake` has what a record is, and the mistakes that no prediction of weights is about. Every other
module declares the mistakes of its subject with `known` and predicts what they give; `predictions`
yields all of them for a step, the most plausible first. A mistake is added in one of these modules,
and nowhere else.
"""

from conformance.explain.catalogue import predictions as predictions  # which imports all others
