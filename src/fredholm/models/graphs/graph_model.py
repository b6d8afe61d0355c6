"""The common interface of models of whole graphs, and networks on the signal of the nodes."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Literal, final

from torch import nn

from fredholm._settings import check_count, check_rate
from fredholm.encoders.graph import Graph
from fredholm.kernels.on_edges import EdgeMass
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import MLPConfig, OnEdgesConfig
from fredholm.models.signal_model import SignalModel


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphReading:
    """Description of the graphs that a model reads.

    Args:
        features: number F of features of a node.
        pos_dim: number s of coordinates of a position.
        edge_dim: number c of features of an edge; 0: edges have none.
        adds_positions: whether a network adds a linear map of the positions to its input signal.
        feature_dropout: dropout rate of features in the training of a network.
    """

    features: int
    pos_dim: int
    edge_dim: int = 0
    adds_positions: bool = False
    feature_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("features", 1), ("pos_dim", 1), ("edge_dim", 0)):
            check_count("models.GraphReading", name, getattr(self, name), least)
        check_rate("models.GraphReading", "feature_dropout", self.feature_dropout)

    def encoder(self, embed_dim: int) -> Graph:
        """Builds an encoder with `embed_dim` channels."""
        return Graph(
            self.features,
            embed_dim,
            self.pos_dim,
            edge_dim=self.edge_dim,
            adds_positions=self.adds_positions,
            feature_dropout=self.feature_dropout,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphModelConfig(abc.ABC):
    """Configuration of a model from a `GraphBatch` to one output vector per graph."""

    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a ValueError if the model has an output at every node where one output per graph is needed."""

    @abc.abstractmethod
    def build(self, reading: GraphReading, num_outputs: int) -> nn.Module:
        """Builds a model, with random numbers from the global torch seed.

        Args:
            reading: description of the graphs.
            num_outputs: number of outputs, such as one logit per class.
        """


def small_stack(pool: Literal["mean", "none"], *, dropout: float, edge_mass: EdgeMass) -> ITNet.Config:
    """A small ITNet whose kernels integrate over the neighbours of a node.

    There is no long-range term λ: an exact kernel would then be computed for all pairs of nodes.
    """
    kernel = MLPConfig(width=32, num_frequencies=8, sigma=0.3, head_shared=True)
    return ITNet.Config(
        embed_dim=64,
        depth=3,
        kernel=OnEdgesConfig(kernel=kernel, long_range=None, edge_mass=edge_mass),
        expansion=2,
        dropout=dropout,
        drop_path=0.0,
        pool=pool,
    )


def _stack() -> ITNet.Config:
    return small_stack("mean", dropout=0.1, edge_mass="sum")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphStackConfig(GraphModelConfig):
    """A network on the signal of `encoders.Graph` (ITNet, J.1) with mean pooling over the nodes."""

    stack: SignalModel.Config = dataclasses.field(default_factory=_stack)
    """The network; the default kernels of an ITNet are sums along the edges."""

    def check(self) -> None:
        """See `GraphModelConfig.check`."""
        _ = self._network

    def build(self, reading: GraphReading, num_outputs: int) -> SignalModel:
        """See `GraphModelConfig.build`."""
        return self._network.build(reading.encoder(self.stack.embed_dim), num_outputs)

    @property
    def _network(self) -> SignalModel.Config:
        """The stack with one output per graph."""
        return self.stack.pooling("mean", "a graph has one output, and a class token no edges")
