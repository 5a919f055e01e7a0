"""Dumps for debugging: the toy makes none."""
