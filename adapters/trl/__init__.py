"""Adapters of huggingface/trl, one for each of its trainers and engines."""

from adapters.trl.engines import ENGINES as ENGINES
