"""The abstract encoder: from a modality to a signal on a domain."""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from fredholm._precision import autocast_dtype
from fredholm.domains import Domain
from fredholm.storage.rebuildable import Rebuildable


class Encoder(nn.Module, Rebuildable, abc.ABC):
    """Turns raw inputs into a signal and its domain.

    Attributes:
        embed_dim: channels of the signal.
        pos_dim: coordinates of the domain's positions.
        has_class_token: whether the first point is a class token, from which a model reads its output.
        edge_dim: number of features that the domain holds for a pair of points; 0: none.
    """

    embed_dim: int
    pos_dim: int
    has_class_token: bool = False
    edge_dim: int = 0

    @abc.abstractmethod
    def forward(self, inputs: Any) -> tuple[Tensor, Domain]:
        """Raw inputs of one batch to the signal `(B, N, embed_dim)` and its domain of N points."""

    def columns(self, channels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Names of the entries of the last axis of each weight that reads raw channels, by the weight's name."""
        return {}

    def resampled(self, other: Any) -> dict[str, Tensor]:
        """Tensors of another encoder of this class, resampled to the sizes of this one where possible, by name."""
        return {}


class FieldEncoder(Encoder):
    """An encoder whose signal is a function of position, with a value at any point, not only at its domain."""

    @abc.abstractmethod
    def at(self, inputs: Any, places: Domain) -> Tensor:
        """The signal of one batch at other points.

        Args:
            inputs: as `forward` takes them.
            places: Nq points, in the domain's coordinates.

        Returns:
            `(B, Nq, embed_dim)`; equal to `forward` at the points of the domain, except for points whose signal the
            encoder documents as different.
        """

    def field(self, inputs: Any) -> tuple[Tensor, Domain, Callable[[Domain], Tensor]]:
        """The result of `forward` on one batch, and its signal as a function of position.

        An encoder whose `forward` and `at` share work overrides this to do it once.
        """
        u, domain = self(inputs)
        return u, domain, functools.partial(self.at, inputs)


def check_places(name: str, pos_dim: int, places: Domain) -> None:
    """Raises an error that begins with `name` unless `places` is a domain with `pos_dim` coordinates."""
    if not isinstance(places, Domain):
        raise TypeError(f"{name}: places must be a fredholm domain; got {type(places).__name__}")
    if places.pos_dim != pos_dim:
        raise ValueError(f"{name}: places must have {pos_dim} coordinates; {places!r} has {places.pos_dim}")


def check_dtype(name: str, what: str, values: Tensor, weight: Tensor) -> None:
    """Raises a TypeError that begins with `name` if, outside autocast, values and weight differ in dtype."""
    if weight.is_floating_point() and values.dtype != weight.dtype and autocast_dtype(values) is None:
        raise TypeError(f"{name}: {what} are {values.dtype} and the encoder {weight.dtype}; convert one of them")
