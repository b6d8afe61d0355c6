"""The common interface of configurations of point cloud models."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudModelConfig(abc.ABC):
    """Configuration of a model of point clouds: a network behind an encoder of points, or a fitted model."""

    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    @abc.abstractmethod
    def check_pools(self, whole: str) -> None:
        """Raises a ValueError if the model has an output at every point where one output per input is needed."""
