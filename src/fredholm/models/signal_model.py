"""What every model of signals from an encoder offers, whatever its layers are."""

from __future__ import annotations

import abc
import dataclasses

from torch import Tensor, nn

from fredholm.encoders import Encoder


class SignalModel(nn.Module, abc.ABC):
    """An encoder, layers on its signal, and one output vector for each input.

    Attributes:
        encoder: from raw inputs to a signal on a domain.
    """

    encoder: Encoder

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(abc.ABC):
        """The sizes of a model that its data do not decide."""

        embed_dim: int
        """Channels of the signal, which the encoder must give."""

        @abc.abstractmethod
        def build(self, encoder: Encoder, num_outputs: int) -> SignalModel:
            """A new model, from the global torch seed."""

    @abc.abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """One batch of what the encoder takes, to `(B, num_outputs)`."""
