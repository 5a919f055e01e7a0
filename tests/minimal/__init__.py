"""A trainer of a few lines with an adapter that is right, and adapters with one defect each."""
