"""The data type of known mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistake:
    """A known mistake: its name, an explanation, and the weights it gives, [tokens].

    ``sizes`` are the sizes that the factor may be, for a mistake that is a factor.
    """

    name: str
    words: str
    weights: NDArray[np.float64]
    sizes: dict[str, float] = field(default_factory=dict)
    causes: Sequence[str] = ()
    """What it may be called as a cause, if not by its name: one step may not tell all apart."""

    together: tuple[str, ...] = ()
    """The names of the mistakes that are made besides, if it is several at once."""

    @property
    def names(self) -> Sequence[str]:
        """What it may be called as a cause."""
        return self.causes or [self.name]
