"""What the models of the nodes of one graph have in common."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeModelConfig(abc.ABC):
    """A network, which an encoder of graphs makes a signal for, or a model that is computed at once."""

    learns_by_steps: ClassVar[bool] = True
    """Whether training goes on in steps, so that something is chosen by a validation split."""

    @abc.abstractmethod
    def check_nodes(self) -> None:
        """Raises a ValueError where the model gives one answer for all nodes together."""
