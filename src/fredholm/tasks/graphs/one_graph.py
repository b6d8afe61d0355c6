"""The base of tasks on one graph: every step runs the whole graph, and the loss is over a part of it."""

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
    """The default network."""
    return small_stack("none", dropout=0.2, edge_mass="mean")


class OneGraphTask(DividedTask[Part]):
    """A task on parts of one graph, such as its nodes or pairs of nodes.

    Args:
        config: the settings.
    """

    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, MessagePassing.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the graph that the model sees."""

        preparation: Preparation

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """The graph, the inputs of the model, and the model.

        Args:
            data: a folder with edges.csv and, for features and labels of nodes, nodes.csv; or an .npz file.
            directed: whether edges have directions; else every edge is taken both ways, and counts once.
            inputs: the inputs that are computed from the graph.
            model: the network, or a closed-form machine in its place.
        """

        data: str = ""
        directed: bool = False
        inputs: GraphInputs = field(default_factory=GraphInputs)
        model: NodeModelConfig = field(default_factory=small_network)

        kernel_sigma: ClassVar[float] = 0.3
        weight_settings: ClassVar[tuple[str, ...]] = ("inputs", "model")
        machine: ClassVar[type[NodeModelConfig]]
        """The settings of the closed-form machine that the task takes."""

        def __post_init__(self) -> None:
            if not isinstance(self.model, SignalModel.Config | self.machine):
                came, known = (kind.__qualname__.removesuffix(".Config") for kind in (type(self.model), self.machine))
                raise ValueError(f"model is {came}; expected a network, or {known}")
            self.model.check_nodes()

        @property
        def network(self) -> SignalModel.Config:
            """The model if it is a network, else the default network, with an output at every node."""
            model = self.model if isinstance(self.model, SignalModel.Config) else type(self)().model
            assert isinstance(model, SignalModel.Config)
            return model.answering_everywhere("each node")

        @property
        def inputs_read(self) -> GraphInputs:
            """The inputs that this model reads."""
            return self.inputs

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the network."""
            return stack_of(self.model if self.model.learns_by_steps else type(self)().model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`: the stack along the edges, with the edge measure of the default."""
            return replace(self, model=along_edges(stack, type(self)().network))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._of_graph = config
        self._moved: dict[torch.device, Batch] = {}

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """Facts about the graph that the model sees."""

    @final
    @cached_property
    def _graph(self) -> GraphSet:
        """The whole graph, with all its edges."""
        config = self._of_graph
        if not config.data:
            raise ValueError("no graph is given; pass a folder of tables or an .npz file")
        with config.csv.reading(config.data):
            graph = open_graphs(config.data, is_directed=config.directed)
        self._refuse(graph)
        if len(graph) != 1:
            raise ValueError(f"{config.data} holds {len(graph)} graphs; expected one")
        return graph

    def _refuse(self, graph: GraphSet) -> None:
        """Raises ValueError where the graph lacks what the task predicts."""
        return

    @cached_property
    @abstractmethod
    def _seen(self) -> GraphSet:
        """The part of the graph that the model sees in training."""

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the features of nodes at the columns of the encoder."""
        return input_entry_names(model, self._of_graph.inputs_read.names(self.facts.preparation))

    def _check(self, splits: Splits[Part]) -> None:
        _ = self._whole  # raises a ValueError where features do not match the facts

    @final
    def _signs(self, count: int, generator: torch.Generator) -> Batch:
        """`signs` (B, s) of positions, the same in every row, where they are flipped; else nothing."""
        inputs = self._of_graph.inputs
        if not inputs.turns_signs:
            return {}
        return {"signs": inputs.draw_signs(1, self.facts.preparation.pos_dim, generator).repeat(count, 1)}

    @final
    @cached_property
    def _whole(self) -> Batch:
        """The graph of training, prepared, as a batch of one."""
        return self._prepared(self._seen)

    @final
    def _prepared(self, graph: GraphSet) -> Batch:
        """A graph with the same features, prepared, as a batch of one."""
        return batch_of(self._of_graph.inputs_read.prepare(graph, self.facts.preparation))

    @final
    def _graph_on(self, device: torch.device) -> Batch:
        """The graph of training as a batch of one on a device; it is moved there once."""
        if device not in self._moved:
            self._moved[device] = {name: tensor.to(device) for name, tensor in self._whole.items()}
        return dict(self._moved[device])

    @final
    def _at_nodes(self, model: nn.Module, whole: Batch, batch: Batch) -> Tensor:
        """Outputs of the network at every node, float32 `(N, outputs)`, with the signs of the batch."""
        return model(graphs_in(self._turned(whole, batch)))[0].float()

    @final
    def _turned(self, whole: Batch, batch: Batch) -> Batch:
        """The whole graph with the signs of positions of the batch, where it has any."""
        return whole | {"pos": whole["pos"] * batch["signs"][:1, None]} if "signs" in batch else whole

    @final
    def _at_nodes_on(self, model: nn.Module, graph: GraphSet, device: torch.device) -> Tensor:
        """Outputs of the network at every node of a graph with the same features, float32 `(N, outputs)` on the CPU."""
        whole = self._prepared(graph)
        return model(graphs_in({name: tensor.to(device) for name, tensor in whole.items()}))[0].float().cpu()
