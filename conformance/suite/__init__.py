"""The tests that `pytest --adapter=NAME` runs."""
