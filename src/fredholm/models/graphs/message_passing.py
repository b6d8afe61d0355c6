"""Baseline graph networks of PyTorch Geometric: GCN, GIN and GAT on this library's encoders.

Legend
    u_v     signal at node v                       a_vw    weight of an edge from w to v, 1 where it has none
    N(v)    sources of the edges that end at v     d_v     1 + Σ_w a_vw

    gcn     u_v ← W (u_v / d_v + Σ_{w ∈ N(v)} a_vw u_w / √(d_v d_w)) + b
    gin     u_v ← P(u_v + Σ_{w ∈ N(v)} u_w),  P a perceptron of one hidden layer
    gat     u_v ← Σ_{w ∈ N(v) ∪ {v}} α_vw W u_w + b,  α the softmax over w of leaky_relu(s·W u_w + t·W u_v), by heads

Sources: arXiv 1609.02907, 1810.00826 and 1710.10903. The layers are the package's own. After each come a ReLU and
dropout; residuals and norms are those of `ITNet`, not of the papers. The readout of a graph is the integral mean.
"""

import dataclasses
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_rate, refuse_idle
from fredholm.domains import Graph
from fredholm.encoders.encoder import Encoder
from fredholm.models.signal_model import SignalModel


@final
class MessagePassing(SignalModel):
    """Layers of PyTorch Geometric along the edges of a graph, and a head.

    Features of edges are ignored, and only `gcn` reads weights of edges.

    Args:
        encoder: from raw inputs to a signal with `config.embed_dim` channels on a graph.
        num_outputs: length of the output, such as the number of classes.
        config: the network.

    Raises:
        ImportError: PyTorch Geometric is not installed.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config):
        """Sizes and regularisation."""

        layer: Literal["gcn", "gin", "gat"] = "gin"
        embed_dim: int = 64
        depth: int = 3
        """Number of layers."""
        num_heads: int | None = None
        """Number of heads of GAT, a divisor of embed_dim; None: 4. Refused for other layers."""
        residual: bool = True
        """Whether layers are pre-norm residual branches; otherwise they are chained, as in the papers."""
        dropout: float = 0.1
        """Dropout rate after the embedding and after each layer."""
        pool: Literal["mean", "max", "none"] = "mean"
        """Pooling before the output: the integral mean of the signal, the maximum of each channel, or none, with one
        output per node."""

        def __post_init__(self) -> None:
            name = "models.MessagePassing"
            for what in ("embed_dim", "depth"):
                check_count(name, what, getattr(self, what))
            check_rate(name, "dropout", self.dropout)
            for what, allowed in (("layer", ("gcn", "gin", "gat")), ("pool", ("mean", "max", "none"))):
                if getattr(self, what) not in allowed:
                    raise ValueError(f"{name}: {what} is one of {', '.join(allowed)}; got {getattr(self, what)!r}")
            if not self.has_heads:
                refuse_idle(name, type(self), f"layer={self.layer!r}", "take layer='gat'", num_heads=self.num_heads)
            if self.heads < 1 or self.embed_dim % self.heads:
                raise ValueError(f"{name}: num_heads must divide embed_dim, {self.embed_dim}; got {self.num_heads}")

        @property
        def has_heads(self) -> bool:
            """See `SignalModel.Config.has_heads`."""
            return self.layer == "gat"

        @property
        def heads(self) -> int:
            """Number of heads of a layer."""
            return 1 if not self.has_heads else 4 if self.num_heads is None else self.num_heads

        def build(self, encoder: Encoder, num_outputs: int) -> "MessagePassing":
            """See `SignalModel.Config.build`."""
            return MessagePassing(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=config.dropout)
        self.config = config
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.depth))
        norms = (nn.LayerNorm(config.embed_dim) if config.residual else nn.Identity() for _ in range(config.depth))
        self.norms = nn.ModuleList(norms)
        self._add_head(config.embed_dim, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps a batch of encoder inputs to `(B, num_outputs)`; without pooling to `(B, N, num_outputs)`.

        Raises:
            TypeError: the domain of the encoder's signal is no graph.
        """
        u, domain = self._signal(inputs)
        if not isinstance(domain, Graph):
            raise TypeError(f"models.MessagePassing: expected a signal on a graph; got {type(domain).__name__}")
        edges, weights = _edges_of_batch(domain, u.shape[0])
        weighted = {"edge_weight": weights} if self.config.layer == "gcn" and weights is not None else {}
        for layer, norm in zip(self.layers, self.norms, strict=True):
            passed = layer(norm(u).flatten(0, 1), edges, **weighted).view_as(u)
            passed = self.dropout(passed.relu())
            u = u + passed if self.config.residual else passed
        return self._outputs(u, domain)


def _layer(config: MessagePassing.Config) -> nn.Module:
    try:
        from torch_geometric.nn import GATConv, GCNConv, GINConv
    except ImportError as error:
        message = 'models.MessagePassing needs torch-geometric; get it with: pip install "fredholm[graph]"'
        raise ImportError(message) from error
    width: Any = config.embed_dim
    if config.layer == "gcn":
        return GCNConv(width, width)
    if config.layer == "gat":
        return GATConv(width, width // config.heads, heads=config.heads)
    return GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), train_eps=True)


def _edges_of_batch(domain: Graph, batch: int) -> tuple[Tensor, Tensor | None]:
    """Sources and targets `(2, E)`, with nodes numbered consecutively over the batch, and the weights of edges."""
    edges, weights = torch.stack([domain.source, domain.target]), domain.edge_weights
    if domain.edges_batch == batch:
        return edges, weights
    first = torch.arange(batch, device=edges.device).repeat_interleave(edges.shape[1]) * domain.num_points
    return edges.repeat(1, batch) + first, None if weights is None else weights.repeat(batch)
