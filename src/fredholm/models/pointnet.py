"""Two baseline networks of point clouds: one of separate points, and one of neighbourhoods.

Legend
    u_i     signal at point i                       max_i   over the points that exist, channel by channel
    N(i)    the K points nearest to i, i among them: by position in the first layer, by signal in the others

    PointPooling        u_i ← φ(LN(W u_i)), layer after layer;  out = head(max_i u_i)
    EdgeConvolution     u_i ← max_{j ∈ N(i)} φ(LN(A u_i + B (u_j - u_i)));  out = head(max_i φ(LN(W v_i))),
                        v_i the u_i of all layers

Sources: PointNet (arXiv 1612.00593) without its transforms, and DGCNN (arXiv 1801.07829). Deviation: a norm of each
point in place of batch norm, so that outputs depend neither on padding nor on the rest of the batch.
"""

import abc
import dataclasses
import itertools
from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count, check_rate
from fredholm.domains import Domain
from fredholm.encoders.encoder import Encoder
from fredholm.models.signal_model import SignalModel, largest


class PointNetwork(SignalModel):
    """Common part of both networks: max pooling over the points, and a perceptron as head.

    Args:
        encoder: from raw inputs to a signal with `config.embed_dim` channels on a domain.
        num_outputs: length of the output, such as the number of classes.
        config: the network.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config):
        """Sizes of either network."""

        embed_dim: int = 64
        widths: tuple[int, ...] = ()
        """Number of channels after each layer; those after the last one are pooled."""
        head_width: int = 256
        """Number of hidden units of the head's perceptron."""
        dropout: float = 0.3
        """Dropout rate of these units."""
        pool: Literal["max", "none"] = "max"
        """Input of the head: the pooled channels, or, for one output per point, its channels and the pooled ones."""

        def __post_init__(self) -> None:
            name = f"models.{type(self).__qualname__.partition('.')[0]}"
            for width in (self.embed_dim, *self.widths):
                check_count(name, "widths" if width in self.widths else "embed_dim", width)
            check_count(name, "head_width", self.head_width)
            check_rate(name, "dropout", self.dropout)
            if not self.widths or self.pool not in ("max", "none"):
                raise ValueError(
                    f"{name}: needs widths and a pool of 'max' or 'none'; got {self.widths}, {self.pool!r}"
                )

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=0.0)
        self.config = config
        pooled = config.widths[-1] * (1 if config.pool == "max" else 2)
        self.perceptron = nn.Sequential(nn.Linear(pooled, config.head_width), nn.GELU(), nn.Dropout(config.dropout))
        self._add_head(config.head_width, num_outputs)

    @final
    def forward(self, inputs: Tensor) -> Tensor:
        """Maps a batch of encoder inputs to `(B, num_outputs)`; without pooling to `(B, N, num_outputs)`."""
        u, domain = self._signal(inputs)
        u = self._points(u, domain)
        pooled = largest(u, domain)
        if self.pool == "none":
            pooled = torch.cat([u, pooled[:, None].expand_as(u)], dim=-1)
        answers = self.head(self.norm(self.perceptron(pooled)))
        return domain.everywhere(domain.where_existing(answers)) if self.pool == "none" else answers

    @abc.abstractmethod
    def _points(self, u: Tensor, domain: Domain) -> Tensor:
        """Channels of each point before pooling, `(B, N, widths[-1])`."""


@final
class PointPooling(PointNetwork):
    """Layers shared by all points, applied to each point separately, then max pooling (PointNet).

    Points interact only through the encoder; use an encoder without neighbours for the plain network.
    """

    shares_points = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(PointNetwork.Config):
        """Sizes; the paper's network is five layers of 64, 64, 64, 128 and 1024 channels."""

        widths: tuple[int, ...] = (64, 128, 512)

        def build(self, encoder: Encoder, num_outputs: int) -> "PointPooling":
            """See `SignalModel.Config.build`."""
            return PointPooling(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, config)
        widths = (config.embed_dim, *config.widths)
        self.layers = nn.Sequential(*(_layer(*sizes) for sizes in itertools.pairwise(widths)))

    def _points(self, u: Tensor, domain: Domain) -> Tensor:
        return self.layers(u)


@final
class EdgeConvolution(PointNetwork):
    """Layers on the offsets u_j - u_i to the points with the nearest signals, then max pooling (DGCNN)."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(PointNetwork.Config):
        """Sizes; the paper's network has edge layers of 64, 64, 128 and 256 channels, and pools 1024 of 20 neighbours.

        The last of the widths is pooled; the others are those of edge layers.
        """

        widths: tuple[int, ...] = (64, 64, 128, 512)
        num_neighbours: int = 16
        """Number K of neighbours of each point, including itself."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_count("models.EdgeConvolution", "num_neighbours", self.num_neighbours)
            if len(self.widths) < 2:
                raise ValueError(
                    f"models.EdgeConvolution: needs at least 2 widths, the pooled one last; got {self.widths}"
                )

        def build(self, encoder: Encoder, num_outputs: int) -> "EdgeConvolution":
            """See `SignalModel.Config.build`."""
            return EdgeConvolution(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, config)
        *edges, pooled = config.widths
        pairs = list(itertools.pairwise((config.embed_dim, *edges)))
        self.num_neighbours = config.num_neighbours
        self.own = nn.ModuleList([nn.Linear(*sizes) for sizes in pairs])
        self.offset = nn.ModuleList([nn.Linear(*sizes, bias=False) for sizes in pairs])
        self.after = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.GELU()) for width in edges])
        self.join = _layer(sum(edges), pooled)

    def _points(self, u: Tensor, domain: Domain) -> Tensor:
        place, found = domain.pos.expand(u.shape[0], -1, -1), []
        for own, offset, after in zip(self.own, self.offset, self.after, strict=True):
            index = _nearest(place, self.num_neighbours, domain.mask)
            rows, mapped = torch.arange(u.shape[0], device=u.device).view(-1, 1, 1), offset(u)
            edges = after(own(u)[:, :, None] + mapped[rows, index] - mapped[:, :, None])
            if domain.mask is not None:
                edges = torch.where(domain.mask[rows, index][..., None], edges, -torch.inf)
            u = edges.amax(2) if edges.shape[2] else edges.sum(2)
            u = place = torch.where(u > -torch.inf, u, 0.0)
            found.append(u)
        return self.join(torch.cat(found, dim=-1))


def _layer(fan_in: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(fan_in, fan_out), nn.LayerNorm(fan_out), nn.GELU())


@torch.no_grad()
def _nearest(signal: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Indices of the points of nearest signals, `(B, N, C)` to `(B, N, K)`, by one matrix product; masked ones last."""
    with without_autocast(signal):  # distances are small differences of large norms
        signal = at_least_float32(signal)
        norms = signal.square().sum(-1)
        squared = norms[:, :, None] + norms[:, None] - 2 * signal @ signal.mT
    squared.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    if mask is not None:
        squared = squared.masked_fill(~mask[:, None], torch.inf)
    return squared.topk(min(count, signal.shape[1]), largest=False).indices
