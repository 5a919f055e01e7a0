"""ROLL's engines, each with its adapter: what is of one engine alone."""
