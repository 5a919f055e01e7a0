"""Helpers for all adapters: the probe in torch, sources of a framework, imports with stubs.

Nothing here knows a framework.
"""
