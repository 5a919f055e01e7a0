"""verl's engines, each with its adapter and what only this engine needs."""
