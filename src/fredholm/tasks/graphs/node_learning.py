"""Predicting classes or numbers of the nodes of one graph."""

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import check_count, filled, refuse_idle
from fredholm.models.blended import BlendedNodes
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.graphs.node_machine import KnownNodes, NodeMachine
from fredholm.models.fitted.ridge_head import FeatureBlock, RidgeHead, ScoreRecorder, is_surely_less
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import ConstantConfig, OnEdgesConfig
from fredholm.models.node_model import NodeModelConfig
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack
from fredholm.tasks.blending import BlendingTask, check_has_valid
from fredholm.tasks.graphs import GraphSet, open_graphs
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, note_on_network, schedule_for, width_for
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import Examples, HeldOut, Splits
from fredholm.tasks.splits.splitting import Parts
from fredholm.tasks.splits.stratified_split import some_of_each
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Target
from fredholm.tasks.task import Batch, EntryNames, Recommended, Task, Trained, head_entry_names, own_facts
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import ShownExample, part_of_graph

from .batches import graphs_in
from .inputs import GraphInputs, surroundings
from .network import NO_FORM, build_network, reading_of, warn_of_notes
from .one_graph import OneGraphTask
from .open import is_graph_folder

FEW = 100
"""Labelled nodes per class below which a network is regularised more, since it memorises them."""
PRIOR = 8
"""Prior count of edges within one class, each direction counted: most graphs are homophilous."""


MOST_OF_MACHINE = 500
"""Labelled nodes with features up to which a machine predicts classes by default."""
LEAST_BESIDE, MOST_BESIDE = 20, 1000
"""Fewest and most training nodes of a machine beside a network."""
MOST_WALKED = 1 << 27
"""Most training nodes times directed edges, to which the time of a fit in a large graph is proportional."""
ASKED = 1000
"""Most training nodes that `structure_helps` reads."""
_OF_NETWORKS = ("num_positions", "flip_signs", "adds_positions", "feature_dropout", "positions")
"""Settings of the inputs that only networks read."""
_NETWORK = "take a network, such as the model itnet"


def _inputs() -> GraphInputs:
    return GraphInputs(num_walks=0, degrees=False, positions="none", feature_dropout=0.5)


def _small() -> ITNet.Config:
    """A network for few labelled nodes: graph convolutions, and outputs that spread along the edges."""
    return ITNet.Config(
        embed_dim=64,
        depth=2,
        kernel=OnEdgesConfig(kernel=ConstantConfig(), long_range=None, edge_mass="symmetric"),
        expansion=1,
        dropout=0.5,
        drop_path=0.0,
        pool="none",
        diffusion=0.9,
    )


@final
@dataclass(frozen=True)
class NodeSet(Examples):
    """Nodes of a graph: their indices int64 `(n,)`, and the label or the targets of each."""

    shared: ClassVar[tuple[str, ...]] = ()

    nodes: Tensor
    answers: Answers

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.nodes)


