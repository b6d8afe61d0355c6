"""Predicting the class or numbers of a graph."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import filled, refuse_idle
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.graphs.graph_machine import GraphMachine
from fredholm.models.fitted.graphs.neighbourhood_bank import NeighbourhoodBank
from fredholm.models.graphs.graph_model import GraphModelConfig, GraphStackConfig
from fredholm.models.graphs.message_passing import MessagePassing
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, ConstantConfig, OnEdgesConfig
from fredholm.models.signal_model import replaced
from fredholm.models.stack import Stack, stack_of
from fredholm.tasks.graphs import GraphSet, open_graphs
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, schedule_for, width_for
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits, check_held_out
from fredholm.tasks.splits.splitting import DividedTask, Parts
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Target
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    Recommended,
    Task,
    Trained,
    head_entry_names,
    input_entry_names,
    own_facts,
)
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import GraphView, ShownExample

from .batches import batch_of, graphs_in
from .inputs import GraphInputs, Preparation
from .network import NO_FORM, along_edges, reading_of, warn_of_notes
from .open import is_graph_folder

CHUNK = 64
"""Graphs that are predicted, or read by a bank, at a time."""
_OF_NETWORKS = ("num_positions", "flip_signs", "adds_positions", "feature_dropout")
"""Settings of the inputs that only networks read."""
_NETWORK = "take the model graph-stack"


@final
class GraphLearning(TargetTask[GraphSet], DividedTask[GraphSet]):
    """A model of whole graphs that predicts their classes or numbers (ITNet, J.1), whichever the data have.

    Batches hold graphs of similar size, padded to the largest. Warns once of edges that reading has changed.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, have no labels or targets of graphs, have a single class or equal
            numbers, or do not match `facts`.
    """

    command: ClassVar[str] = "graphs"
    predicts = Kinds(suffixes=(".npz",), is_one=is_graph_folder)
    parts: ClassVar[tuple[type, ...]] = (
        NeighbourhoodBank.Config,
        GraphMachine.Config,
        GraphStackConfig,
        ITNet.Config,
        MessagePassing.Config,
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split."""

        preparation: Preparation
        target: Target

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """The graphs, their split, the inputs of the model, and the model.

        Args:
            data: a folder with edges.csv, nodes.csv and graphs.csv, a folder of the TUDataset collection, or an .npz
                file.
            directed: whether edges have directions; else every edge is taken both ways.
            num_folds: number of folds of equal size, one of which is the test split, in place of test_fraction; None:
                no folds.
            fold: index of the test fold, from 0 on; refused without folds.
            inputs: the inputs that are computed from each graph; positions are for networks.
            model: a bank of neighbourhoods, alone or with a kernel and trees, which is fitted to the training graphs
                in closed form, or a network.
        """

        data: str = ""
        directed: bool = False
        num_folds: int | None = None
        fold: int = 0
        inputs: GraphInputs = field(default_factory=GraphInputs)
        model: GraphModelConfig = field(default_factory=GraphMachine.Config)

        kernel_sigma: ClassVar[float] = 0.3
        weight_settings: ClassVar[tuple[str, ...]] = ("inputs", "model")
        split_settings: ClassVar[tuple[str, ...]] = (*TargetTask.NumbersConfig.split_settings, "num_folds", "fold")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv",)

        def __post_init__(self) -> None:
            if self.num_folds is None:
                refuse_idle("", type(self), "num_folds=None", "give num_folds", fold=self.fold)
            else:
                folds, given = f"num_folds={self.num_folds}", {"test_fraction": self.test_fraction}
                refuse_idle("", type(self), folds, "leave num_folds out", **given)
                if self.num_folds < 2 or not 0 <= self.fold < self.num_folds:
                    raise ValueError(f"fold is {self.fold} of num_folds={self.num_folds}; expected 0 to num_folds - 1")
            self.model.check()
            if not self.model.learns_by_steps:
                self._refuse_what_only_networks_read()

        def _refuse_what_only_networks_read(self) -> None:
            if self.valid_fraction != 0:
                kind = type(self.model).__qualname__.removesuffix(".Config")
                because = f"model={kind}, whose settings are chosen by leaving training graphs out"
                refuse_idle("", type(self), because, _NETWORK, valid_fraction=self.valid_fraction)
            because = f"model={type(self.model).__qualname__.removesuffix('.Config')}, which reads features alone"
            names = (*_OF_NETWORKS, *(() if self.inputs.positions == "none" else ("positions",)))
            given = {name: getattr(self.inputs, name) for name in names}
            refuse_idle("inputs", GraphInputs, because, _NETWORK, **given)

        @property
        def inputs_read(self) -> GraphInputs:
            """The inputs that this model reads; a closed-form model reads no positions."""
            return self.inputs if self.model.learns_by_steps else dataclasses.replace(self.inputs, positions="none")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the inputs, and the kernel and the size of a network.

            A mean over nodes hides how many there are, so the size of the graph is an input. Layers of a network are
            sums along the edges, without positions and heads; but where edges have features, or positions or heads
            were asked for, a perceptron reads them.
            """
            default, task = GraphLearning.Config(), self.build()
            inputs = filled(self.inputs, [default.inputs], sizes=True)
            schedule = schedule_for(task.num_train, effort, has_valid=task.num_held_out("valid") > 0, length=0.5)
            if not self.model.learns_by_steps:
                model = self.model
                if isinstance(model, GraphMachine.Config):
                    num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
                    model = filled(model, [GraphMachine.Config()], num_trees=num_trees)
                config = dataclasses.replace(self, model=model, inputs=inputs)
                return Recommended(config, dataclasses.replace(schedule, epochs=0))
            if not isinstance(self.model, GraphStackConfig):
                return Recommended(dataclasses.replace(self, inputs=inputs), schedule)
            needs_positions, inputs = inputs.positions_asked, dataclasses.replace(inputs, positions=inputs.placed)
            width, small = width_for(task.num_train, effort, least=64, up_to=1000), GraphStackConfig().stack
            stack = self.model.stack
            reads, usual = needs_positions or len(task.facts.preparation.edge_features) > 0, stack_of(small).kernel
            is_open = start is None and not reads
            if is_open and isinstance(stack, ITNet.Config) and stack == replaced(stack, kernel=usual, num_heads=None):
                kernel = OnEdgesConfig(kernel=ConstantConfig(), long_range=None, edge_mass="sum")
                stack, inputs = dataclasses.replace(stack, kernel=kernel), dataclasses.replace(inputs, positions="none")
            model = dataclasses.replace(self.model, stack=stack.resized(width, DEPTH[effort.preset], small))
            return Recommended(dataclasses.replace(self, model=model, inputs=inputs), schedule)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: that of the network, the default one where the model is closed-form."""
            return stack_of(self._network.stack)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`: the stack along the edges, with the edge measure of the default network."""
            along = along_edges(stack, GraphStackConfig().stack)
            return dataclasses.replace(self, model=dataclasses.replace(self._network, stack=along))

        @property
        def _network(self) -> GraphStackConfig:
            return self.model if isinstance(self.model, GraphStackConfig) else GraphStackConfig()

        def build(self, facts: Task.Facts | None = None) -> "GraphLearning":
            """The task; see `GraphLearning`."""
            return GraphLearning(self, own_facts(facts, GraphLearning.Facts, "graphs"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    @cached_property
    def _graphs(self) -> GraphSet:
        """All graphs, not prepared yet."""
        config = self.config
        if not config.data:
            raise ValueError("no graphs are given; pass a folder of tables or an .npz file")
        with config.csv.reading(config.data):
            graphs = open_graphs(config.data, is_directed=config.directed)
        if graphs.answers is None:
            hint = "; fredholm train nodes predicts classes of nodes" if graphs.node_labels is not None else ""
            raise ValueError(f"{config.data} has no labels and no targets of graphs{hint}; give each graph one")
        return graphs

    @cached_property
    def _split(self) -> Parts:
        config, graphs = self.config, self._graphs
        assert graphs.answers is not None
        return self._divided(
            graphs.marks.keys(graphs.names, graphs.answers.strata.tolist()),
            graphs.marks.given,
            num_folds=config.num_folds,
            fold=config.fold,
            without_split=("num_folds",),
            needs_valid=self.learns_by_steps,
        )

    def _open(self) -> Splits[GraphSet]:
        warn_of_notes(self.config.data, self._graphs)
        return super()._open()

    def _part(self, numbers: Tensor) -> GraphSet:
        return self.prepared(self._graphs.select(numbers))

    def prepared(self, graphs: GraphSet) -> GraphSet:
        """Prepared graphs; see `GraphInputs.prepare`."""
        return self.config.inputs_read.prepare(graphs, self._facts.preparation)

    def _learn_facts(self) -> Facts:
        """The facts of the training split."""
        train = self._graphs.select(self._split.train)
        assert train.answers is not None
        return GraphLearning.Facts(
            preparation=self.config.inputs_read.learn(train, with_kinds=not self.learns_by_steps),
            target=train.answers.learn(self.config.target_settings, self.config.data),
        )

    def _check(self, splits: Splits[GraphSet]) -> None:
        for part in (splits.train, splits.valid, splits.test):
            if part is not None and part.answers is not None:
                self.target.check(part.answers, self.config.data)

    @property
    def train_lengths(self) -> Tensor:
        """Nodes of each training graph."""
        return self.splits.train.num_nodes

    def model(self) -> nn.Module:
        """The model, with the outputs of the target."""
        reading = reading_of(self._facts.preparation, self.config.inputs_read)
        return self.config.model.build(reading, self.target.num_outputs)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a closed-form model to all training graphs."""
        if not isinstance(model, FittedModel):
            return
        train, batches = self.splits.train, list[tuple[GraphBatch, Tensor]]()
        for indices in torch.arange(len(train)).split(CHUNK):
            batch = {name: each.to(device) for name, each in self._batch(train, indices).items()}
            batches.append((graphs_in(batch), batch["targets"]))
        model.fit(batches, self.target, groups=train.marks.group_numbers(device))

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: targets name the rows of the head, inputs the columns of the encoder."""
        names = self.config.inputs_read.names(self._facts.preparation)
        return head_entry_names(model, self.target.output_names) | input_entry_names(model, names)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """A batch of graphs (`batch_of`), and `targets`; the signs of positions are drawn."""
        batch, inputs = self._batch(self.splits.train, indices), self.config.inputs_read
        if inputs.turns_signs:
            batch["pos"] = batch["pos"] * inputs.draw_signs(len(indices), batch["pos"].shape[2], generator)[:, None]
        return batch

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of the validation or the test split, as `train_batch`; nothing is drawn."""
        return self._batch(self.held_out(split), indices)

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: nodes and edges; nodes with one-hot features are coloured by these."""
        graph = self._graphs.select(self._split_numbers(split)[[index]])
        one_hot = graph.features.shape[1] > 1 and bool((graph.features.sum(1) == 1).all())
        is_kind = one_hot and bool(((graph.features == 0) | (graph.features == 1)).all())
        view = GraphView(
            edges=graph.edge_index,
            num_nodes=len(graph.features),
            pos=None if graph.pos is None or graph.pos.shape[1] not in (2, 3) else graph.pos,
            kinds=graph.features.argmax(1) if is_kind else None,
            names=graph.feature_names if is_kind else (),
        )
        return ShownExample(name=graph.names[0], views=(view,))

    def _split_numbers(self, split: HeldOut) -> Tensor:
        """Indices of the graphs of a held-out split."""
        check_held_out(split)
        return self._split.valid if split == "valid" else self._split.test

    def _batch(self, graphs: GraphSet, indices: Tensor) -> Batch:
        part = graphs.select(indices)
        assert part.answers is not None
        return {"targets": self.target.targets(part.answers.values), **batch_of(part)}

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """Numbers of nodes and edges, and the mean, deviation and maximum of each input over the nodes."""
        part = self._part_of(split)
        owner = torch.arange(len(part)).repeat_interleave(part.num_nodes)
        count, size = part.num_nodes[:, None].clamp(min=1), (len(part), part.features.shape[1])
        mean = torch.zeros(size).index_add_(0, owner, part.features) / count
        square = torch.zeros(size).index_add_(0, owner, part.features.square()) / count
        most = torch.full(size, -torch.inf)
        most = most.scatter_reduce(0, owner[:, None].expand_as(part.features), part.features, "amax")
        counts = torch.stack([part.num_nodes, part.edge_offsets.diff()], 1).float().log1p()
        return torch.cat([counts, mean, (square - mean.square()).clamp(min=0).sqrt(), most], 1).numpy()

    @property
    def _train_answers(self) -> Answers:
        answers = self.splits.train.answers
        assert answers is not None
        return answers

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(graphs_in(batch)).float()

    @torch.no_grad()
    def outputs(self, model: nn.Module, graphs: GraphSet, device: torch.device) -> Tensor:
        """Outputs `(n, num_outputs)` of the model for prepared graphs, on the CPU."""
        parts = []
        for indices in torch.arange(len(graphs)).split(CHUNK):
            batch = {name: tensor.to(device) for name, tensor in batch_of(graphs.select(indices)).items()}
            parts.append(self._outputs(model, batch).cpu())
        return torch.cat(parts)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: there is none."""
        raise ValueError(NO_FORM)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each graph: `file`, `graph`, and the prediction.

        Files are as in training; labels, targets and splits may be absent, and are not read.
        """
        rows: list[Prediction] = []
        for file, found in inputs.read(self._read, self.config.csv):
            for name, outputs in zip(found.names, self.outputs(model, found, device), strict=True):
                cells, probabilities = self.target.answer(outputs)
                rows.append(Prediction(file, {"graph": name, **cells}, probabilities))
        return rows

    def _read(self, file: Path) -> GraphSet:
        known = self._facts.preparation
        found = open_graphs(
            file, is_directed=known.is_directed, features=known.features, edge_features=known.edge_features
        )
        return self.prepared(found)
