"""How runs of TRL under its adapters differ from a user's, and why it is harmless."""

from __future__ import annotations

from adapters.contract.description import parse_departures

ALL = parse_departures(
    """
    set: learning rate 0, no weight decay, no clipping of gradients
        all come after the gradient that is read
    """
)
