"""A bank of neighbourhoods, combined with a kernel machine and trees on summaries of the whole graph.

Legend
    h_v, e_wv   features of nodes and of edges, less the minimum of each over the training graphs
    n_g         count of a Weisfeiler-Lehman colour in a graph (`weisfeiler_lehman.py`): of nodes, of depth 0 or 1, or
                of edges, of depth 0

    numbers     summaries of the shape, of weights, of h and of e (`graph_summaries.py`), and √n_g of the NUM_COLOURS
                most frequent colours of nodes of the training graphs, and as many of edges
    outputs     combined predictions of both (`second_reading.py`)

A linear model of averages over nodes does not depend on the number of nodes, on extremes or on interactions, and
neighbourhoods do not show rings or the diameter. The kernel and the trees use all of these, but only the most common
neighbourhoods.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.graphs.graph_summaries import MOST_OF_FEATURE, may_miss, num_summaries, summarise_graphs
from fredholm.models.fitted.graphs.neighbourhood_bank import NeighbourhoodBank, read_graphs
from fredholm.models.fitted.graphs.weisfeiler_lehman import ColourCounts
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.second_reading import SecondReading
from fredholm.models.fitted.table_machine import NumbersMachine
from fredholm.models.graphs.graph_model import GraphModelConfig, GraphReading

MOST_NUMBERS = 192
"""Approximate number of summaries of features; with more features than this the machine reads none of them."""
NUM_COLOURS, DEPTH = 32, 1


@final
class GraphMachine(FittedModel[GraphBatch]):
    """Predicts from a graph by a bank of neighbourhoods, and by a kernel machine and trees on its summaries.

    Takes graphs of any size, with features, kinds and weights of nodes and of edges. Positions are not read.

    Args:
        reading: description of the graphs.
        num_outputs: number of outputs, such as classes.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    least: Tensor
    edge_minima: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(GraphModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        bank: NeighbourhoodBank.Config = dataclasses.field(default_factory=NeighbourhoodBank.Config)
        """Configuration of the bank of neighbourhoods."""
        num_centres: int = 1024
        """Most training graphs that are centres of the kernel; the fit uses all graphs."""
        num_trees: int = 100
        """Most trees of each fold; 0: no trees."""

        def __post_init__(self) -> None:
            check_count("models.GraphMachine", "num_centres", self.num_centres)
            check_count("models.GraphMachine", "num_trees", self.num_trees, least=0)

        def check(self) -> None:
            """See `GraphModelConfig.check`: there is nothing to check, as there is one output per graph."""

        def build(self, reading: GraphReading, num_outputs: int) -> "GraphMachine":
            """See `GraphModelConfig.build`."""
            return GraphMachine(reading, num_outputs, self)

    def __init__(self, reading: GraphReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.reading = config, reading
        self.bank = config.bank.build(reading, num_outputs)
        self.register_buffer("least", torch.zeros(reading.features))
        self.register_buffer("edge_minima", torch.zeros(reading.edge_dim))
        self.colours = ColourCounts(NUM_COLOURS, DEPTH)
        self.edge_colours = ColourCounts(NUM_COLOURS, 0, of="edges")
        self.num_of_each = min(MOST_OF_FEATURE, MOST_NUMBERS // (reading.features + reading.edge_dim))
        sizes = (reading.features, reading.edge_dim, self.num_of_each)
        machine = NumbersMachine(
            num_summaries(*sizes) + 2 * NUM_COLOURS,
            num_outputs,
            may_miss=may_miss(*sizes),
            num_centres=config.num_centres,
            num_trees=config.num_trees,
        )
        self.second = SecondReading(machine, num_outputs)

    def forward(self, inputs: GraphBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError, TypeError: on inputs that the bank refuses.
        """
        return self.second(self.bank(inputs), self.numbers(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[GraphBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses their shares; see `FittedModel.fit`."""
        if not batches:
            raise ValueError("models.GraphMachine: there is no graph to fit to")
        for counts in (self.colours, self.edge_colours):
            counts.choose((batch, read_graphs(self.bank.encoder, batch)[1]) for batch, _ in batches)
        self.least.fill_(torch.inf)
        self.edge_minima.fill_(torch.inf)
        for batch, _ in batches:
            values, domain = read_graphs(self.bank.encoder, batch)
            weighs = (domain.weights > 0).expand(values.shape[:2])
            self._lower(self.least, values[weighs])
            if domain.edge_features is not None:
                self._lower(self.edge_minima, domain.edge_features)
        return self.second.fit(self.bank, self.numbers, batches, regressand, groups=groups, weights=weights)

    @staticmethod
    def _lower(least: Tensor, values: Tensor) -> None:
        """Lowers the running minimum to that of values `(n, k)`."""
        if len(values):
            least.copy_(torch.minimum(least, values.amin(0).to(least.dtype)))

    @torch.no_grad()
    def numbers(self, inputs: GraphBatch) -> Tensor:
        """Returns summaries of graphs and roots of counts, `(B, numbers)`; NaN where one is not defined."""
        values, domain = read_graphs(self.bank.encoder, inputs)
        of_edges = domain.edge_features
        if of_edges is not None:
            of_edges = of_edges.double() - self.edge_minima.double()
        found = summarise_graphs(values.double() - self.least.double(), domain, of_edges, self.num_of_each)
        # always float32: quantiles are training values, and rounding would change the ranks of equal values
        counts = [counts(inputs, domain, torch.float32) for counts in (self.colours, self.edge_colours)]
        return torch.cat([found.float(), *counts], 1)
