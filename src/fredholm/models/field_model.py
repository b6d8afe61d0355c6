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
    """A stack of blocks, each an integral over the points of the signal, so that answers are functions of place."""

    shares_points = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config, abc.ABC):
        """The sizes of such a model."""

        @abc.abstractmethod
        def build(self, encoder: Encoder, num_outputs: int) -> FieldModel:
            """See `SignalModel.Config.build`."""

    @abc.abstractmethod
    def layers(self) -> list[FieldBlock]:
        """The blocks, the first one first."""

    @final
    def forward(self, inputs: Any, at: Domain | None = None) -> Tensor:
        """One batch of what the encoder takes, to the answer of the whole input, or to one at every point.

        Every layer maps a function to a function, by an integral over the points of the signal alone; so what leaves it
        has a value at any x at which the encoder's signal has one. Points that are asked change nothing of what the
        others are told.

        Args:
            inputs: one batch.
            at: Nq points where answers are wanted, in the coordinates of the encoder's domain; None: the points of the
                signal. Needs pool='none' and a `FieldEncoder`.

        Returns:
            `(B, num_outputs)`; with pool='none' `(B, N, num_outputs)`, or `(B, Nq, num_outputs)` at the points asked,
            at points of the signal the same.

        Raises:
            ValueError: on a model that cannot be asked elsewhere, or kernels, such as recurrences, that answer at the
                points of their signal alone.
        """
        if at is not None:
            return self.field(inputs)(at)
        u, domain = self._signal(inputs)
        domain = self._remembering(domain)
        for block in self.layers():
            u = block(u, domain)
        return self._outputs(u, domain)

    @final
    def field(self, inputs: Any) -> Callable[[Domain], Tensor]:
        """The answers to one batch as a function of place, which may be asked often: its layers are computed once.

        Args:
            inputs: one batch.

        Returns:
            what takes `at` to `forward(inputs, at)`.

        Raises:
            ValueError: on a model that cannot be asked elsewhere; and what it returns, as `forward` does.
        """
        blocks = self.layers()
        first, points, function = self._field_encoder().field(inputs)
        u, domain = self._entering(first, points)
        domain = self._remembering(domain)
        signals = [u]  # what enters each block; nobody reads what leaves the last one at its own points
        for block in blocks[:-1]:
            signals.append(block(signals[-1], domain))

        def answers(at: Domain) -> Tensor:
            at = at.to(u.device)
            v = self.dropout(summed(function(at)))
            for block, signal in zip(blocks, signals, strict=True):
                v = block.at(v, at, signal, domain)
            return self._outputs(v, at)

        return answers

    def _remembering(self, domain: Domain) -> Domain:
        """The domain as all layers share it, with what their kernels read of its points, found for all at once."""
        domain = domain.remembering()
        kernels = (block.operator.kernel for block in self.layers() if isinstance(block, ResidualBlock))
        read = (kernel.features if isinstance(kernel, FeatureFactorised) else kernel for kernel in kernels)
        lift_together([kernel for kernel in read if isinstance(kernel, Lifting)], domain)
        return domain

    def _field_encoder(self) -> FieldEncoder:
        """The encoder, which has values at any points; raises a ValueError where answers there make no sense."""
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
