"""Perceptrons of one point each: what κ knows of x and of y before the two meet.

Legend
    γ       Fourier features with L frequencies, or the identity ("raw coordinates") when L = 0
    w       hidden width        G       distinct perceptrons: num_heads, or 1 if head-shared

    h(x, u_x) = [φ(P γ(x) + R u_x + c); 1],  w + 1 features a head: a linear map of h has a constant of its own
"""

import dataclasses
from typing import final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain
from fredholm.kernels.heads import split_heads
from fredholm.kernels.perceptron.mlp import Activation, activate, check_sizes, fourier_features, sample_frequencies

_LIFTED_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointInputs:
    """Which of the four inputs that belong to one point alone a kernel reads."""

    query_position: bool = True
    key_position: bool = True
    query_content: bool = True
    key_content: bool = True

    @property
    def has_frequencies(self) -> bool:
        """Whether a position is read, through Fourier features."""
        return self.query_position or self.key_position


@final
class PointFeatures(nn.Module):
    """h of one side, query or key.

    Args:
        kernels: G.
        width: w.
        lifted_dim: entries of γ(x); 0: positions are not read.
        content_dim: channels of a head; 0: the signal is not read.
        activation: φ.

    Attributes:
        position_weight: P, `(G, w, lifted_dim)`; starts at N(0, 0.02²), as the first layer of `kernels.MLP`. None where
            positions are not read.
        content_weight: R, `(G, w, content_dim)`; starts likewise. None where the signal is not read.
        bias: c, `(G, w)`; starts at 0.
    """

    def __init__(self, kernels: int, width: int, lifted_dim: int, content_dim: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.position_weight, self.content_weight = (
            nn.Parameter(0.02 * torch.randn(kernels, width, columns)) if columns else None
            for columns in (lifted_dim, content_dim)
        )
        self.bias = nn.Parameter(torch.zeros(kernels, width))

    @property
    def reads_position(self) -> bool:
        """Whether there is P."""
        return self.position_weight is not None

    @property
    def reads_content(self) -> bool:
        """Whether there is R."""
        return self.content_weight is not None

    def forward(self, lifted: Tensor, content: Tensor) -> Tensor:
        """h, `(B, H, N, w + 1)`, from γ(x) `(B', N, lifted_dim)`, B' = 1 or B, and u `(B, H, N, content_dim)`."""
        p = self.bias[:, None].expand(*content.shape[:3], -1)
        if self.position_weight is not None:
            p = p + lifted[:, None] @ self.position_weight.mT
        if self.content_weight is not None:
            p = p + content @ self.content_weight.mT
        return nn.functional.pad(activate(p, self.activation), (0, 1), value=1.0)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        sizes = [0 if weight is None else weight.shape[-1] for weight in (self.position_weight, self.content_weight)]
        return f"width={self.bias.shape[-1]}, lifted_dim={sizes[0]}, content_dim={sizes[1]}"


@final
class FeaturePair(nn.Module):
    """The perceptron of the query and that of the key, with the frequencies that both read.

    Args:
        name: of the kernel, for its errors.
        embed_dim: channels of the signal; a multiple of `num_heads`.
        num_heads: heads H.
        pos_dim: coordinates s of a position.
        width: hidden units w.
        activation: exact GELU, its tanh approximation, or ReLU.
        inputs: what is read of each point.
        num_frequencies: frozen random Fourier frequencies L; 0 reads raw coordinates.
        sigma: standard deviation of the frequencies, in cycles per unit length.
        head_shared: one pair for all heads instead of one a head.

    Raises:
        ValueError: on heads that do not divide the channels, or sizes below 1.
    """

    def __init__(
        self,
        name: str,
        embed_dim: int,
        num_heads: int,
        pos_dim: int,
        *,
        width: int,
        activation: Activation,
        inputs: PointInputs,
        num_frequencies: int,
        sigma: float,
        head_shared: bool,
    ) -> None:
        super().__init__()
        check_sizes(name, embed_dim, num_heads, pos_dim, width, num_frequencies, activation)
        kernels = 1 if head_shared else num_heads
        lifted, content = 2 * num_frequencies or pos_dim, embed_dim // num_heads
        self.num_heads, self.num_frequencies = num_heads, num_frequencies
        self.register_buffer("frequencies", sample_frequencies(num_frequencies, pos_dim, sigma))
        self.frequencies: Tensor
        self.query = PointFeatures(
            kernels, width, lifted * inputs.query_position, content * inputs.query_content, activation
        )
        self.key = PointFeatures(kernels, width, lifted * inputs.key_position, content * inputs.key_content, activation)

    @property
    def reads_position(self) -> bool:
        """Whether either side reads positions."""
        return self.query.reads_position or self.key.reads_position

    def lift(self, domain: Domain) -> Tensor:
        """γ at the points of a domain, `(B', N, 2L or s)`, in the parameters' dtype; `(1, N, 0)` if it is not read."""
        if not self.reads_position:
            return self.query.bias.new_empty(1, domain.num_points, 0)
        return self.lift_positions(domain.pos if domain.pos.ndim == 3 else domain.pos[None])

    def lift_positions(self, pos: Tensor) -> Tensor:
        """γ(x) of positions `(B, N, s)`, in the parameters' dtype."""
        if not self.num_frequencies:
            return pos.to(self.query.bias.dtype)
        # many points go in pieces, whose phases in the precision of the positions are many times what is kept of them
        pieces = pos.split(_LIFTED_AT_ONCE, dim=1) if pos.shape[1] > _LIFTED_AT_ONCE else (pos,)
        found = [fourier_features(piece, self.frequencies).to(self.query.bias.dtype) for piece in pieces]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def inputs(self, side: PointFeatures, u: Tensor, lifted: Tensor) -> tuple[Tensor, Tensor]:
        """What one side reads: γ(x) `(B', N, lifted_dim)` and u by head `(B, H, N, content_dim)`.

        Args:
            side: `self.query` or `self.key`.
            u: the signal there, `(B, N, C)`; where the side does not read it, only B counts.
            lifted: what `lift` gives there.
        """
        at = lifted if side.reads_position else lifted[..., :0]
        content = (
            split_heads(u, self.num_heads)
            if side.reads_content
            else u.new_empty(len(u), self.num_heads, at.shape[1], 0)
        )
        return at, content
