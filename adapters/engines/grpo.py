"""Options and departures of GRPO by TRL's names, which trainers of other frameworks share."""

from __future__ import annotations

from adapters.contract.tables import read_departures, read_options

OPTIONS = read_options("adapters.engines")

OF_VALUES, OF_HUB, OF_DTYPE, OF_POLICIES, OF_PROMPTS = read_departures("adapters.engines", "grpo")

OF_ALL, OF_GENERATING = (OF_VALUES, OF_HUB, OF_DTYPE), (OF_POLICIES, OF_PROMPTS)
