"""The common interface of configurations of models of the nodes of one graph."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeModelConfig(abc.ABC):
    """Configuration of a model of nodes: a network behind an encoder of graphs, or a fitted model."""

    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    @abc.abstractmethod
    def check_nodes(self) -> None:
        """Raises a ValueError if the model has one output for all nodes together."""
