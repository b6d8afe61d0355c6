"""Telling the classes of the nodes of one graph."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import filled
from fredholm.models.fitted.ridge_head import FeatureBlock, Heard, RidgeHead, is_surely_less
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import ConstantConfig, OnEdgesConfig
from fredholm.models.signal_model import SignalModel
from fredholm.tasks.baselines import Learnt
from fredholm.tasks.graphs import GraphSet, open_graphs
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, schedule_for, width_for
from fredholm.tasks.shown import Shown, part_of_graph
from fredholm.tasks.splits.splits import Examples, HeldOut, Splits
from fredholm.tasks.splits.splitting import Parts
from fredholm.tasks.splits.stratified_split import some_of_each
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, ClassAnswers, Target
from fredholm.tasks.task import Batch, Meanings, Suited, Task, Trained, meanings_of_head
from fredholm.tasks.tensor_form import TensorForm

from .inputs import GraphInputs, surroundings
from .network import NO_FORM, build_network, warn_of_notes
from .one_graph import OneGraphTask
from .open import is_graph_folder

FEW = 100
"""Labelled nodes of a class, below which a network memorises them and is held back more."""
PRIOR = 8
"""Ends of edges that are taken to lie within one class besides those that are known, since most graphs are so."""


ASKED = 1000
"""Training nodes by which is asked whether structure tells something, at most."""


def _inputs() -> GraphInputs:
    return GraphInputs(num_walks=0, degrees=False, positions="none", feature_dropout=0.5)


def _small() -> ITNet.Config:
    """What few labelled nodes can teach: graph convolutions, and outputs that spread along the edges."""
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
    """Some nodes of a graph: their numbers int64 `(n,)`, and the class of each."""

    shared: ClassVar[tuple[str, ...]] = ()

    nodes: Tensor
    answers: ClassAnswers

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.nodes)


@final
class NodeLearning(TargetTask[NodeSet], OneGraphTask[NodeSet]):
    """A network on one graph that predicts the class of each node, trained on some (ITNet, J.1).

    Every step runs the whole graph, nodes of the validation and test splits included, and counts the loss at its
    batch's nodes. Warns once of what became of edges.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the data.

    Raises:
        ValueError: the data cannot be opened, are not one graph with classes of nodes, or are not those of `facts`.
    """

    command: ClassVar[str] = "nodes"
    predicts = Kinds(suffixes=(".npz",), is_one=is_graph_folder)
    parts: ClassVar[tuple[type, ...]] = (*OneGraphTask.parts, *TARGETS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(OneGraphTask.Facts):
        """Of the graph, whose features are known at all nodes, and of the classes of the training nodes."""

        target: Target

    @dataclass(frozen=True, kw_only=True)
    class Config(OneGraphTask.Config, TargetTask.Config):
        """A graph, which of its nodes are trained on, what is computed of it, and the model.

        Args:
            train_per_class: nodes of each class that are trained on, such as 20, where the data have no split; None:
                all that are in no other split.
        """

        train_per_class: int | None = None
        inputs: GraphInputs = field(default_factory=_inputs)
        model: SignalModel.Config = field(default_factory=_small)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.train_per_class is not None and self.train_per_class < 1:
                raise ValueError(f"train_per_class is {self.train_per_class}; expected at least 1")

        def _suited(self, effort: Effort, start: Trained | None) -> Suited:
            """See `Task.Config.suited`: the size of the network, how much it is held back, and γ of the outputs.

            Every step runs the whole graph, so that a batch is all labelled nodes. Where neighbours are not mostly
            alike, outputs do not spread along the edges. Where degrees and surroundings of a node tell what features do
            not, they are features too.
            """
            default, task = NodeLearning.Config(), self.build()
            model = self.model.resized(
                width_for(task.num_train, effort, least=64, up_to=1000), DEPTH[effort.preset] // 2, default.model
            )
            spreads, rate = task.likeness > 0.5, 0.5 if task.num_train < FEW * len(task.target.names) else 0.2
            if isinstance(model, ITNet.Config):
                model = filled(model, [default.model], diffusion=0.9 if spreads else 0.0, dropout=rate)
            tells = {"degrees": True, "surroundings": True} if task.structure_tells else {}
            inputs = filled(self.inputs, [default.inputs], feature_dropout=rate, **tells)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") > 0,
                learning_rate=5e-3,
                batch_size=task.num_train,
                length=0.1,
            )
            return Suited(dataclasses.replace(self, model=model, inputs=inputs), schedule)

        def build(self, facts: Task.Facts | None = None) -> "NodeLearning":
            """The task; see `NodeLearning`."""
            if facts is not None and not isinstance(facts, NodeLearning.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of nodes")
            return NodeLearning(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._measure()
        self._tell(self._facts.target, config.wish)

    @property
    def facts(self) -> Facts:
        """Of the graph."""
        return self._facts

    @property
    def likeness(self) -> float:
        """How much more often than by chance edges between nodes of known class join one: 1 always, 0 as by chance.

        It is (a - c) / (1 - c) of the share a of edges within a class, and of Σ p² = c with the share p of the ends of
        edges in each class (Newman, 2003). To the edges that are known PRIOR ends within a class are added.
        """
        graph, nodes = self._graph, torch.cat([self._split.train, self._split.valid])
        assert graph.node_labels is not None
        labels = torch.full((len(graph.features),), -1)
        labels[nodes] = graph.node_labels[nodes]
        ends = labels[graph.edge_index][:, (labels[graph.edge_index] >= 0).all(0)]
        shares = ends.flatten().bincount() / max(ends.numel(), 1)
        alike = (float((ends[0] == ends[1]).sum()) + PRIOR) / (ends.shape[1] + PRIOR)
        chance = float(shares.square().sum())
        return (alike - chance) / max(1 - chance, 1e-6)

    @property
    def structure_tells(self) -> bool:
        """Whether degrees and what is around a node tell what its features and those around it do not.

        Of at most ASKED training nodes: a ridge regression on features, and on their means over one and two hops, has
        surely larger left-out errors than one that reads smooth functions of `surroundings` and of degrees beside them.
        """
        graph, nodes = self._graph, self._split.train
        some = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))[:ASKED].sort().values
        nodes, count = nodes[some], len(graph.features)
        assert graph.node_labels is not None
        targets = self.target.targets(graph.node_labels[nodes])
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
            heard = Heard(self.target)
            head.fit(x, targets, heard, shares=shares)
            scores.append(heard.scores)
        without, beside = ((self.target.columns(targets) - each).square().mean(1) for each in scores)
        return is_surely_less(beside, without)

    def _refuse(self, graph: GraphSet) -> None:
        data = self.config.data
        if graph.node_labels is None or not bool((graph.node_labels >= 0).any()):
            is_of_graphs = graph.labels is not None or graph.targets is not None
            hint = "; fredholm train graphs predicts those of graphs" if is_of_graphs else ""
            raise ValueError(f"{data} has no labels of nodes{hint}; give some nodes one")

    @cached_property
    def _seen(self) -> GraphSet:
        return self._graph

    @cached_property
    def _split(self) -> Parts:
        """Numbers of labelled nodes."""
        config, graph = self.config, self._graph
        assert graph.node_labels is not None
        nodes = (graph.node_labels >= 0).nonzero()[:, 0]
        names, labels = [graph.node_names[i] for i in nodes.tolist()], graph.node_labels[nodes].tolist()
        marks = graph.marks.select(nodes)
        found = self._divided(marks.keys(names, labels), marks.given, without_split=("train_per_class",))
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
        assert self._graph.node_labels is not None
        return NodeSet(numbers, ClassAnswers(names=self._graph.classes, values=self._graph.node_labels[numbers]))

    def _check(self, splits: Splits[NodeSet]) -> None:
        super()._check(splits)
        self.target.check(splits.train.answers, self.config.data)

    def _measure(self) -> Facts:
        config = self.config
        return NodeLearning.Facts(
            preparation=config.inputs.learn(self._graph),
            target=self._part(self._split.train).answers.learn(config.wish, config.data),
        )

    def model(self) -> nn.Module:
        """The network, with the outputs of the target at every node."""
        return build_network(self.config.network, self._facts.preparation, self.target.num_outputs, self.config.inputs)

    def meanings(self, model: nn.Module) -> Meanings:
        """Likewise of the head's rows, the classes."""
        return super().meanings(model) | meanings_of_head(model, self.target.output_names)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`nodes` and `targets` (B,), and `signs` (B, s) of positions, the same in every row, where they are turned."""
        return self._batch(self.splits.train, indices) | self._signs(len(indices), generator)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """`nodes` and `targets` (B,) of the validation or the test split."""
        return self._batch(self.held_out(split), indices)

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> Shown:
        """See `Task.shown_example`: the node among those nearest to it along edges, with the classes of all."""
        node, graph = int(self.held_out(split).nodes[index]), self._graph
        view = part_of_graph(graph.edge_index, len(graph.features), (node,), graph.node_labels, graph.classes)
        return Shown(name=graph.node_names[node], views=(view,))

    def _batch(self, nodes: NodeSet, indices: Tensor) -> Batch:
        return {"nodes": nodes.nodes[indices], "targets": self.target.targets(nodes.answers.values[indices])}

    def _plain_inputs(self, learnt: Learnt) -> np.ndarray:
        """What a network sees of the nodes themselves."""
        return self._whole["features"][0][self._part_of(learnt).nodes].numpy()

    @property
    def _train_answers(self) -> Answers:
        return self.splits.train.answers

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._at_nodes(model, self._graph_on(batch["nodes"].device), batch)[batch["nodes"]]

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: there is none."""
        raise ValueError(NO_FORM)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each node: `file`, `node`, and what the target says.

        A file is one graph, that of training or another; labels and splits may be absent, and are not read.
        """
        rows: list[Prediction] = []
        for file, found in inputs.read(self._read):
            outputs = self._at_nodes_on(model, found, device)
            for node, (cells, probabilities) in zip(found.node_names, map(self.target.answer, outputs), strict=True):
                rows.append(Prediction(file, {"node": node, **cells}, probabilities))
        return rows

    def _read(self, file: Path) -> GraphSet:
        known = self._facts.preparation
        found = open_graphs(
            file, is_directed=known.is_directed, features=known.features, edge_features=known.edge_features
        )
        if len(found) != 1:
            raise ValueError(f"{file}: holds {len(found)} graphs; expected one")
        return found


def _smooth(values: Tensor) -> Tensor:
    """Legendre polynomials of degree 1, 2 and 3 of the ranks of numbers `(n, k)`, from -1 to 1, `(n, 3 k)`."""
    ranks = [column.unique(return_inverse=True, return_counts=True)[1:] for column in values.T]
    middle = [(counts.cumsum(0) - counts / 2)[own] / len(values) for own, counts in ranks]
    x = 2 * torch.stack(middle, 1).double() - 1
    return torch.cat([x, (3 * x.square() - 1) / 2, (5 * x**3 - 3 * x) / 2], 1)
