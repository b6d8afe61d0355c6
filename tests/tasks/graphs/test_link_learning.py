import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models import GraphPairs, ITNet, LinkMachine, MLPConfig, NodeMachine, OnEdgesConfig, RidgeHead
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import LinkLearning, NodeLearning
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.graphs.inputs import GraphInputs
from fredholm.tasks.graphs.link_learning import PairNetwork, features_of_pairs, num_pair_features, walks_between
from fredholm.tasks.targets import ClassTarget
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused
from tests.tasks.graphs.build import rings, two_groups, write_csv

NONE = torch.Generator()
CPU = torch.device("cpu")
SMALL = ITNet.Config(
    embed_dim=8,
    depth=2,
    num_heads=2,
    kernel=OnEdgesConfig(kernel=MLPConfig(width=4, num_frequencies=2, sigma=0.5, epsilon=0.1), long_range=None),
    dropout=0.0,
    drop_path=0.0,
    pool="none",
)


def task(folder: Path, **settings: Any) -> LinkLearning:
    given = {"data": str(two_groups(folder)), "model": SMALL, "code_dim": 4, "pair_features": False, "num_negatives": 1}
    given |= settings
    return LinkLearning.Config(**given).build()


def score(source: Tensor, target: Tensor) -> Tensor:
    """The score of two codes of four numbers and a bias: half of the product less the squared distance."""
    product, apart = source[..., 2:4] * target[..., 2:4], (source[..., :2] - target[..., :2]).square()
    return (product - apart).sum(-1) / 2 + source[..., 4] + target[..., 4]


def all_edges(built: LinkLearning) -> set[tuple[int, int]]:
    """All edges of the data, both ways where they have no direction."""
    graph = open_graphs(built.config.data, is_directed=built.config.directed)
    return {(a, b) for a, b in graph.edge_index.T.tolist()}


def test_the_edges_are_split_and_each_counts_once(tmp_path: Path) -> None:
    built = task(tmp_path / "a")
    edges = all_edges(built)
    assert (built.num_train, built.num_held_out("valid")) == (63, 9)
    assert len(edges) == 2 * 91
    assert built.num_held_out("test") == 19
    found = [
        tuple(pair)
        for part in (built.splits.train, built.held_out("valid"), built.held_out("test"))
        for pair in part.pairs.tolist()
    ]
    assert sorted(found) == sorted(pair for pair in edges if pair[0] < pair[1])


def test_the_network_sees_training_edges_without_those_of_its_batch(tmp_path: Path) -> None:
    built = task(tmp_path / "a", inputs=GraphInputs(flip_signs=False))
    seen: list[Tensor] = []

    class Watched(torch.nn.Module):
        def forward(self, given: Any) -> Tensor:
            seen.append(given.edge_index[0].T)
            return torch.randn(1, 30, 5, generator=torch.Generator().manual_seed(0))

    batch = built.train_batch(torch.tensor([3, 7]), torch.Generator())
    built.loss(Watched(), batch)
    built.loss(Watched(), built.held_out_batch("valid", torch.tensor([0])))
    pairs = {tuple(pair) for pair in built.splits.train.pairs.tolist()}
    both = pairs | {(b, a) for a, b in pairs}
    assert {tuple(pair) for pair in seen[1].tolist()} == both
    own = {tuple(pair) for pair in batch["pairs"][:, 0].tolist()}
    assert {tuple(pair) for pair in seen[0].tolist()} == both - own - {(b, a) for a, b in own}
    part = {name: tensor[:1] for name, tensor in batch.items()}
    built.loss(Watched(), part)
    assert torch.equal(seen[2], seen[0])


def test_facts_of_the_graph_are_computed_from_training_edges_alone(tmp_path: Path) -> None:
    """Another set of held-out edges gives another graph; without held-out edges there is a third one."""
    inputs = GraphInputs(num_walks=2, positions="none")
    one, other = (task(tmp_path / "a", inputs=inputs, split_seed=seed) for seed in (0, 1))
    whole = inputs.learn(open_graphs(one.config.data))
    assert one.facts.preparation.mean != other.facts.preparation.mean
    assert one.facts.preparation.mean[-1] < whole.mean[-1]  # fewer edges end at a node


