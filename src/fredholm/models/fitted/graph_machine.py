"""A bank of neighbourhoods, and beside it a kernel and trees that read what is counted over a whole graph.

Legend
    h_v, e_wv   features of nodes and of edges, less the least of each over the training graphs
    n_g         how often a colour of Weisfeiler and Lehman of depth 0 or 1 stands in a graph (`weisfeiler_lehman.py`)

    numbers     summaries of the shape, of weights, of h and of e (`graph_summaries.py`), and √n_g of the NUM_COLOURS
                colours that most training graphs have
    outputs     what both say together (`second_reading.py`)

What is averaged over the nodes, and linear, is blind to how many there are, to what is largest, and to one thing that
matters only where another is so; neighbourhoods do not know rings, nor how far it is from one end to the other. The
kernel and the trees know these, and no neighbourhoods but the most common ones.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.graph_summaries import MOST_OF_FEATURE, may_miss, num_summaries, summarise_graphs
from fredholm.models.fitted.neighbourhood_bank import NeighbourhoodBank, read_graphs
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.second_reading import SecondReading
from fredholm.models.fitted.weisfeiler_lehman import ColourCounts
from fredholm.models.graphs.graph_model import GraphModelConfig, GraphReading

MOST_NUMBERS = 192
"""Of features, about, which share them; where there are more features the machine reads none."""
NUM_COLOURS, DEPTH = 32, 1


@final
class GraphMachine(FittedModel[GraphBatch]):
    """What a bank of neighbourhoods says of a graph, and what a kernel and trees say of its summaries.

    Takes graphs of any size, with features, kinds and weights of nodes and of edges. Positions are not read.

    Args:
        reading: how graphs reach it.
        num_outputs: such as classes.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    least: Tensor
    least_of_edges: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(GraphModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        bank: NeighbourhoodBank.Config = dataclasses.field(default_factory=NeighbourhoodBank.Config)
        """The neighbourhoods."""
        num_centres: int = 1024
        """Training graphs that are centres of the kernel, at most; all are learnt from."""
        num_trees: int = 100
        """Of each fold, at most; 0: there are none."""

        def __post_init__(self) -> None:
            check_count("models.GraphMachine", "num_centres", self.num_centres)
            check_count("models.GraphMachine", "num_trees", self.num_trees, least=0)

        def check(self) -> None:
            """See `GraphModelConfig.check`: it gives one answer in any case."""

        def build(self, reading: GraphReading, num_outputs: int) -> "GraphMachine":
            """See `GraphModelConfig.build`."""
            return GraphMachine(reading, num_outputs, self)

    def __init__(self, reading: GraphReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.reading = config, reading
        self.bank = config.bank.build(reading, num_outputs)
        self.register_buffer("least", torch.zeros(reading.features))
        self.register_buffer("least_of_edges", torch.zeros(reading.edge_dim))
        self.colours = ColourCounts(NUM_COLOURS, DEPTH)
        self.num_of_each = min(MOST_OF_FEATURE, MOST_NUMBERS // (reading.features + reading.edge_dim))
        sizes = (reading.features, reading.edge_dim, self.num_of_each)
        self.second = SecondReading(
            num_summaries(*sizes) + NUM_COLOURS,
            num_outputs,
            may_miss=may_miss(*sizes),
            num_centres=config.num_centres,
            num_trees=config.num_trees,
        )

    def forward(self, inputs: GraphBatch) -> Tensor:
        """One batch to outputs `(B, num_outputs)`, all equal before a fit.

        Raises:
            ValueError, TypeError: what the bank refuses.
        """
        return self.second(self.bank(inputs), self.numbers(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[GraphBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses how they share; see `FittedModel.fit`."""
        if not batches:
            raise ValueError("models.GraphMachine: there is no graph to fit to")
        self.colours.choose((batch, read_graphs(self.bank.encoder, batch)[1]) for batch, _ in batches)
        self.least.fill_(torch.inf)
        self.least_of_edges.fill_(torch.inf)
        for batch, _ in batches:
            values, domain = read_graphs(self.bank.encoder, batch)
            weighs = (domain.weights > 0).expand(values.shape[:2])
            self._lower(self.least, values[weighs])
            if domain.edge_features is not None:
                self._lower(self.least_of_edges, domain.edge_features)
        return self.second.fit(self.bank, self.numbers, batches, regressand, groups=groups)

    @staticmethod
    def _lower(least: Tensor, values: Tensor) -> None:
        """Lowers it to the least of values `(n, k)`."""
        if len(values):
            least.copy_(torch.minimum(least, values.amin(0).to(least.dtype)))

    @torch.no_grad()
    def numbers(self, inputs: GraphBatch) -> Tensor:
        """Summaries of graphs and roots of counts, `(B, numbers)`; NaN where one is not defined."""
        values, domain = read_graphs(self.bank.encoder, inputs)
        of_edges = domain.edge_features
        if of_edges is not None:
            of_edges = of_edges.double() - self.least_of_edges.double()
        found = summarise_graphs(values.double() - self.least.double(), domain, of_edges, self.num_of_each)
        # in float32 whatever the weights are, since of quantiles that are numbers themselves ranks depend on each digit
        return torch.cat([found.float(), self.colours(inputs, domain, torch.float32)], 1)
