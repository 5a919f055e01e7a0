"""The oracle: what every token of a training step should weigh, and how far rounding may move it."""
