"""Runs adapters over cases and layouts and judges what they do against the reference."""
