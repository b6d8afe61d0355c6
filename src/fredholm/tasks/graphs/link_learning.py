"""Predicting which nodes of a graph are joined by edges that are not listed."""

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count, check_seed, filled, refuse_idle
from fredholm.domains import undirected
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.graphs.link_machine import GraphPairs, LinkMachine
from fredholm.models.fitted.ridge_head import RidgeHead
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import ConstantConfig, OnEdgesConfig
from fredholm.models.node_model import NodeModelConfig
from fredholm.tasks.baselines import Baseline, BaselineData, BaselineExamples, baselines_on
from fredholm.tasks.graphs import GraphSet
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, note_on_network, schedule_for, width_for
from fredholm.tasks.sentences.table import TABLE_SUFFIXES, read_table
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import Examples, HeldOut, Splits
from fredholm.tasks.splits.splitting import Parts
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets import ClassTarget
from fredholm.tasks.task import Batch, Objective, Recommended, Task, Trained, own_facts
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import ShownExample, View, device_of, part_of_graph

from .csv_folder import NODES
from .inputs import GraphInputs, Preparation
from .network import NO_FORM, build_network, warn_of_notes
from .one_graph import OneGraphTask, small_network

if TYPE_CHECKING:
    from torchmetrics import Metric

NUM_WALKS = 3
"""Numbers that `walks_between` computes for a pair."""
MOST_FEATURES = 64
"""Largest number of node features whose products and differences are features of a pair."""
FITS = 8
"""Parts of the training edges; each is hidden while the features of its pairs are computed."""
CELLS = 2**22
"""Largest number of walk counts that are held at a time."""
MEASURED = 65_536
"""Batch size of evaluation with a machine, which reads the graph anew for each batch."""
LEARNT = 10_000
"""Most training edges that a machine, or the linear function of pair features, is fitted to; the graph has all."""
_OF_INPUTS = (
    *("num_walks", "degrees", "surroundings", "sizes", "positions", "num_positions", "flip_signs"),
    *("adds_positions", "feature_dropout"),
)
_OF_NETWORKS = ("num_negatives", "code_dim", "pair_features")
"""Settings of the inputs and of the task that only networks read."""
_NETWORK = "take a network, such as the model itnet"
ROUNDS = 100
"""Largest number of times that pairs are redrawn to avoid edges; a graph that needs more is refused."""


@final
@dataclass(frozen=True)
class PairSet(Examples):
    """Pairs of nodes that are edges, and as many without one: int64 `(n, 2)` each, sources before targets."""

    shared: ClassVar[tuple[str, ...]] = ()

    pairs: Tensor
    others: Tensor

    def __len__(self) -> int:
        """The number of edges."""
        return len(self.pairs)


