"""Names of the array types that signatures use; a docstring says the shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""Numbers of tokens, samples or steps: weights, advantages, rewards."""

Integers = NDArray[np.int64]
"""Ids, lengths, and indices of samples, groups, ranks or micro-batches."""

Mask = NDArray[np.bool_]

Gradient = NDArray[np.float32]
