"""Telling the class of a graph, or numbers of it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import refuse_idle
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.message_passing import MessagePassing
from fredholm.models.signal_model import SignalModel
from fredholm.tasks.class_metrics import class_metrics, score_classes
from fredholm.tasks.graphs import GraphSet, open_graphs
from fredholm.tasks.graphs.batches import batch_of, graphs_in
from fredholm.tasks.graphs.inputs import GraphInputs, Preparation
from fredholm.tasks.graphs.network import build_network, small_network, warn_of_notes
from fredholm.tasks.graphs.open import is_graph_folder
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.splits import HeldOut, Splits
from fredholm.tasks.splitting import DividedTask, Parts
from fredholm.tasks.task import Batch, Objective, SplitTask, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 64
"""Graphs of a file that are predicted at a time."""
OF_CLASSES = Objective(metric="accuracy", percent=True)
OF_NUMBERS = Objective(metric="mean_absolute_error", maximise=False)


def _small() -> ITNet.Config:
    return small_network(pool="mean", dropout=0.1, edge_mass="sum")


@final
class GraphLearning(DividedTask[GraphSet]):
    """A network on whole graphs, trained by cross-entropy on classes or by squared error on numbers (ITNet, J.1).

    Classes or numbers, as the data have them. Batches are padded to their largest graph, and are of graphs of about one
    size. Numbers are standardised by those of the training split. Warns once of what became of edges.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, have no labels or targets of graphs, are of one class or number alone, or
            are not those of `facts`.
    """

    command: ClassVar[str] = "graphs"
    predicts = Kinds(suffixes=(".npz",), is_one=is_graph_folder)
    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, MessagePassing.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Of the training split. `mean` and `deviation` are of the targets; one of classes and targets is ()."""

        preparation: Preparation
        classes: tuple[str, ...]
        targets: tuple[str, ...]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Graphs, how they are split, what is computed of them, and the model.

        Args:
            data: a folder with edges.csv, nodes.csv and graphs.csv, a folder of the TUDataset collection, or an .npz
                file.
            directed: whether an edge from a to b is none from b to a; else every edge is taken both ways.
            num_folds: parts of like size, one of which is the test split, in place of test_fraction; None: none.
            fold: which, from 0 on; refused without folds.
            inputs: what is computed of each graph.
            model: the network.
        """

        data: str = ""
        directed: bool = False
        num_folds: int | None = None
        fold: int = 0
        inputs: GraphInputs = field(default_factory=GraphInputs)
        model: SignalModel.Config = field(default_factory=_small)

        def __post_init__(self) -> None:
            if self.num_folds is None:
                refuse_idle("", type(self), "num_folds=None", "give num_folds", fold=self.fold)
            else:
                folds, given = f"num_folds={self.num_folds}", {"test_fraction": self.test_fraction}
                refuse_idle("", type(self), folds, "leave num_folds out", **given)
                if self.num_folds < 2 or not 0 <= self.fold < self.num_folds:
                    raise ValueError(f"fold is {self.fold} of num_folds={self.num_folds}; expected 0 to num_folds - 1")
            if self.model.pool != "mean":
                raise ValueError(
                    f"model.pool is {self.model.pool!r}; pass 'mean': a graph has one answer, and a token no edges"
                )

        def build(self, facts: Task.Facts | None = None) -> "GraphLearning":
            """The task; see `GraphLearning`."""
            if facts is not None and not isinstance(facts, GraphLearning.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of graphs")
            return GraphLearning(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._is_measured = facts is None
        self._facts = facts or self._measure()
        self.objective = OF_CLASSES if self._facts.classes else OF_NUMBERS
        self._mean, self._deviation = (
            torch.tensor(values, dtype=torch.float64) for values in (self._facts.mean, self._facts.deviation)
        )

    @property
    def facts(self) -> Facts:
        """Of the training split."""
        return self._facts

    @cached_property
    def _graphs(self) -> GraphSet:
        """All graphs as they are."""
        config = self.config
        if not config.data:
            raise ValueError("no graphs are given; pass a folder of tables or an .npz file")
        graphs = open_graphs(config.data, is_directed=config.directed)
        if graphs.labels is None and graphs.targets is None:
            hint = "; fredholm train nodes predicts classes of nodes" if graphs.node_labels is not None else ""
            raise ValueError(f"{config.data} has no labels and no targets of graphs{hint}; give each graph one")
        return graphs

    @cached_property
    def _split(self) -> Parts:
        config, graphs = self.config, self._graphs
        labels = [0] * len(graphs) if graphs.labels is None else graphs.labels.tolist()
        return self._divided(
            graphs.names,
            labels,
            graphs.split,
            num_folds=config.num_folds,
            fold=config.fold,
            without_split=("num_folds",),
        )

    def _open(self) -> Splits[GraphSet]:
        warn_of_notes(self.config.data, self._graphs)
        return super()._open()

    def _part(self, numbers: Tensor) -> GraphSet:
        """Graphs as a network sees them."""
        return self.config.inputs.prepare(self._graphs.select(numbers), self._facts.preparation)

    def _measure(self) -> Facts:
        """The facts of the training split."""
        train = self._graphs.select(self._split.train)
        mean: tuple[float, ...] = ()
        deviation: tuple[float, ...] = ()
        if train.targets is None:
            if len(train.classes) < 2:
                raise ValueError(f"{self.config.data} has the classes {list(train.classes)}; expected at least 2")
        else:
            mean = tuple(train.targets.mean(0).tolist())
            deviation = tuple(train.targets.std(0, correction=0).tolist())
            for name, centre, spread in zip(train.target_names, mean, deviation, strict=True):
                if spread <= 1e-12 * abs(centre):
                    raise ValueError(f"all training values of {name!r} are {centre:g}; expected at least 2 of them")
        return GraphLearning.Facts(
            preparation=self.config.inputs.learn(train),
            classes=train.classes,
            targets=train.target_names,
            mean=mean,
            deviation=deviation,
        )

    def _check(self, splits: Splits[GraphSet]) -> None:
        if not self._is_measured and self._measure() != self._facts:
            raise ValueError(f"the training graphs of {self.config.data} are not those that the run was made with")

    @property
    def train_lengths(self) -> Tensor:
        """Nodes of each training graph."""
        return self.splits.train.num_nodes

    def model(self) -> nn.Module:
        """The network, with one logit a class, or a number a target."""
        outputs = len(self._facts.classes) or len(self._facts.targets)
        return build_network(self.config.model, self._facts.preparation, outputs, self.config.inputs)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Graphs as `batch_of` lays them out, and `labels` (B,) or standardised `targets` (B, T); signs are drawn."""
        batch, inputs = self._batch(self.splits.train, indices), self.config.inputs
        if inputs.turns_signs:
            batch["pos"] = batch["pos"] * inputs.draw_signs(len(indices), batch["pos"].shape[2], generator)[:, None]
        return batch

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Likewise of the validation or the test split; nothing is drawn."""
        return self._batch(self.held_out(split), indices)

    def _batch(self, graphs: GraphSet, indices: Tensor) -> Batch:
        part = graphs.select(indices)
        if part.targets is None:
            assert part.labels is not None
            return {"labels": part.labels, **batch_of(part)}
        return {"targets": ((part.targets - self._mean) / self._deviation).float(), **batch_of(part)}

    def num_targets(self, batch: Batch) -> int:
        """One a graph."""
        return len(batch["features"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats, or the mean squared error of standardised targets, summed over the graphs."""
        return self._losses(model(graphs_in(batch)).float(), batch).sum()

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        if "labels" in batch:
            return F.cross_entropy(outputs, batch["labels"], reduction="none")
        return (outputs - batch["targets"]).square().mean(1)

    def metrics(self) -> "dict[str, Metric]":
        """Of classes `accuracy`, `class_accuracy`, the mean over classes, and with two `auroc`; errors of targets.

        These are `mean_absolute_error` and `root_mean_squared_error` in the unit of the data, the mean over targets.
        `loss` is the mean of what is trained on.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        if self._facts.classes:
            return class_metrics(len(self._facts.classes))
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        return {
            "mean_absolute_error": MeanAbsoluteError(),
            "root_mean_squared_error": MeanSquaredError(squared=False),
            "loss": MeanMetric(),
        }

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        outputs = model(graphs_in(batch)).float()
        losses = self._losses(outputs, batch)
        if "labels" in batch:
            score_classes(outputs, batch["labels"], losses, metrics)
            return
        metrics["loss"].update(losses)
        came, wanted = self._in_unit(outputs), self._in_unit(batch["targets"])
        metrics["mean_absolute_error"].update(came, wanted)
        metrics["root_mean_squared_error"].update(came, wanted)

    def _in_unit(self, standardised: Tensor) -> Tensor:
        return standardised * self._deviation.to(standardised) + self._mean.to(standardised)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each graph: `file`, `graph`, and `class` and its `probability`, or each target.

        Files are as in training; labels, targets and splits may be absent, and are not read.
        """
        rows: list[Prediction] = []
        for file, found in inputs.read(self._read):
            for indices in torch.arange(len(found)).split(CHUNK):
                batch = {name: tensor.to(device) for name, tensor in batch_of(found.select(indices)).items()}
                outputs = model(graphs_in(batch)).float().cpu()
                for i, output in zip(indices.tolist(), outputs, strict=True):
                    rows.append(self._answer(file, found.names[i], output))
        return rows

    def _read(self, file: Path) -> GraphSet:
        facts = self._facts
        known = {"features": facts.preparation.features, "edge_features": facts.preparation.edge_features}
        found = open_graphs(file, is_directed=self.config.directed, **known)
        return self.config.inputs.prepare(found, facts.preparation)

    def _answer(self, file: Path, name: str, output: Tensor) -> Prediction:
        facts = self._facts
        if facts.classes:
            probabilities = dict(zip(facts.classes, output.softmax(-1).tolist(), strict=True))
            return Prediction(file, {"graph": name}, probabilities)
        return Prediction(
            file, {"graph": name, **dict(zip(facts.targets, self._in_unit(output).tolist(), strict=True))}
        )