@final
class LinkLearning(OneGraphTask[PairSet]):
    """A model of one graph that predicts which nodes an edge joins, trained on edges and pairs without one.

    The edges are split, and the model sees only those of the training split. A machine, fitted in closed form, reads
    numbers of each pair; see `models.LinkMachine`. The inputs of a network are also computed from these edges alone,
    and a training step does not see the edges of its own batch. The score of a pair is a sum of terms, most of them
    from the network's outputs at both nodes: the product of one half of their codes less the squared distance of the
    other (Hoff, Raftery and Handcock, 2002); a bias of each; the walks between them, with weights from both outputs;
    and a linear function of `features_of_pairs`, which is fitted in closed form before the first step. Where edges are
    directed, a node has separate outputs as source and as target.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the data.

    Raises:
        ValueError: the data cannot be opened, are not one graph, have too few edges or no pair without one, or are not
            those of `facts`.
    """

    command: ClassVar[str] = "links"
    # the folder of a graph has a table of nodes beside its edges
    predicts = Kinds(suffixes=TABLE_SUFFIXES, apart_from=(NODES, f"{NODES}.gz"))
    parts: ClassVar[tuple[type, ...]] = (*OneGraphTask.parts, LinkMachine.Config)
    objective = Objective(metric="auroc", percent=True)

    @dataclass(frozen=True, kw_only=True)
    class Facts(OneGraphTask.Facts):
        """Facts about the graph with the edges of the training split."""

    @dataclass(frozen=True, kw_only=True)
    class Config(OneGraphTask.Config):
        """The graph, the split of its edges, the inputs of the model, and the model.

        Args:
            model: the network, or the closed-form machine in its place.
            num_negatives: pairs without an edge that are drawn for each edge of a training batch; in evaluation one.
            code_dim: size of the code of a node; where edges are directed, it has one as source and one as target.
            pair_features: whether scores also read features of the pair itself: the walks between both nodes, their
                degrees, and products of their features; see `features_of_pairs`.
        """

        model: NodeModelConfig = field(default_factory=small_network)
        num_negatives: int = 5
        code_dim: int = 32
        pair_features: bool = True

        weight_settings: ClassVar[tuple[str, ...]] = ("inputs", "model", "code_dim", "pair_features")
        machine: ClassVar[type[NodeModelConfig]] = LinkMachine.Config

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("num_negatives",)

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv", "data")

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("num_negatives", "code_dim"):
                check_count("links", name, getattr(self, name))
            check_seed(self.split_seed, "split_seed")
            if not self.model.learns_by_steps:
                self._refuse_what_only_networks_read()

        def _refuse_what_only_networks_read(self) -> None:
            because = "model=LinkMachine, whose settings are chosen by leaving training edges out"
            if self.valid_fraction != 0:
                refuse_idle("", type(self), because, _NETWORK, valid_fraction=self.valid_fraction)
            because = "model=LinkMachine, which reads features and counts of its own"
            refuse_idle("", type(self), because, _NETWORK, **{name: getattr(self, name) for name in _OF_NETWORKS})
            settings = {name: getattr(self.inputs, name) for name in _OF_INPUTS}
            refuse_idle("inputs", GraphInputs, because, _NETWORK, **settings)

        @property
        def inputs_read(self) -> GraphInputs:
            """The inputs that this model reads; a machine reads the features of nodes alone."""
            return self.inputs if self.model.learns_by_steps else GraphInputs.of_features(self.inputs.scale)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: a machine, or the kernel and size of the network, and its batches.

            The default is a machine, unless a setting of a network was given. The layers of a network are means over
            neighbours, and positions enter as features; but where edges have features, or positions or heads were
            asked for, a perceptron reads them. Every step runs the whole graph without the edges of its batch, so
            batches are small enough that most edges remain.
            """
            default = LinkLearning.Config()
            of_networks = [name for name in ("model", *_OF_NETWORKS) if getattr(self, name) != getattr(default, name)]
            computed = [name for name in _OF_INPUTS if getattr(self.inputs, name) != getattr(default.inputs, name)]
            may_have = start is None and "model" not in of_networks and not effort.keeps_model
            if not self.model.learns_by_steps or (
                may_have and not of_networks and not computed and effort.epochs is None
            ):
                return self._recommended_machine(effort)
            instead = "a link machine, fitted in closed form and better"
            names = (*_OF_NETWORKS, *(("inputs",) if computed else ()))
            note = note_on_network(self, default, names, effort, instead) if may_have else None
            task = self.build()
            width = width_for(task.num_train, effort, least=64, up_to=1000)
            model, inputs = self.network, self.inputs
            reads = inputs.positions_asked or len(task.facts.preparation.edge_features) > 0
            inputs = dataclasses.replace(inputs, positions=inputs.placed)
            if start is None and isinstance(model, ITNet.Config) and model.num_heads is None and not reads:
                kernel = OnEdgesConfig(kernel=ConstantConfig(), long_range=None, edge_mass="mean")
                model = filled(model, [default.network], kernel=kernel, dropout=0.5)
                inputs = dataclasses.replace(inputs, adds_positions=True)
            model = model.resized(width, DEPTH[effort.preset] // 2, default.network)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") > 0,
                batch_size=int(2 ** round(math.log2(min(max(task.num_train / 8, 8), 4096)))),
                learning_rate=1e-3,
                length=0.2,
            )
            notes = () if note is None else (note,)
            return Recommended(dataclasses.replace(self, model=model, inputs=inputs), schedule, notes)

        def _recommended_machine(self, effort: Effort) -> Recommended:
            model = self.model if isinstance(self.model, LinkMachine.Config) else LinkMachine.Config()
            config = dataclasses.replace(self, model=model)
            task = config.build()
            schedule = schedule_for(task.num_train, effort, has_valid=False, batch_size=MEASURED)
            schedule = dataclasses.replace(schedule, epochs=0)
            of_edges, preparation = [], task.facts.preparation
            if preparation.has_edge_weights:
                of_edges.append("weights")
            if preparation.edge_features:
                of_edges.append("features")
            if not of_edges:
                return Recommended(config, schedule)
            note = f"{' and '.join(of_edges)} of edges are not read by a link machine; --task.model itnet reads them"
            return Recommended(config, schedule, (note,))

        def build(self, facts: Task.Facts | None = None) -> "LinkLearning":
            """The task; see `LinkLearning`."""
            return LinkLearning(self, own_facts(facts, LinkLearning.Facts, "links"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()

    @property
    def facts(self) -> Facts:
        """Facts about the graph with the edges of the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    @cached_property
    def _pairs(self) -> Tensor:
        """The ends of each edge, `(n, 2)`; an undirected edge is listed once."""
        ends = self._graph.edge_index.T
        return ends if self._graph.is_directed else ends[ends[:, 0] < ends[:, 1]]

    @cached_property
    def _split(self) -> Parts:
        """The rows of `_pairs` in each split."""
        config, names = self.config, self._graph.node_names
        labels = [f"{names[a]} {names[b]}" for a, b in self._pairs.tolist()]
        if len(labels) < 3:
            raise ValueError(f"{config.data}: there are {len(labels)} edges; expected at least 3, one for each split")
        keys = SplitKeys(names=labels, strata=[0] * len(labels))
        return self._divided(keys, None, needs_valid=self.learns_by_steps)

    @cached_property
    def _seen(self) -> GraphSet:
        """The graph with the edges of the training split."""
        graph, kept = self._graph, self._codes(self._pairs[self._split.train])
        return graph.with_edges(torch.isin(self._codes(graph.edge_index.T), kept))

    def _codes(self, pairs: Tensor) -> Tensor:
        """A number for each pair `(..., 2)`, the same for both of its orders where edges have no direction."""
        ends = pairs if self._graph.is_directed else pairs.sort(-1).values
        return ends[..., 0] * len(self._graph.features) + ends[..., 1]

    def _open(self) -> Splits[PairSet]:
        warn_of_notes(self.config.data, self._graph)
        return super()._open()

    def _part(self, numbers: Tensor) -> PairSet:
        # another seed in each split, since pairs seen in one would make the score of the next too good
        generator = torch.Generator().manual_seed(1_000_003 * self.config.split_seed + int(numbers[0]))
        return PairSet(self._pairs[numbers], self._without_edge(len(numbers), self._codes(self._pairs), generator))

    def _without_edge(self, count: int, edges: Tensor, generator: torch.Generator) -> Tensor:
        """Draws `count` pairs of different nodes, `(count, 2)`, whose codes are not among `edges`."""
        size = len(self._graph.features)
        pairs = torch.randint(size, (count, 2), generator=generator)
        for _ in range(ROUNDS):
            again = (torch.isin(self._codes(pairs), edges) | (pairs[:, 0] == pairs[:, 1])).nonzero()[:, 0]
            if len(again) == 0:
                return pairs
            pairs[again] = torch.randint(size, (len(again), 2), generator=generator)
        raise ValueError(f"{self.config.data}: nearly all pairs of nodes are edges; expected a graph with others")

    def _learn_facts(self) -> Facts:
        return LinkLearning.Facts(preparation=self._preparation())

    def _preparation(self) -> Preparation:
        return self.config.inputs_read.learn(self._seen, may_have_none=not self.learns_by_steps)

    def model(self) -> nn.Module:
        """A machine, or the network: a code, a bias and weights of walks at every node, twice with directed edges."""
        preparation = self._facts.preparation
        if isinstance(self.config.model, LinkMachine.Config):
            sizes = preparation.num_inputs, len(JOINED.names)
            return self.config.model.build(*sizes, is_directed=preparation.is_directed)
        outputs = self._outputs_of_end * (2 if preparation.is_directed else 1)
        network = build_network(self.config.network, preparation, outputs, self.config.inputs)
        return PairNetwork(network, num_pair_features(preparation.num_inputs) if self.config.pair_features else 0)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a machine, or the linear function of pair features, to hidden edges."""
        if isinstance(model, LinkMachine):
            pairs, are_edges = (each.to(device) for each in self._learnt_from())
            model.fit([(self._asked(self._graph_on(device), pairs), are_edges)], JOINED)
            return
        assert isinstance(model, PairNetwork)
        if model.direct is None:
            return
        model.direct.fit(*self._training_features(device), JOINED)

    def _learnt_from(self) -> tuple[Tensor, Tensor]:
        """At most LEARNT training edges and as many pairs without one `(n, 2)`, and labels: 1 for edges, else 0."""
        edges = self.splits.train.pairs
        generator = torch.Generator().manual_seed(self.config.split_seed)
        edges = edges[torch.randperm(len(edges), generator=generator)[:LEARNT].sort().values]
        others = self._without_edge(len(edges), self._codes(self.splits.train.pairs), generator)
        return torch.cat([edges, others]), torch.tensor([1, 0]).repeat_interleave(len(edges))

    @staticmethod
    def _asked(whole: Batch, pairs: Tensor) -> GraphPairs:
        """Pairs of nodes `(P, 2)`, with the graph, as a machine reads them."""
        return GraphPairs(whole["edge_index"][0], whole["features"][0], pairs)

    def _training_features(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Features of at most LEARNT hidden training edges and of other pairs, and labels: 1 for edges, else 0."""
        generator = torch.Generator().manual_seed(self.config.split_seed)
        features, are_edges = list[Tensor](), list[Tensor]()
        for indices in torch.randperm(self.num_train, generator=generator)[:LEARNT].chunk(FITS):
            batch = {name: each.to(device) for name, each in self.train_batch(indices, generator).items()}
            whole = self._without_hidden(batch)
            features.append(self._features(whole, batch["pairs"].flatten(0, -2)))
            are_edges.append(torch.arange(batch["pairs"].shape[1], device=device).eq(0).repeat(len(indices)).long())
        return torch.cat(features), torch.cat(are_edges)

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`: they read the features of pairs (`features_of_pairs`)."""
        plain = functools.cache(self._baseline_examples)

        def value(outputs: Tensor, split: HeldOut) -> float:
            metrics = self.metrics()
            metrics[self.objective.metric].update(outputs.diff(dim=1), plain(split).targets[:, None] > 0)
            return float(metrics[self.objective.metric].compute())

        return baselines_on(BaselineData("class", 2, plain, value))

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        if split == "train":
            features, are_edges = self._training_features(torch.device("cpu"))
            return BaselineExamples(features.numpy(), are_edges)
        part = self.held_out(split)
        features = self._features(self._whole, torch.cat([part.pairs, part.others]))
        return BaselineExamples(features.numpy(), torch.tensor([1, 0]).repeat_interleave(len(part)))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`pairs` (B, 1 + negatives, 2), an edge before pairs without one; `hidden` (B, B), the codes of all edges of
        the batch in every row; and `signs` (B, s) of positions, the same in every row, where they are turned.
        """
        negatives, train = self.config.num_negatives, self.splits.train
        edges, count = train.pairs[indices], len(indices)
        others = self._without_edge(count * negatives, self._codes(train.pairs), generator)
        pairs = torch.cat([edges[:, None], others.view(count, negatives, 2)], dim=1)
        hidden = self._codes(edges).expand(count, -1)
        return {"pairs": pairs, "hidden": hidden, **self._signs(count, generator)}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """`pairs` (B, 2, 2) of a held-out split, an edge before a pair without one; nothing is drawn."""
        part = self.held_out(split)
        return {"pairs": torch.stack([part.pairs[indices], part.others[indices]], dim=1)}

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: an edge and a pair without one, each among the edges that the model sees."""
        batch = self.held_out_batch(split, torch.tensor([index]))
        chances = [""] * 2
        if model is not None:
            moved = {name: tensor.to(device_of(model)) for name, tensor in batch.items()}
            chances = [f", predicted {p:.2f}" for p in self._logits(model, moved)[0].sigmoid()[0].tolist()]
        views, names = list[View](), self._graph.node_names
        for (a, b), what, chance in zip(batch["pairs"][0].tolist(), ("an edge", "no edge"), chances, strict=True):
            title = f"{what} from {names[a]} to {names[b]}{chance}"
            views.append(part_of_graph(self._seen.edge_index, len(self._seen.features), (a, b), title=title))
        return ShownExample(name=f"pair {index}", views=tuple(views))

    def num_targets(self, batch: Batch) -> int:
        """The number of pairs of the batch."""
        return batch["pairs"].shape[0] * batch["pairs"].shape[1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats of edge or not, summed over the pairs."""
        logits, targets = self._logits(model, batch)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")

    def _logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of the batch's pairs, and labels: 1 for edges, else 0."""
        whole, pairs = self._without_hidden(batch), batch["pairs"]
        if isinstance(model, LinkMachine):
            logits = self._machine_logits(model, whole, pairs.flatten(0, 1)).view(pairs.shape[:2])
        else:
            logits = self._scores(model, self._at_nodes(model, whole, batch), whole, pairs)
        targets = torch.zeros_like(logits)
        targets[:, 0] = 1.0
        return logits, targets

    def _machine_logits(self, model: LinkMachine, whole: Batch, pairs: Tensor) -> Tensor:
        """Logits of pairs `(P, 2)`."""
        return model(self._asked(whole, pairs)).float().diff(dim=1)[:, 0]

    def _without_hidden(self, batch: Batch) -> Batch:
        """The graph without the hidden edges of a batch."""
        whole = self._graph_on(batch["pairs"].device)
        if "hidden" in batch:
            kept = ~torch.isin(self._codes(whole["edge_index"][0].T), batch["hidden"][0])
            whole["edge_index"] = whole["edge_index"][:, :, kept]
            whole |= {name: whole[name][:, kept] for name in ("edge_weights", "edge_features") if name in whole}
        return whole

    @property
    def _outputs_of_end(self) -> int:
        """Number of outputs of the network at a node as one end of a pair."""
        return self.config.code_dim + 1 + (NUM_WALKS if self.config.pair_features else 0)

    def _features(self, whole: Batch, pairs: Tensor) -> Tensor:
        """`features_of_pairs` from the edges that the network sees, taken in both directions."""
        edges = whole["edge_index"][0]
        edges = undirected(edges) if self._facts.preparation.is_directed else edges
        return features_of_pairs(edges, whole["features"][0], pairs)

    def _scores(self, model: nn.Module, outputs: Tensor, whole: Batch, pairs: Tensor) -> Tensor:
        """Logits of pairs `(..., 2)` from the outputs of the network at each node and the edges that it sees."""
        size, width = self.config.code_dim, self._outputs_of_end
        source, target = outputs[pairs[..., 0]], outputs[pairs[..., 1]]
        if self._facts.preparation.is_directed:
            source, target = source[..., :width], target[..., width:]
        half = size // 2
        product = (source[..., half:size] * target[..., half:size]).sum(-1)
        apart = (source[..., :half] - target[..., :half]).square().sum(-1)
        scores = (product - apart) / size**0.5 + source[..., size] + target[..., size]
        if not self.config.pair_features:
            return scores
        assert isinstance(model, PairNetwork)
        features = self._features(whole, pairs.flatten(0, -2))
        between = features[:, :NUM_WALKS].view(*pairs.shape[:-1], NUM_WALKS)
        scores = scores + (between * (source[..., size + 1 :] + target[..., size + 1 :])).sum(-1)
        return scores + model.of_pairs(features).view(scores.shape)

    def metrics(self) -> "dict[str, Metric]":
        """`auroc`, the chance that an edge scores above a pair without one; `average_precision`; the mean `loss`.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean
            from fredholm.tasks.targets.ranking import AreaUnderROC, AveragePrecision
        return {"auroc": AreaUnderROC(), "average_precision": AveragePrecision(), "loss": Mean()}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        logits, targets = self._logits(model, batch)
        metrics["loss"].update(F.binary_cross_entropy_with_logits(logits, targets, reduction="none"))
        for name in ("auroc", "average_precision"):
            # logits, since different probabilities near 1 are equal in float32
            metrics[name].update(logits.reshape(-1, 1), targets.reshape(-1, 1) > 0.5)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: there is none."""
        raise ValueError(NO_FORM)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each pair of a table with the columns `source` and `target`: `file`, both, and `probability`.

        They are nodes of the graph of the run, which is opened for it; the network sees all of its edges.
        """
        try:
            names, rows = self._graph.node_names, list[Prediction]()
        except (ValueError, OSError) as error:
            message = f"predicting links needs the graph of the run: {error}; say where it lies by data='PATH'"
            raise ValueError(message) from error
        queries = list(inputs.read(lambda file: _read_pairs(file, names), self.config.csv))
        for (file, pairs), logits in zip(
            queries, self._logits_of(model, [pairs for _, pairs in queries], device), strict=True
        ):
            chances = logits.sigmoid().tolist()
            for (source, target), chance in zip(pairs.tolist(), chances, strict=True):
                values = {"source": names[source], "target": names[target], "probability": chance}
                rows.append(Prediction(file, values))
        return rows

    def _logits_of(self, model: nn.Module, pairs: list[Tensor], device: torch.device) -> list[Tensor]:
        """Logits of pairs of nodes of the whole graph, on the CPU."""
        if not pairs:
            return []
        whole = self._prepared(self._graph)
        if isinstance(model, LinkMachine):
            moved = {name: tensor.to(device) for name, tensor in whole.items()}
            logits = self._machine_logits(model, moved, torch.cat(pairs).to(device)).cpu()
            return list(logits.split([len(each) for each in pairs]))
        outputs = self._at_nodes_on(model, self._graph, device)
        return [self._scores(model, outputs, whole, each) for each in pairs]


@final
class PairNetwork(nn.Module):
    """A network on the nodes of a graph, and a linear function of the features of a pair of nodes.

    Args:
        network: from `GraphBatch` to the outputs of every node.
        num_features: features of a pair; 0: there is no linear function.
    """

    def __init__(self, network: nn.Module, num_features: int) -> None:
        super().__init__()
        self.network = network
        self.direct = RidgeHead(num_features, len(JOINED.names)) if num_features else None

    def forward(self, graphs: GraphBatch) -> Tensor:
        """The outputs of the network at every node."""
        return self.network(graphs)

    def of_pairs(self, features: Tensor) -> Tensor:
        """The part of the logits of pairs `(P,)` that is linear in their features `(P, num_features)`."""
        assert self.direct is not None
        return self.direct(features.to(self.direct.weight)).diff(dim=-1)[:, 0].to(features)


JOINED = ClassTarget(names=("apart", "joined"))
"""The two classes of a pair."""


def num_pair_features(num_features: int) -> int:
    """The number of columns of `features_of_pairs` for nodes with `num_features` features."""
    return NUM_WALKS + 3 + (2 * num_features if num_features <= MOST_FEATURES else 0)


@torch.no_grad()
def features_of_pairs(edges: Tensor, features: Tensor, pairs: Tensor) -> Tensor:
    """Features of pairs of nodes, float32 `(P, num_pair_features(F))`.

    They are the walks between both nodes (`walks_between`); log(1 + d) of their degrees d, the sum and the smaller one;
    the cosine of their features, 0 where one node has only zeros; and, with at most MOST_FEATURES features, their
    products and absolute differences.

    Args:
        edges: sources over targets `(2, E)`, each in both directions.
        features: of the nodes, `(N, F)`.
        pairs: `(P, 2)`.
    """
    walks = walks_between(edges, len(features), pairs)
    degrees = torch.log1p(torch.bincount(edges[0], minlength=len(features)).float())[pairs]
    source, target = features[pairs].float().unbind(1)
    found = [walks, degrees.sum(1, keepdim=True), degrees.amin(1, keepdim=True)]
    found.append(F.cosine_similarity(source, target)[:, None])
    if features.shape[1] <= MOST_FEATURES:
        found += [source * target, (source - target).abs()]
    return torch.cat(found, 1)


def walks_between(edges: Tensor, num_nodes: int, pairs: Tensor) -> Tensor:
    """Counts of walks between the nodes of each pair: log(1 + w) of three numbers w, `(P, 3)` float32.

    They are the number of common neighbours; the sum over these of 1 / log d, with d the degree, at least 2 (Adamic and
    Adar, 2003); and the number of walks of three steps. Each edge counts once, whatever its weight.

    Args:
        edges: sources over targets `(2, E)`, each in both directions.
        num_nodes: N.
        pairs: `(P, 2)`.
    """
    with without_autocast(edges):  # autocast would count in its own dtype
        ones = torch.ones(edges.shape[1], device=edges.device)
        steps = torch.sparse_coo_tensor(edges, ones, (num_nodes, num_nodes), check_invariants=False).coalesce()
        degrees = torch.zeros(num_nodes, device=edges.device).index_add_(0, edges[0], ones)
        rare = 1 / degrees.clamp(min=2).log()
        found = torch.empty(len(pairs), NUM_WALKS, device=edges.device)
        for rows in torch.arange(len(pairs), device=edges.device).split(max(1, CELLS // num_nodes)):
            source, target = pairs[rows].T
            here = torch.zeros(num_nodes, len(rows), device=edges.device)
            here[source, torch.arange(len(rows), device=edges.device)] = 1.0
            once = steps @ here
            twice = steps @ once
            for k, reached in enumerate((twice, steps @ (rare[:, None] * once), steps @ twice)):
                found[rows, k] = torch.log1p(reached[target, torch.arange(len(rows), device=edges.device)])
    return found


def _read_pairs(file: Path, names: tuple[str, ...]) -> Tensor:
    """The pairs of nodes that a table lists, `(n, 2)`."""
    table = read_table(file)
    columns = {name.lower(): name for name in table.names}
    if absent := [name for name in ("source", "target") if name not in columns]:
        raise ValueError(f"{file}, line 1: no column {absent[0]!r}; the columns are {', '.join(table.names)}")
    number, pairs = {name: i for i, name in enumerate(names)}, []
    for row in table.rows:
        ends = [row.cells[columns[name]].strip() for name in ("source", "target")]
        for end in ends:
            if end not in number:
                raise ValueError(f"{file}, line {row.line}: there is no node {end!r} in the graph of the run")
        if ends[0] == ends[1]:
            message = f"source and target are both {ends[0]!r}; loops are not predicted: leave the row out"
            raise ValueError(f"{file}, line {row.line}: {message}")
        pairs.append([number[end] for end in ends])
    return torch.tensor(pairs)
