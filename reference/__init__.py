"""The oracle: what every token of a step should weigh, and how far rounding may move it."""
