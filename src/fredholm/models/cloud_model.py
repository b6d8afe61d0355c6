"""What the models of clouds of points have in common."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudModelConfig(abc.ABC):
    """A network, which an encoder of points makes a signal for, or a model that is computed at once."""

    learns_by_steps: ClassVar[bool] = True
    """Whether training goes on in steps, so that something is chosen by a validation split."""

    @abc.abstractmethod
    def check_pools(self, whole: str) -> None:
        """Raises a ValueError where the model answers at every point, and one answer is wanted of a whole input."""
