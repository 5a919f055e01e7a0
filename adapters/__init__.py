"""Drives real frameworks: one module per framework, all to the contract in `adapters.contract`."""
