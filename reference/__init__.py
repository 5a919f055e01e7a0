"""The oracle: the exact weight of every token of a step, and bounds on rounding errors."""
