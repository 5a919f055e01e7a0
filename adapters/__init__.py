"""Drives real frameworks: one package per framework, all following `adapters.contract`."""
