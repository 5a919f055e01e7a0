"""The losses of one token and their derivatives: policies, values, divergences, corrections."""
