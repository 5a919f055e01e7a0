"""The known mistakes: a record of each, and its predicted effect on a step.

`mistake` defines the record, and declares mistakes without a prediction of weights. Every other
module declares the mistakes of its subject with `known` and predicts their weights or factors.
`predictions` yields the predictions that need only the step, the most plausible first;
`misalignments` also needs the observed numbers. A new mistake is added in one of these modules
only.
"""

# These two modules import all other modules of the catalogue.
from conformance.explain.catalogue import misalignments as misalignments
from conformance.explain.catalogue import predictions as predictions