def test_negative_pairs_have_no_edge(tmp_path: Path) -> None:
    built = task(tmp_path / "a", num_negatives=3)
    one, again, other = (
        built.train_batch(torch.arange(60), torch.Generator().manual_seed(seed))["pairs"] for seed in (0, 0, 1)
    )
    assert one.shape == (60, 4, 2)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    pairs = {tuple(pair) for pair in built.splits.train.pairs.tolist()}
    drawn = [tuple(sorted(pair)) for pair in one[:, 1:].flatten(0, 1).tolist()]
    assert not pairs & set(drawn)
    assert all(a != b for a, b in drawn)
    parts = (built.splits.train, built.held_out("valid"), built.held_out("test"))
    assert not any(torch.equal(one.others[:9], other.others[:9]) for one, other in itertools.combinations(parts, 2))
    measured = task(tmp_path / "a").held_out_batch("valid", torch.arange(9))["pairs"]
    assert not {tuple(pair) for pair in measured[:, 1].tolist()} & all_edges(built)
    assert torch.equal(measured, task(tmp_path / "a").held_out_batch("valid", torch.arange(9))["pairs"])


class Codes(torch.nn.Module):
    """A network with fixed outputs at the nodes."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, given: object) -> Tensor:
        return self.outputs[None]


def test_the_score_of_a_pair(tmp_path: Path) -> None:
    built, outputs = task(tmp_path / "a"), torch.randn(30, 5)
    batch = built.held_out_batch("valid", torch.arange(9))
    a, b = batch["pairs"].unbind(-1)
    logits = score(outputs[a], outputs[b])
    expected = F.softplus(-logits[:, 0]).sum() + F.softplus(logits[:, 1]).sum()
    torch.testing.assert_close(built.loss(Codes(outputs), batch), expected)
    assert built.num_targets(batch) == 18
    metrics = built.metrics()
    built.score(Codes(outputs), batch, metrics)
    wins = (logits[:, :1] > logits[:, 1]).float().mean()
    assert float(metrics["auroc"].compute()) == pytest.approx(float(wins))
    torch.testing.assert_close(metrics["loss"].compute(), expected.double() / 18, rtol=1e-6, atol=0.0)
    assert set(metrics) == {"auroc", "average_precision", "loss"}


def test_scores_whose_probability_rounds_to_one_in_float32_keep_their_ranks(tmp_path: Path) -> None:
    built, outputs = task(tmp_path / "a"), torch.randn(30, 5)
    outputs[:, 4] += 20  # bias of a node, which a score adds twice
    batch = built.held_out_batch("valid", torch.arange(9))
    logits = score(outputs[batch["pairs"][..., 0]], outputs[batch["pairs"][..., 1]])
    assert (logits.sigmoid() == 1).all()
    metrics = built.metrics()
    built.score(Codes(outputs), batch, metrics)
    assert float(metrics["auroc"].compute()) == pytest.approx(float((logits[:, :1] > logits[:, 1]).float().mean()))


def seen_without(built: LinkLearning, batch: dict[str, Tensor]) -> Tensor:
    """The training edges without those of a batch, in both directions."""
    hidden = {tuple(pair) for pair in batch["pairs"][:, 0].tolist()}
    left = [pair for pair in built.splits.train.pairs.tolist() if tuple(pair) not in hidden]
    return torch.tensor([*left, *(pair[::-1] for pair in left)]).unique(dim=0).T


@pytest.mark.parametrize("directed", [False, True])
def test_features_of_a_pair_enter_linearly_and_walks_with_weights_of_the_network(
    tmp_path: Path, directed: bool
) -> None:
    built = task(tmp_path / "a", pair_features=True, directed=directed)
    outputs, batch = (
        torch.randn(30, 16 if directed else 8),
        built.train_batch(torch.tensor([3, 7]), torch.Generator()),
    )
    size = built.facts.preparation.num_inputs
    model = PairNetwork(Codes(outputs), num_pair_features(size))
    assert model.direct is not None
    for parameter in model.direct.parameters():
        torch.nn.init.normal_(parameter)
    a, b = batch["pairs"].unbind(-1)
    edges, prepared = seen_without(built, batch), _graph_input(built).features[0]
    read = features_of_pairs(edges, prepared, batch["pairs"].flatten(0, 1)).view(2, 2, -1)
    between = walks_between(edges, 30, batch["pairs"].flatten(0, 1)).view(2, 2, 3)
    assert (between > 0).any()
    source, target = outputs[a], outputs[b, 8:] if directed else outputs[b]
    logits = score(source, target) + (between * (source[..., 5:8] + target[..., 5:8])).sum(-1)
    logits = logits + model.direct(read)[..., 1] - model.direct(read)[..., 0]
    expected = F.softplus(-logits[:, 0]).sum() + F.softplus(logits[:, 1]).sum()
    torch.testing.assert_close(built.loss(model, batch), expected)


@pytest.mark.parametrize("count", [2, 70])
def test_features_of_pairs(count: int) -> None:
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 0, 2], [1, 0, 2, 1, 3, 2, 2, 0]])
    features = torch.randn(5, count)
    features[4] = 0
    pairs = torch.tensor([[0, 3], [2, 1], [4, 0]])
    degrees, rows = [2, 2, 3, 1, 0], []
    for walks, (a, b) in zip(walks_between(edges, 5, pairs).tolist(), pairs.tolist(), strict=True):
        shown = [math.log1p(degrees[a]), math.log1p(degrees[b])]
        x, y = features[a].tolist(), features[b].tolist()
        sizes = math.hypot(*x) * math.hypot(*y)
        row = [*walks, sum(shown), min(shown), sum(p * q for p, q in zip(x, y, strict=True)) / sizes if sizes else 0.0]
        if count <= 64:
            row += [p * q for p, q in zip(x, y, strict=True)] + [abs(p - q) for p, q in zip(x, y, strict=True)]
        rows.append(row)
    torch.testing.assert_close(features_of_pairs(edges, features, pairs), torch.tensor(rows))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(features_of_pairs(edges, features, pairs), torch.tensor(rows))
    assert len(rows[0]) == num_pair_features(count)


def test_the_linear_function_is_fitted_to_hidden_edges(tmp_path: Path) -> None:
    built = task(tmp_path / "a", pair_features=True, num_negatives=2)
    model = built.model()
    built.initialise(model, CPU)
    assert isinstance(model, PairNetwork)
    assert model.direct is not None
    generator, prepared = torch.Generator().manual_seed(0), _graph_input(built).features[0]
    features, labels = [], []
    for indices in torch.randperm(63, generator=generator).chunk(8):
        batch = built.train_batch(indices, generator)
        for pairs in batch["pairs"]:
            features.append(features_of_pairs(seen_without(built, batch), prepared, pairs))
            labels += [1, 0, 0]
    head = RidgeHead(model.direct.weight.shape[1], 2)
    head.fit(torch.cat(features), torch.tensor(labels), ClassTarget(names=("apart", "joined")))
    torch.testing.assert_close(model.direct.weight, head.weight)
    assert bool(head.weight.any())
    assert task(tmp_path / "a").model().get_parameter("network.head.weight").shape[0] == 5


def test_a_direction_changes_the_score(tmp_path: Path) -> None:
    built, outputs = task(tmp_path / "a", directed=True), torch.randn(30, 10)
    assert len(built.splits.train.pairs) > 100
    a, b = built.held_out_batch("valid", torch.arange(4))["pairs"].unbind(-1)
    logits = score(outputs[a], outputs[b, 5:])
    expected = F.softplus(-logits[:, 0]).sum() + F.softplus(logits[:, 1]).sum()
    torch.testing.assert_close(built.loss(Codes(outputs), built.held_out_batch("valid", torch.arange(4))), expected)
    assert built.model()(_graph_input(built)).shape == (1, 30, 10)


def _graph_input(built: LinkLearning) -> Any:
    caught: list[Any] = []

    class Catching(torch.nn.Module):
        def forward(self, given: Any) -> Tensor:
            caught.append(given)
            return torch.zeros(1, 30, built._outputs_of_end * (2 if built.config.directed else 1))

    model = PairNetwork(Catching(), num_pair_features(built.facts.preparation.num_inputs))
    built.loss(model, built.held_out_batch("valid", torch.arange(2)))
    return caught[0]


def test_a_run_predicts_pairs(tmp_path: Path) -> None:
    config = Run.Config(
        task=LinkLearning.Config(data=str(two_groups(tmp_path / "a")), model=SMALL, code_dim=4),
        training=TrainingConfig(epochs=2, batch_size=16, tensorboard=False, ema_decay=0.5),
    )
    result = train(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.evaluate() == result.metrics
    (tmp_path / "asked.csv").write_text("Source,target,why\nn0,n1,x\nn3,n20,y\n")
    (tmp_path / "one.csv").write_text("source,target\nn3,n20\n")
    rows = run.predict([tmp_path / "asked.csv", tmp_path / "one.csv"])
    assert [(row["source"], row["target"]) for row in rows] == [("n0", "n1"), ("n3", "n20"), ("n3", "n20")]
    assert rows[1]["probability"] == pytest.approx(rows[2]["probability"], rel=1e-5)
    assert list(rows[0]) == ["file", "source", "target", "probability"]
    (tmp_path / "bad.csv").write_text("source,target\nn0,n1\nn0,m7\n")
    with refused(ValueError, "bad.csv, line 3: there is no node 'm7' in the graph of the run"):
        run.predict([tmp_path / "bad.csv"])
    (tmp_path / "bad.csv").write_text("from,to\nn0,n1\n")
    with refused(ValueError, "bad.csv, line 1: no column 'source'; the columns are from, to"):
        run.predict([tmp_path / "bad.csv"])


def test_hiding_edges_hides_their_weights_and_features(tmp_path: Path) -> None:
    rows = [
        "source,target,weight,long",
        *(f"n{i},n{(i * i + 1) % 12},{1 + i},{i}" for i in range(12) if (i * i + 1) % 12 != i),
    ]
    tables = {"edges": "\n".join(rows), "nodes": "id,x\n" + "".join(f"n{i},{i % 5}\n" for i in range(12))}
    inputs = GraphInputs(num_walks=0, positions="none")
    config = LinkLearning.Config(data=str(write_csv(tmp_path, **tables)), model=SMALL, directed=True, inputs=inputs)
    built = config.build()
    batch = built.train_batch(torch.arange(3), NONE)
    assert bool(torch.isfinite(built.loss(built.model(), batch)))


def test_facts_and_config_survive_json(tmp_path: Path) -> None:
    built = task(tmp_path / "a", num_negatives=2)
    for value, kinds in ((built.facts, ()), (built.config, LinkLearning.parts)):
        assert from_json(json.loads(json.dumps(to_json(value))), type(value), kinds) == value


def test_a_bad_seed_is_refused() -> None:
    with refused(ValueError, "split_seed is 10000000000; expected an integer from 0"):
        LinkLearning.Config(split_seed=10**10)


def test_bad_settings_and_data_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"num_negatives": 0}, "num_negatives must be at least 1; got 0"),
        ({"code_dim": 0}, "code_dim must be at least 1; got 0"),
        ({"model": dataclasses.replace(SMALL, pool="mean")}, "model.pool is 'mean', but each node needs an output"),
        ({"data": ""}, "no graph is given"),
        ({"data": str(rings(tmp_path / "rings"))}, "holds 24 graphs; expected one"),
    ):
        with refused(ValueError, message):
            task(tmp_path / "a", **settings)
    few = write_csv(tmp_path / "few", nodes="", edges="source,target\na,b\nb,a\n")
    with refused(ValueError, "there are 1 edges; expected at least 3, one for each split"):
        task(tmp_path / "a", data=str(few))
    pairs = [f"{a},{b}" for a in range(6) for b in range(6) if a != b]
    full = write_csv(tmp_path / "full", nodes="", edges="\n".join(["source,target", *pairs]))
    with refused(ValueError, "nearly all pairs of nodes are edges; expected a graph with others"):
        _ = task(tmp_path / "a", data=str(full)).splits
    built = task(tmp_path / "a")
    wider = dataclasses.replace(built.config, inputs=dataclasses.replace(built.config.inputs, num_walks=9))
    with refused(ValueError, "inputs; the model knows"):
        _ = wider.build(built.facts).splits


def test_edges_directed_by_the_data_are_treated_as_directed_everywhere(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a")
    open_graphs(folder, is_directed=True).save(tmp_path / "a.npz")
    built = task(tmp_path, data=str(tmp_path / "a.npz"), pair_features=True)
    by_setting = task(tmp_path, data=str(folder), pair_features=True, directed=True)
    pairs = torch.cartesian_prod(torch.arange(10), torch.arange(10))
    assert torch.equal(built._features(built._whole, pairs), by_setting._features(by_setting._whole, pairs))
    torch.manual_seed(0)
    model = built.model()
    outputs = built._at_nodes(model, built._whole, {})
    assert outputs.shape[1] == 2 * built._outputs_of_end
    assert torch.equal(
        built._scores(model, outputs, built._whole, pairs), by_setting._scores(model, outputs, by_setting._whole, pairs)
    )


def test_models_without_a_network_rank_pairs_better_than_chance(tmp_path: Path) -> None:
    built = task(tmp_path / "a", valid_fraction=0.3)
    regression = next(each for each in built.baselines if each.name == "logistic regression")
    assert max(regression.fitted(setting)("test") for setting in regression.settings) > 0.6


def machine_task(folder: Path, **settings: Any) -> LinkLearning:
    given = {"data": str(two_groups(folder)), "model": LinkMachine.Config(num_trees=3)}
    return LinkLearning.Config(**given | settings).build()


@pytest.mark.parametrize("directed", [False, True])
def test_a_machine_is_fitted_to_training_edges_and_as_many_negative_pairs(tmp_path: Path, directed: bool) -> None:
    built = machine_task(tmp_path / "a", directed=directed)
    edges = all_edges(built)
    assert (built.num_held_out("valid"), built.learns_by_steps) == (0, False)
    pairs, are_edges = built._learnt_from()
    train = {tuple(pair) for pair in built.splits.train.pairs.tolist()}
    assert {tuple(pair) for pair in pairs[are_edges == 1].tolist()} == train
    assert int((are_edges == 0).sum()) == len(train)
    assert not {tuple(pair) for pair in pairs[are_edges == 0].tolist()} & train
    model = built.model()
    assert isinstance(model, LinkMachine)
    seen = list[GraphPairs]()
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    torch.manual_seed(0)
    built.initialise(model, CPU)
    batch = built.held_out_batch("test", torch.arange(9))
    loss = built.loss(model, batch)
    [pairs_input] = seen
    both = train if directed else train | {(b, a) for a, b in train}
    assert {tuple(pair) for pair in pairs_input.edge_index.T.tolist()} == both < edges
    # no walks or degrees, which would leak hidden edges
    assert pairs_input.features.shape[1] == len(built.facts.preparation.features) > 0
    logits = model(pairs_input)
    expected = F.cross_entropy(logits, torch.tensor([1, 0]).repeat(9), reduction="sum")
    torch.testing.assert_close(loss, expected.float())


def test_a_machine_learns_from_a_sample_of_many_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredholm.tasks.graphs.link_learning.LEARNT", 20)
    pairs, are_edges = machine_task(tmp_path / "a")._learnt_from()
    assert (len(pairs), int(are_edges.sum())) == (40, 20)
    of_edges = task(tmp_path / "b", num_negatives=2)._training_features(CPU)[1]
    assert (len(of_edges), int(of_edges.sum())) == (60, 20)


@pytest.mark.parametrize("features", [True, False])
def test_a_run_of_a_machine(tmp_path: Path, features: bool) -> None:
    folder = two_groups(tmp_path / "a")
    if not features:
        (folder / "nodes.csv").unlink()
    task = LinkLearning.Config(data=str(folder), model=LinkMachine.Config(num_trees=3))
    config = Run.Config(task=task, training=TrainingConfig(epochs=0, tensorboard=False))
    result = train(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.evaluate("test") == result.metrics
    assert 0 <= result.metrics["auroc"] <= 1
    (tmp_path / "asked.csv").write_text("source,target\nn0,n1\nn1,n0\nn3,n20\n")
    (tmp_path / "one.csv").write_text("source,target\nn3,n20\n")
    rows = run.predict([tmp_path / "asked.csv", tmp_path / "one.csv"])
    chances = [float(row["probability"]) for row in rows]
    assert chances[0] == pytest.approx(chances[1], rel=1e-5)
    assert chances[2] == pytest.approx(chances[3], rel=1e-6)
    assert all(0 < chance < 1 for chance in chances)


def test_a_pair_of_a_node_with_itself_is_refused(tmp_path: Path) -> None:
    task = LinkLearning.Config(data=str(two_groups(tmp_path / "a")), model=LinkMachine.Config(num_trees=0))
    train(Run.Config(task=task, training=TrainingConfig(epochs=0, tensorboard=False)), tmp_path / "run")
    (tmp_path / "asked.csv").write_text("source,target\nn0,n1\nn3,n3\n")
    with refused(ValueError, "line 3: source and target are both 'n3'; loops are not predicted: leave the row out"):
        Run(tmp_path / "run").predict([tmp_path / "asked.csv"])
    again, files, failed = Run(tmp_path / "run"), [tmp_path / "asked.csv"], list[Path]()
    rows = again.task.predict(again.model(), files, again.device, failed=lambda file, _: failed.append(file))
    assert (rows, failed) == ([], files)  # there would be nothing to predict


def test_settings_that_a_machine_does_not_read_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"valid_fraction": 0.2}, "valid_fraction=0.2 has no effect with model=LinkMachine"),
        ({"code_dim": 8}, "code_dim=8 has no effect with model=LinkMachine"),
        ({"num_negatives": 2}, "num_negatives=2 has no effect with model=LinkMachine"),
        ({"inputs": GraphInputs(num_walks=2)}, "num_walks=2 has no effect with model=LinkMachine"),
        ({"model": NodeMachine.Config()}, "model is NodeMachine; expected a network, or LinkMachine"),
    ):
        with refused(ValueError, message):
            machine_task(tmp_path / "a", **settings)
    with refused(ValueError, "model is LinkMachine; expected a network, or NodeMachine"):
        NodeLearning.Config(model=LinkMachine.Config())
