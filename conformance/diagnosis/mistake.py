"""What a known mistake is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistake:
    """A known one: its name, what it is in words, its weights [tokens].

    ``sizes`` are those that a factor may be, of a mistake that is a factor.
    """

    name: str
    words: str
    weights: NDArray[np.float64]
    sizes: dict[str, float] = field(default_factory=dict)
