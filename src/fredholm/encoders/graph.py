"""Graphs as signals on their nodes."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm import domains
from fredholm._settings import check_rate, refuse_idle
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import check_tensor
from fredholm.encoders.encoder import Encoder, check_dtype


@final
class GraphBatch(NamedTuple):
    """Graphs of one batch, padded to equal numbers of nodes and edges.

    `features (B, N, F)` are finite numbers where a node exists. `edge_index (B, 2, E)` int64 are sources over targets,
    counted within each graph; -1 is no edge. `pos (B, N, s)` are positions. `mask (B, N)` is True where a node exists;
    None: everywhere. `edge_weights (B, E)` >= 0, `edge_features (B, E, c)` and `weights (B, N)` >= 0, the mass of each
    node, are None where there are none. `kinds (B, N)` and `edge_kinds (B, E)`, int64, number kinds of nodes and edges,
    for models that count kinds; None: one kind.
    """

    features: Tensor
    edge_index: Tensor
    pos: Tensor
    mask: Tensor | None = None
    edge_weights: Tensor | None = None
    edge_features: Tensor | None = None
    weights: Tensor | None = None
    kinds: Tensor | None = None
    edge_kinds: Tensor | None = None


@final
class Graph(Encoder):
    """Each node's features, or a linear map of them (ITNet, J.1), on the domain `domains.Graph` of the nodes.

    u(v) = W h_v + b,  and with `adds_positions` + V x_v  (eq. 261; the paper has no such term)

    Args:
        features: F, number of features of a node.
        embed_dim: channels of the signal after a linear map; None: the features themselves, without one.
        pos_dim: s, coordinates of a position.
        edge_dim: c, number of features of an edge, which kernels on edges read; 0: none.
        adds_positions: whether a linear map of the positions is added to the signal; kernels read positions anyway.
            Refused without a linear map of the features.
        feature_dropout: rate at which features are left out in training.

    Raises:
        ValueError: sizes below 1, edge_dim below 0, a rate outside [0, 1), or a setting without effect.
    """

    def __init__(
        self,
        features: int,
        embed_dim: int | None,
        pos_dim: int,
        *,
        edge_dim: int = 0,
        adds_positions: bool = False,
        feature_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in (("features", features), ("embed_dim", embed_dim), ("pos_dim", pos_dim)):
            if value is not None and value < 1:
                raise ValueError(f"encoders.Graph: {name} must be at least 1; got {value}")
        if edge_dim < 0:
            raise ValueError(f"encoders.Graph: edge_dim must be at least 0; got {edge_dim}")
        if embed_dim is None:
            given = {"adds_positions": adds_positions}
            refuse_idle("encoders.Graph", Graph, "embed_dim=None", "give embed_dim", **given)
        self.features, self.pos_dim, self.edge_dim = features, pos_dim, edge_dim
        self.embed_dim = features if embed_dim is None else embed_dim
        check_rate("encoders.Graph", "feature_dropout", feature_dropout)
        self.feature_dropout = nn.Dropout(feature_dropout)
        self.embedding = nn.Identity() if embed_dim is None else nn.Linear(features, embed_dim)
        self.of_positions = nn.Linear(pos_dim, self.embed_dim, bias=False) if adds_positions else None

    def columns(self, channels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See `Encoder.columns`; empty without a linear map."""
        return {"embedding.weight": tuple(channels)} if isinstance(self.embedding, nn.Linear) else {}

    def forward(self, inputs: Tensor | GraphBatch) -> tuple[Tensor, domains.Domain]:
        """A batch to the signal and its domain; the signal is 0 at nodes that do not exist.

        Raises:
            ValueError: features of another shape or dtype, or that are NaN or infinite at nodes that exist; another
                number of coordinates or of edge features; inputs that `domains.Graph` refuses.
            TypeError: inputs that are no batch.
        """
        if not isinstance(inputs, GraphBatch):
            raise TypeError(f"encoders.Graph: expected a GraphBatch; got {type(inputs).__name__}, which has no edges")
        values, edge_index, pos, mask, edge_weights, edge_features, weights, *_ = inputs
        for what, part in (("features", values), ("positions", pos)):
            check_tensor("encoders.Graph", what, part)
        if values.ndim != 3 or values.shape[2] != self.features or not values.dtype.is_floating_point:
            raise ValueError(
                f"encoders.Graph: expected float features of shape (batch, nodes, {self.features}); got "
                f"{tuple(values.shape)}, {values.dtype}"
            )
        if pos.shape != (*values.shape[:2], self.pos_dim):
            expected = (*values.shape[:2], self.pos_dim)
            raise ValueError(f"encoders.Graph: expected positions of shape {expected}; got {tuple(pos.shape)}")
        edge_dim = 0 if edge_features is None else edge_features.shape[-1]
        if edge_dim != self.edge_dim:
            raise ValueError(f"encoders.Graph: expected {self.edge_dim} features of an edge; got {edge_dim}")
        if mask is not None:
            values = torch.where(mask[..., None], values, 0.0)
        if values_can_be_read(values) and not bool(values.isfinite().all()):
            raise ValueError("encoders.Graph: features hold NaN or infinite numbers at nodes that exist")
        domain = domains.Graph(
            edge_index,
            values.shape[1],
            pos=pos,
            edge_weights=edge_weights,
            edge_features=edge_features,
            weights=weights,
            mask=mask,
        )
        if isinstance(self.embedding, nn.Linear):
            check_dtype("encoders.Graph", "features", values, self.embedding.weight)
        signal = self.embedding(self.feature_dropout(values))
        if self.of_positions is not None:
            signal = signal + self.of_positions(domain.pos.to(signal.dtype))
        return signal if mask is None else torch.where(mask[..., None], signal, 0.0), domain
