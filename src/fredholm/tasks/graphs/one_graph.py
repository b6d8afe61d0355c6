"""What tasks on one graph have in common: every step runs the whole graph, and counts the loss at some of it."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from fredholm.models.graphs.graph_model import small_stack
from fredholm.models.graphs.message_passing import MessagePassing
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.node_model import NodeModelConfig
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack, stack_of
from fredholm.tasks.splits.splits import Part, Splits
from fredholm.tasks.splits.splitting import DividedTask
from fredholm.tasks.task import Batch, EntryNames, SplitTask, Task, input_entry_names

from .batches import batch_of, graphs_in
from .graph_set import GraphSet
from .inputs import GraphInputs, Preparation
from .network import along_edges
from .open import open_graphs


def small_network() -> ITNet.Config:
    """The network that is meant where nothing is said."""
    return small_stack("none", dropout=0.2, edge_mass="mean")


class OneGraphTask(DividedTask[Part]):
    """A task on parts of one graph, such as its nodes, or pairs of these.

    Args:
        config: the settings.
    """

    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, MessagePassing.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Of the graph that the network sees."""

        preparation: Preparation

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """A graph, what is computed of it, and the model.

        Args:
            data: a folder with edges.csv and, for features and what is told of nodes, nodes.csv; or an .npz file.
            directed: whether an edge from a to b is none from b to a; else every edge is taken both ways, and counts
                once.
            inputs: what is computed of the graph.
            model: the network, or what is computed at once in its place.
        """

        data: str = ""
        directed: bool = False
        inputs: GraphInputs = field(default_factory=GraphInputs)
        model: NodeModelConfig = field(default_factory=small_network)

        kernel_sigma: ClassVar[float] = 0.3
        weight_settings: ClassVar[tuple[str, ...]] = ("inputs", "model")
        machine: ClassVar[type[NodeModelConfig]]
        """Of what is computed at once, the settings that the task takes."""

        def __post_init__(self) -> None:
            if not isinstance(self.model, SignalModel.Config | self.machine):
                came, known = (kind.__qualname__.removesuffix(".Config") for kind in (type(self.model), self.machine))
                raise ValueError(f"model is {came}; expected a network, or {known}")
            self.model.check_nodes()

        @property
        def network(self) -> SignalModel.Config:
            """The model, or the default where it is computed at once, with an answer at every node."""
            model = self.model if isinstance(self.model, SignalModel.Config) else type(self)().model
            assert isinstance(model, SignalModel.Config)
            return model.answering_everywhere("each node")

        @property
        def inputs_read(self) -> GraphInputs:
            """What is computed of the graph for this model."""
            return self.inputs

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the network."""
            return stack_of(self.model if self.model.learns_by_steps else type(self)().model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`: along the edges, which weigh what they weigh in the default."""
            return replace(self, model=along_edges(stack, type(self)().network))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._of_graph = config
        self._moved: dict[torch.device, Batch] = {}

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """Of the graph that the network sees."""

    @final
    @cached_property
    def _graph(self) -> GraphSet:
        """The graph as it is."""
        config = self._of_graph
        if not config.data:
            raise ValueError("no graph is given; pass a folder of tables or an .npz file")
        graph = open_graphs(config.data, is_directed=config.directed)
        self._refuse(graph)
        if len(graph) != 1:
            raise ValueError(f"{config.data} holds {len(graph)} graphs; expected one")
        return graph

    def _refuse(self, graph: GraphSet) -> None:
        """Raises ValueError where the data do not hold what the task tells."""
        return

    @cached_property
    @abstractmethod
    def _seen(self) -> GraphSet:
        """The graph as the network may see it in training."""

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: of the encoder's columns, the features of nodes."""
        return input_entry_names(model, self._of_graph.inputs_read.names(self.facts.preparation))

    def _check(self, splits: Splits[Part]) -> None:
        _ = self._whole  # whose features are refused where they are not those of the facts

    @final
    def _signs(self, count: int, generator: torch.Generator) -> Batch:
        """`signs` (B, s) of positions, the same in every row, where they are turned."""
        inputs = self._of_graph.inputs
        if not inputs.turns_signs:
            return {}
        return {"signs": inputs.draw_signs(1, self.facts.preparation.pos_dim, generator).repeat(count, 1)}

    @final
    @cached_property
    def _whole(self) -> Batch:
        """The seen graph as a network takes it, a batch of one."""
        return self._prepared(self._seen)

    @final
    def _prepared(self, graph: GraphSet) -> Batch:
        """A graph with the same features as a network takes it."""
        return batch_of(self._of_graph.inputs_read.prepare(graph, self.facts.preparation))

    @final
    def _graph_on(self, device: torch.device) -> Batch:
        """That batch of one on a device, where it stays."""
        if device not in self._moved:
            self._moved[device] = {name: tensor.to(device) for name, tensor in self._whole.items()}
        return dict(self._moved[device])

    @final
    def _at_nodes(self, model: nn.Module, whole: Batch, batch: Batch) -> Tensor:
        """What the network tells of every node, float32 `(N, outputs)`, with the signs of the batch."""
        if "signs" in batch:
            whole = whole | {"pos": whole["pos"] * batch["signs"][:1, None]}
        return model(graphs_in(whole))[0].float()

    @final
    def _at_nodes_on(self, model: nn.Module, graph: GraphSet, device: torch.device) -> Tensor:
        """Likewise of a graph with the same features, on the CPU."""
        whole = self._prepared(graph)
        return model(graphs_in({name: tensor.to(device) for name, tensor in whole.items()}))[0].float().cpu()
