"""The data type of known mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    cause: str = ""
    """Its name as a cause, if one mistake has another name in each mode."""

    @property
    def names(self) -> list[str]:
        """Its name as a cause, for each size that it may be: one step may not tell them apart."""
        verb = self.name.partition("_by_")[0]
        return [f"{verb}_by_{size}" for size in self.sizes] or [self.cause or self.name]