@final
class NodeLearning(BlendingTask[NodeSet], OneGraphTask[NodeSet]):
    """A model of one graph that learns classes or numbers at some nodes and predicts them at all (ITNet, J.1).

    Every step of a network runs the whole graph, nodes of the validation and test splits included, and counts the loss
    at its batch's nodes. Warns once of edges that reading has changed.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the data.

    Raises:
        ValueError: the data cannot be opened, are not one graph with classes or numbers of nodes, or are not those of
            `facts`.
    """

    command: ClassVar[str] = "nodes"
    predicts = Kinds(suffixes=(".npz",), is_one=is_graph_folder)
    parts: ClassVar[tuple[type, ...]] = (*OneGraphTask.parts, NodeMachine.Config, *TARGETS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(OneGraphTask.Facts):
        """Facts about the graph, the features of all its nodes, and the target of the training nodes.

        Args:
            target: the classes or numbers to predict.
            known: names of the training nodes, for models that read their answers in prediction too; else empty.
            digest: SHA-256 of their features and of the edges between them, by which the graph is recognised.
            joined: their degrees, for graphs without features; else empty.
        """

        target: Target
        known: tuple[str, ...] = ()
        digest: str = ""
        joined: tuple[int, ...] = ()

    @dataclass(frozen=True, kw_only=True)
    class Config(OneGraphTask.Config, TargetTask.NumbersConfig):
        """The graph, its training nodes, the inputs of the model, and the model.

        Args:
            train_per_class: training nodes of each class, such as 20, where the data have no split; None: all nodes
                that are in no other split. Refused with numbers.
            node_machine: most centres, which are training nodes, of a node machine beside the network
                (`models.BlendedNodes`). The validation split chooses its share in the prediction, so it is refused
                without one, with objective='loss', which is the loss of the network alone, and where the model is a
                node machine. 0: no machine; None: none, unless a run recommends one.
        """

        train_per_class: int | None = None
        inputs: GraphInputs = field(default_factory=_inputs)
        model: NodeModelConfig = field(default_factory=_small)
        node_machine: int | None = None

        weight_settings: ClassVar[tuple[str, ...]] = (*OneGraphTask.Config.weight_settings, "node_machine")

        machine: ClassVar[type[NodeModelConfig]] = NodeMachine.Config

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("train_per_class",)

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv",)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.train_per_class is not None and self.train_per_class < 1:
                raise ValueError(f"train_per_class is {self.train_per_class}; expected at least 1")
            if not self.model.learns_by_steps:
                self._refuse_what_only_networks_read()
            elif self.node_machine:
                check_count("nodes", "node_machine", self.node_machine, least=2)
                if self.objective == "loss":
                    raise ValueError(
                        f"objective='loss' is of the network alone, beside node_machine={self.node_machine}; leave one "
                        "out"
                    )

        def _refuse_what_only_networks_read(self) -> None:
            kind = type(self.model).__qualname__.removesuffix(".Config")
            if self.valid_fraction != 0:
                because = f"model={kind}, whose settings are chosen by leaving training nodes out"
                refuse_idle("", type(self), because, _NETWORK, valid_fraction=self.valid_fraction)
            alone = f"model={kind}, which is such a machine alone"
            refuse_idle("", type(self), alone, _NETWORK, node_machine=self.node_machine or None)
            because = f"model={kind}, which reads features alone"
            refuse_idle("inputs", GraphInputs, because, _NETWORK, **self._inputs_of_networks)

        @property
        def _inputs_of_networks(self) -> dict[str, object]:
            """Settings of the inputs that only networks read and that were given."""
            given, usual = ({name: getattr(each, name) for name in _OF_NETWORKS} for each in (self.inputs, _inputs()))
            return {name: value for name, value in given.items() if value != usual[name]}

        @property
        def inputs_read(self) -> GraphInputs:
            """The inputs that this model reads; a machine reads no positions."""
            return self.inputs if self.model.learns_by_steps else dataclasses.replace(self.inputs, positions="none")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: a machine, or the size, dropout and diffusion of a network.

            A machine predicts numbers, classes of nodes without features, and classes with few labelled nodes, unless
            a setting of a network was given. A step of a network runs the whole graph, so a batch is all labelled
            nodes. Its outputs spread along the edges where most neighbours are alike. Degrees and surroundings are
            inputs too where they predict better than features alone, or where there are no features.
            """
            with self.csv.reading(self.data):
                has_features = bool(open_graphs(self.data, is_directed=self.directed).feature_names)
            if not has_features and not (self.inputs.num_walks or self.inputs.degrees or self.inputs.surroundings):
                return self._with_structure()._recommended(effort, start)
            default, task = NodeLearning.Config(), self.build()
            is_free = self.model == default.model and start is None and not effort.keeps_model
            is_open = is_free and not self._inputs_of_networks
            suits = task.target.kind == "number" or not has_features or task.num_train <= MOST_OF_MACHINE
            instead = (
                "a node machine, fitted in closed form and better on numbers, on nodes without features, and on up to "
                f"{MOST_OF_MACHINE} labelled nodes"
            )
            note = note_on_network(self, default, ("valid_fraction",), effort, instead) if is_open and suits else None
            if not self.model.learns_by_steps or (is_open and suits and note is None):
                return self._recommended_machine(task, effort)
            width = width_for(task.num_train, effort, least=64, up_to=1000)
            model = self.network.resized(width, DEPTH[effort.preset] // 2, default.network)
            num_classes = len(task.target.names) if task.target.kind == "class" else 1
            spreads, rate = task.likeness > 0.5, 0.5 if task.num_train < FEW * num_classes else 0.2
            if isinstance(model, ITNet.Config):
                model = filled(model, [default.network], diffusion=0.9 if spreads else 0.0, dropout=rate)
            structure = {"degrees": True, "surroundings": True} if task.structure_helps else {}
            inputs = filled(self.inputs, [default.inputs], feature_dropout=rate, **structure)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") > 0,
                learning_rate=5e-3,
                batch_size=task.num_train,
                length=0.1,
            )
            notes = () if note is None else (note,)
            most = 0 if start is not None else task.max_machine_centres
            config = filled(dataclasses.replace(self, model=model, inputs=inputs), [default], node_machine=most)
            return Recommended(config, schedule, notes)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; without a node machine, which would be equal beside all kernels."""
            return dataclasses.replace(super().with_stack(stack), node_machine=0)

        def _with_structure(self) -> "NodeLearning.Config":
            """These settings with degrees and surroundings as inputs."""
            return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, degrees=True, surroundings=True))

        def _recommended_machine(self, task: "NodeLearning", effort: Effort) -> Recommended:
            """Settings for a machine, which also reads degrees and surroundings and weighs each input itself."""
            model = self.model if isinstance(self.model, NodeMachine.Config) else NodeMachine.Config()
            num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
            model = filled(model, [NodeMachine.Config()], num_trees=num_trees)
            inputs = filled(self.inputs, [_inputs()], degrees=True, surroundings=True, feature_dropout=0.0)
            schedule = schedule_for(task.num_train, effort, has_valid=False, batch_size=task.num_train)
            config = dataclasses.replace(self, model=model, inputs=inputs)
            return Recommended(config, dataclasses.replace(schedule, epochs=0))

        def build(self, facts: Task.Facts | None = None) -> "NodeLearning":
            """The task; see `NodeLearning`."""
            return NodeLearning(self, own_facts(facts, NodeLearning.Facts, "nodes"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)
        if facts is None and config.node_machine:
            check_has_valid("node_machine", config.node_machine, len(self._split.valid), "nodes")

    @property
    def facts(self) -> Facts:
        """Facts about the graph and the target."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    @property
    def likeness(self) -> float:
        """Homophily: how much more often than by chance edges join nodes of one class; 1: always, 0: as by chance.

        It is the assortativity (a - c) / (1 - c), where a is the share of edges within a class and c = Σ p² with p the
        share of edge ends in each class (Newman, 2003). Only edges between nodes of known class count, and PRIOR edges
        within a class are added. For numbers it is the correlation between both ends of an edge, averaged over the
        targets, with PRIOR edges between equal values added.
        """
        graph, nodes = self._graph, torch.cat([self._split.train, self._split.valid])
        is_known = torch.zeros(len(graph.features), dtype=torch.bool)
        is_known[nodes] = True
        joined = graph.edge_index[:, is_known[graph.edge_index].all(0)]
        if graph.node_targets is not None:
            values = graph.node_targets[joined]
            values = values - values.mean((0, 1))
            square = values.square().mean((0, 1))
            alike = (values[0] * values[1]).mean(0) / torch.where(square > 0, square, 1.0)
            return (float(alike.nan_to_num(0.0).mean()) * joined.shape[1] + PRIOR) / (joined.shape[1] + PRIOR)
        assert graph.node_labels is not None
        ends = graph.node_labels[joined]
        shares = ends.flatten().bincount() / max(ends.numel(), 1)
        alike = (float((ends[0] == ends[1]).sum()) + PRIOR) / (ends.shape[1] + PRIOR)
        chance = float(shares.square().sum())
        return (alike - chance) / max(1 - chance, 1e-6)

    @property
    def structure_helps(self) -> bool:
        """Whether degrees and surroundings of a node predict better than features alone.

        At most ASKED training nodes are used. A ridge regression on features and their means over one and two hops is
        compared with one that also reads smooth functions of `surroundings` and degrees: structure helps if the
        left-out errors of the second are surely smaller.
        """
        graph, nodes = self._graph, self._split.train
        some = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))[:ASKED].sort().values
        nodes, count = nodes[some], len(graph.features)
        targets = self.target.targets(graph.answers_of(nodes).values)
        source, target = graph.edge_index
        number = target.bincount(minlength=count)
        of_edges = torch.ones(len(source)) / number[target]
        mean = torch.sparse_coo_tensor(torch.stack([target, source]), of_edges, (count, count), check_invariants=False)
        known = [self._whole["features"][0]]
        for _ in range(2):
            known.append(mean @ known[-1])
        around = torch.cat([number.double().log1p()[:, None], surroundings(graph).double()], 1)
        x = torch.cat([*(each[nodes].double() for each in known), _smooth(around[nodes])], 1)
        further = 3 * around.shape[1]
        head, scores = RidgeHead(x.shape[1], self.target.num_outputs, further=[FeatureBlock(further)]), list[Tensor]()
        for shares in ([(1.0, 0.0)], None):
            recorder = ScoreRecorder(self.target)
            head.fit(x, targets, recorder, shares=shares)
            scores.append(recorder.scores)
        without, beside = ((self.target.columns(targets) - each).square().mean(1) for each in scores)
        return is_surely_less(beside, without)

    def _refuse(self, graph: GraphSet) -> None:
        data = self.config.data
        if not len(graph.known_nodes):
            is_of_graphs = graph.labels is not None or graph.targets is not None
            hint = "; fredholm train graphs predicts those of graphs" if is_of_graphs else ""
            raise ValueError(f"{data} has no labels of nodes and no targets{hint}; give some nodes one")
        if graph.node_targets is not None and self.config.train_per_class is not None:
            raise ValueError(
                f"train_per_class={self.config.train_per_class} has no effect with numbers, which have no classes; "
                "leave it out, or give a split"
            )

    @cached_property
    def _seen(self) -> GraphSet:
        return self._graph

    @cached_property
    def _split(self) -> Parts:
        """Indices of the nodes with a label or targets, by split."""
        config, graph = self.config, self._graph
        nodes = graph.known_nodes
        names, labels = [graph.node_names[i] for i in nodes.tolist()], graph.answers_of(nodes).strata.tolist()
        marks = graph.marks.select(nodes)
        found = self._divided(
            marks.keys(names, labels),
            marks.given,
            without_split=("train_per_class",),
            needs_valid=self.learns_by_steps,
        )
        train = found.train
        if config.train_per_class is not None:
            rest = train.tolist()
            names, labels = [names[i] for i in rest], [labels[i] for i in rest]
            train = train[some_of_each(names, labels, config.train_per_class, config.split_seed)]
        return Parts(train=nodes[train], valid=nodes[found.valid], test=nodes[found.test])

    def _open(self) -> Splits[NodeSet]:
        warn_of_notes(self.config.data, self._graph)
        return super()._open()

    def _part(self, numbers: Tensor) -> NodeSet:
        return NodeSet(numbers, self._graph.answers_of(numbers))

    def _check(self, splits: Splits[NodeSet]) -> None:
        super()._check(splits)
        self.target.check(splits.train.answers, self.config.data)
        if not bool((self._known_here >= 0).all()):
            if not self.learns_by_steps:
                raise ValueError(f"{self.config.data} is not the graph of the run; pass the one it was made with")
            _warn_of_another(self.config.data)

    def _learn_facts(self) -> Facts:
        config, graph, train = self.config, self._graph, self._split.train
        facts = NodeLearning.Facts(
            preparation=config.inputs_read.learn(graph),
            target=self._part(train).answers.learn(config.target_settings, config.data),
        )
        if self.learns_by_steps and not config.node_machine:
            return facts
        names = tuple(graph.node_names[i] for i in train.tolist())
        joined = () if graph.feature_names else tuple(_num_joined(graph, train).tolist())
        return dataclasses.replace(facts, known=names, digest=_digest(graph, train), joined=joined)

    def model(self) -> nn.Module:
        """The model, with the outputs of the target at every node."""
        config, preparation = self.config, self._facts.preparation
        if isinstance(config.model, NodeMachine.Config):
            reading = reading_of(preparation, config.inputs_read)
            return config.model.build(reading, self.target.num_outputs, len(self._facts.known))
        network = build_network(config.network, preparation, self.target.num_outputs, config.inputs)
        if not config.node_machine:
            return network
        num_outputs, usual = self.target.num_outputs, NodeMachine.Config()
        sizes = NodeMachine.Config(
            num_centres=config.node_machine, num_trees=affordable_trees(usual.num_trees, num_outputs)
        )
        reading = reading_of(preparation, config.inputs)
        return BlendedNodes(network, sizes.build(reading, num_outputs, len(self._facts.known)))

    @property
    def max_machine_centres(self) -> int:
        """The recommended number of centres of a node machine beside a network; 0: no machine."""
        if self.config.objective == "loss" or self.num_held_out("valid") == 0:
            return 0
        num_edges = max(self._graph.edge_index.shape[1], 1)
        return self.num_train if LEAST_BESIDE <= self.num_train <= min(MOST_BESIDE, MOST_WALKED / num_edges) else 0

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a machine to the training nodes, alone or beside a network."""
        model = model.fitted if isinstance(model, BlendedNodes) else model
        if not isinstance(model, NodeMachine):
            return
        train = self.splits.train
        inputs = KnownNodes(graphs_in(self._graph_on(device)), train.nodes.to(device))
        targets, marks = self.target.targets(train.answers.values), self._graph.marks.select(train.nodes)
        model.fit([(inputs, targets.to(device))], self.target, groups=marks.group_numbers(device))

    @cached_property
    def _known_here(self) -> Tensor:
        return self._known_in(self._graph)

    def _known_in(self, graph: GraphSet) -> Tensor:
        """Indices of the training nodes in a graph, int64 `(n,)`; all -1 if it is another graph than that of training.

        The graph of training may have grown.
        """
        known, place = self._facts.known, {name: i for i, name in enumerate(graph.node_names)}
        nodes = torch.tensor([place.get(name, -1) for name in known], dtype=torch.int64)
        is_same = bool((nodes >= 0).all()) and _digest(graph, nodes) == self._facts.digest
        if is_same and self._facts.joined:  # a graph that has grown keeps its edges
            is_same = bool((_num_joined(graph, nodes) >= torch.tensor(self._facts.joined)).all())
        return nodes if is_same else torch.full_like(nodes, -1)

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the features of nodes, and the classes at the rows of the head."""
        if isinstance(model, BlendedNodes):
            of_network = self.entry_names(model.network)
            return {f"network.{name}": axes for name, axes in of_network.items()}
        return super().entry_names(model) | head_entry_names(model, self.target.output_names)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`nodes` and `targets` (B,), and `signs` (B, s) of positions, the same in every row, where they are turned."""
        return self._batch(self.splits.train, indices) | self._signs(len(indices), generator)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """`nodes` and `targets` (B,) of the validation or the test split; beside a machine their `number` too."""
        batch = self._batch(self.held_out(split), indices)
        return {**batch, "number": indices} if split == "valid" and self.config.node_machine else batch

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the node among its nearest neighbours along edges, with classes where known."""
        node, graph = int(self.held_out(split).nodes[index]), self._graph
        view = part_of_graph(graph.edge_index, len(graph.features), (node,), graph.node_labels, graph.classes)
        return ShownExample(name=graph.node_names[node], views=(view,))

    def _batch(self, nodes: NodeSet, indices: Tensor) -> Batch:
        return {"nodes": nodes.nodes[indices], "targets": self.target.targets(nodes.answers.values[indices])}

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """The prepared features of the nodes of a split."""
        return self._whole["features"][0][self._part_of(split).nodes].numpy()

    @property
    def _train_answers(self) -> Answers:
        return self.splits.train.answers

    def _applied(self, model: Callable[[Any], Tensor], batch: Batch) -> Tensor:
        device = batch["nodes"].device
        graph = graphs_in(self._turned(self._graph_on(device), batch))
        if self._is_network(model):
            return model(graph)[0][batch["nodes"]]
        return model(KnownNodes(graph, self._known_here.to(device)))[batch["nodes"]]

    def _is_network(self, model: Callable[[Any], Tensor]) -> bool:
        """Whether a model of this task, or a part of one, reads the graph alone, without known nodes."""
        return isinstance(model, SignalModel) or (self.learns_by_steps and not self.config.node_machine)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: there is none."""
        raise ValueError(NO_FORM)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each node: `file`, `node`, and the prediction.

        A file is one graph, that of training or another; labels and splits may be absent, and are not read.
        """
        rows: list[Prediction] = []
        for file, found in inputs.read(self._read, self.config.csv):
            outputs = self._outputs_of(model, found, file, device)
            for node, (cells, probabilities) in zip(found.node_names, map(self.target.answer, outputs), strict=True):
                rows.append(Prediction(file, {"node": node, **cells}, probabilities))
        return rows

    def _outputs_of(self, model: nn.Module, graph: GraphSet, file: Path, device: torch.device) -> Tensor:
        """Outputs at all nodes of a graph, on the CPU."""
        if self._is_network(model):
            return self._at_nodes_on(model, graph, device)
        known = self._known_in(graph)
        machine = model.fitted if isinstance(model, BlendedNodes) and float(model.share) < 1 else model
        is_read = isinstance(machine, NodeMachine) and machine.reads_known
        if is_read and not bool((known >= 0).any()):
            _warn_of_another(file)
        whole = {name: tensor.to(device) for name, tensor in self._prepared(graph).items()}
        return model(KnownNodes(graphs_in(whole), known.to(device))).float().cpu()

    def _read(self, file: Path) -> GraphSet:
        known = self._facts.preparation
        found = open_graphs(
            file, is_directed=known.is_directed, features=known.features, edge_features=known.edge_features
        )
        if len(found) != 1:
            raise ValueError(f"{file}: holds {len(found)} graphs; expected one")
        return found


def _warn_of_another(graph: object) -> None:
    """Warns of a graph, by its file, that does not hold the known nodes of training."""
    warnings.warn(
        f"{graph} is another graph than that of training, so the known nodes of that one are not used: predictions "
        "follow from features alone",
        stacklevel=3,
    )


def _digest(graph: GraphSet, nodes: Tensor) -> str:
    """SHA-256 of the features of some nodes and of the edges between them."""
    place = torch.full((len(graph.features),), -1)
    place[nodes] = torch.arange(len(nodes))
    ends = place[graph.edge_index]
    own = (ends >= 0).all(0).nonzero()[:, 0]
    own = own[(ends[0, own] * len(nodes) + ends[1, own]).argsort(stable=True)]
    found = hashlib.sha256(graph.features[nodes].double().contiguous().numpy().tobytes())
    found.update(ends[:, own].contiguous().numpy().tobytes())
    if graph.edge_weights is not None:
        found.update(graph.edge_weights[own].numpy().tobytes())
    return found.hexdigest()


def _num_joined(graph: GraphSet, nodes: Tensor) -> Tensor:
    """Degrees of some nodes, edges of either direction counted, int64 `(n,)`."""
    return graph.edge_index.flatten().bincount(minlength=len(graph.features))[nodes]


def _smooth(values: Tensor) -> Tensor:
    """Legendre polynomials of degree 1, 2 and 3 of the ranks of numbers `(n, k)`, from -1 to 1, `(n, 3 k)`."""
    ranks = [column.unique(return_inverse=True, return_counts=True)[1:] for column in values.T]
    middle = [(counts.cumsum(0) - counts / 2)[own] / len(values) for own, counts in ranks]
    x = 2 * torch.stack(middle, 1).double() - 1
    return torch.cat([x, (3 * x.square() - 1) / 2, (5 * x**3 - 3 * x) / 2], 1)
