"""Mamba: a language model of selective state spaces."""

import dataclasses
import math
from typing import Self, final

from torch import Tensor, nn

from fredholm._settings import check_count, check_positive
from fredholm.blocks.mamba import MambaBlock
from fredholm.domains import Domain
from fredholm.kernels import SelectiveStateSpace, State
from fredholm.models.language.decoder import Decoder
from fredholm.models.language.language_model import LanguageModel


@final
class Mamba(Decoder):
    """Token embeddings, L layers u + M(N(u)) with Mamba blocks M and RMSNorms N, and a head.

    The model of A. Gu and T. Dao, "Mamba" (arXiv 2312.00752). Embeddings start normal with deviation 0.02, the last
    maps of the blocks as linear layers do, scaled by 1 / sqrt(L).

    Args:
        vocab_size: number of tokens V.
        context: longest sequence; the size of the state does not depend on it.
        config: the stack.

    Raises:
        ValueError: sizes below 1, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Decoder.Config):
        """Sizes of the stack; the defaults are the smallest published model's."""

        embed_dim: int = 768
        depth: int = 24
        """Number of layers L."""
        expansion: int = 2
        """Number of inner channels, in multiples of embed_dim."""
        state_dim: int = 16
        """Number of state variables per inner channel."""
        conv_width: int = 4
        """Taps of the convolution over the last points."""
        rank: int | None = None
        """Rank of the map to the step; None: embed_dim / 16, rounded up."""
        norm_epsilon: float = 1e-5
        """Added to mean squares in norms."""
        tied_head: bool = True
        """Whether the head's weight is the token embedding."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "expansion", "state_dim", "conv_width"):
                check_count("models.Mamba", name, getattr(self, name))
            if self.rank is not None:
                check_count("models.Mamba", "rank", self.rank)
            check_positive("models.Mamba", "norm_epsilon", self.norm_epsilon)

        @classmethod
        def smallest(cls) -> Self:
            """24 layers, 768 channels: 129,135,360 parameters with 50,280 tokens."""
            return cls()

        def resized(self, width: int, depth: int, default: LanguageModel.Config) -> Self:
            """See `SignalModel.Config.resized`; with 2 `depth` layers, each half as large as a transformer block."""
            return self._with_sizes(default, embed_dim=width, depth=2 * depth)

        def build(self, vocab_size: int, context: int) -> "Mamba":
            """Builds the model; see `Mamba`."""
            return Mamba(vocab_size, context, self)

        def block(self, layer: int) -> "MambaLayer":
            """Builds one of the L equal layers."""
            return MambaLayer(self)

        def last_norm(self) -> nn.Module:
            """See `Decoder.Config.last_norm`."""
            return nn.RMSNorm(self.embed_dim, eps=self.norm_epsilon)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__(vocab_size, context, config, tied_head=config.tied_head)
        self.config = config


@final
class MambaLayer(nn.Module):
    """u + M(N(u)), a `CausalBlock`.

    Args:
        config: configuration of the stack.
    """

    def __init__(self, config: Mamba.Config) -> None:
        super().__init__()
        dim, inner = config.embed_dim, config.expansion * config.embed_dim
        rank = math.ceil(dim / 16) if config.rank is None else config.rank
        kernel = SelectiveStateSpace(inner, config.state_dim, rank=rank)
        self.norm = nn.RMSNorm(dim, eps=config.norm_epsilon)
        self.mixer = MambaBlock(dim, config.expansion, conv_width=config.conv_width, kernel=kernel)
        self.mixer.out_projection.weight.data.div_(math.sqrt(config.depth))

    def forward(self, u: Tensor, domain: Domain, key_padding_mask: Tensor | None = None) -> Tensor:
        """Maps `(B, T, C)` on a sequence to the same shape."""
        return u + self.mixer(self.norm(u), domain, key_padding_mask)

    def initial_state(self, batch_size: int) -> State:
        """The block's state before the first point."""
        return self.mixer.initial_state(batch_size)

    def scan(self, u: Tensor, domain: Domain, state: State | None) -> tuple[Tensor, State]:
        """Maps the next points `(B, T, C)` of a sequence and returns the state after them; None: they are the first."""
        mixed, state = self.mixer.scan(self.norm(u), domain, state=state)
        return u + mixed, state
