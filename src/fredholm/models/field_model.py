"""Models whose every layer maps functions to functions."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from fredholm.blocks import FieldBlock, ResidualBlock
from fredholm.domains import Domain
from fredholm.encoders.encoder import Encoder, FieldEncoder
from fredholm.kernels import FeatureFactorised
from fredholm.kernels.fourier_features import Lifting, lift_together
from fredholm.models.signal_model import SignalModel, summed


class FieldModel(SignalModel, abc.ABC):
    """A stack of blocks, each an integral over the points of the signal, so that outputs are functions of position."""

    shares_points = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config, abc.ABC):
        """Sizes of a field model."""

        @abc.abstractmethod
        def build(self, encoder: Encoder, num_outputs: int) -> FieldModel:
            """See `SignalModel.Config.build`."""

    @abc.abstractmethod
    def layers(self) -> list[FieldBlock]:
        """The blocks, in order."""

    @final
    def forward(self, inputs: Any, at: Domain | None = None) -> Tensor:
        """Maps one batch of encoder inputs to one output per input, or one per point.

        Every layer maps a function to a function, by an integral over the points of the signal alone. So its output
        has a value at any x at which the encoder's signal has one. Outputs at a query point do not depend on the other
        query points.

        Args:
            inputs: one batch.
            at: Nq query points, in the coordinates of the encoder's domain; None: the points of the signal. Needs
                pool='none' and a `FieldEncoder`.

        Returns:
            `(B, num_outputs)`; with pool='none' `(B, N, num_outputs)`, or `(B, Nq, num_outputs)` at query points, equal
            to the former where these are points of the signal.

        Raises:
            ValueError: on a model that cannot be queried at other points, or kernels, such as recurrences, with outputs
                at the points of their signal alone.
        """
        if at is not None:
            return self.field(inputs)(at)
        u, domain = self._signal(inputs)
        domain = self._with_cache(domain)
        for block in self.layers():
            u = block(u, domain)
        return self._outputs(u, domain)

    @final
    def field(self, inputs: Any) -> Callable[[Domain], Tensor]:
        """Returns the output for one batch as a function of position; its layers are computed once for all calls.

        Args:
            inputs: one batch.

        Returns:
            A function from `at` to `forward(inputs, at)`.

        Raises:
            ValueError: on a model that cannot be queried at other points; the returned function raises as `forward`.
        """
        blocks = self.layers()
        first, points, function = self._field_encoder().field(inputs)
        u, domain = self._entering(first, points)
        domain = self._with_cache(domain)
        signals = [u]  # the input of each block; the last block's output at these points is not needed
        for block in blocks[:-1]:
            signals.append(block(signals[-1], domain))

        def answers(at: Domain) -> Tensor:
            at = at.to(u.device)
            v = self.dropout(summed(function(at)))
            for block, signal in zip(blocks, signals, strict=True):
                v = block.at(v, at, signal, domain)
            return self._outputs(v, at)

        return answers

    def _with_cache(self, domain: Domain) -> Domain:
        """The domain shared by all layers, which caches the kernels' features of its points, computed jointly."""
        domain = domain.with_cache()
        kernels = (block.operator.kernel for block in self.layers() if isinstance(block, ResidualBlock))
        read = (kernel.features if isinstance(kernel, FeatureFactorised) else kernel for kernel in kernels)
        lift_together([kernel for kernel in read if isinstance(kernel, Lifting)], domain)
        return domain

    def _field_encoder(self) -> FieldEncoder:
        """The encoder, if it has values at any points; raises a ValueError if outputs there are not defined."""
        name = f"models.{type(self).__name__}"
        if self.pool != "none":
            raise ValueError(
                f"{name}: pool={self.pool!r} gives one answer for the whole input; leave `at` out, or build the "
                "model with pool='none'"
            )
        if not isinstance(self.encoder, FieldEncoder):
            raise ValueError(
                f"{name}: the signal of encoders.{type(self.encoder).__name__} has no value between its points; "
                "leave `at` out"
            )
        return self.encoder
