import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.models import BlendedNodes, ITNet, KnownNodes, MLPConfig, NodeMachine, OnEdgesConfig
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import NodeLearning
from fredholm.tasks.graphs import node_learning, open_graphs
from fredholm.tasks.graphs.batches import graphs_in
from fredholm.tasks.graphs.inputs import GraphInputs
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused
from tests.tasks.graphs.build import rings, two_groups

NONE = torch.Generator()
MACHINE = (
    "a node machine, fitted in closed form and better on numbers, on nodes without features, and on up to 500 labelled "
    "nodes"
)
SMALL = ITNet.Config(
    embed_dim=8,
    depth=2,
    num_heads=2,
    kernel=OnEdgesConfig(kernel=MLPConfig(width=4, num_frequencies=2, sigma=0.5, epsilon=0.1), long_range=None),
    dropout=0.0,
    drop_path=0.0,
    pool="none",
)
PLACED = GraphInputs(num_walks=0, degrees=False)
"""Unchanged features, and positions from the graph's Laplacian."""
WALKS = GraphInputs(num_walks=2, degrees=False, positions="none")


def task(folder: Path, **settings: Any) -> NodeLearning:
    given = {"data": str(two_groups(folder)), "model": SMALL, "inputs": PLACED, **settings}
    return NodeLearning.Config(**given).build()


def test_batches_are_numbers_of_nodes(tmp_path: Path) -> None:
    built = task(tmp_path / "a")
    assert (built.num_train, built.num_held_out("valid")) == (21, 3)
    assert built.target.names == ("left", "right")
    batch = built.train_batch(torch.tensor([2, 5]), torch.Generator().manual_seed(0))
    train = built.splits.train
    assert batch["nodes"].tolist() == train.nodes[[2, 5]].tolist()
    assert torch.equal(batch["targets"], (batch["nodes"] >= 15).long())
    assert batch["signs"].shape == (2, 8)
    assert torch.equal(batch["signs"][0], batch["signs"][1])
    assert batch["signs"].abs().eq(1).all()
    assert "signs" not in built.held_out_batch("valid", torch.tensor([0]))
    still = task(tmp_path / "a", inputs=GraphInputs(flip_signs=False))
    assert "signs" not in still.train_batch(torch.tensor([0]), NONE)
    assert built.num_targets(batch) == 2


def test_the_whole_graph_is_the_input_and_the_loss_is_over_the_nodes_of_the_batch(tmp_path: Path) -> None:
    built = task(tmp_path / "a", inputs=GraphInputs(flip_signs=False))
    model, batch = built.model().eval().requires_grad_(False), built.train_batch(torch.arange(6), NONE)
    rows = built.predict(model, [Path(built.config.data)], torch.device("cpu"))
    assert [row["node"] for row in rows] == [f"n{i}" for i in range(30)]
    predicted = [(str(rows[node]["class"]), float(rows[node]["probability"])) for node in batch["nodes"].tolist()]
    chances = [
        p if built.target.names[label] == name else 1 - p
        for (name, p), label in zip(predicted, batch["targets"].tolist(), strict=True)
    ]
    assert float(built.loss(model, batch)) == pytest.approx(float(-torch.tensor(chances).log().sum()), rel=1e-4)
    parts = [built.loss(model, {name: tensor[i : i + 1] for name, tensor in batch.items()}) for i in range(6)]
    torch.testing.assert_close(torch.stack(parts).sum(), built.loss(model, batch))


def test_signs_flip_positions(tmp_path: Path) -> None:
    built = task(tmp_path / "a")
    model, batch = built.model().eval().requires_grad_(False), built.held_out_batch("valid", torch.arange(3))
    plain = built.loss(model, batch)
    torch.testing.assert_close(built.loss(model, batch | {"signs": torch.ones(3, 8)}), plain)
    assert not torch.equal(built.loss(model, batch | {"signs": -torch.ones(3, 8)}), plain)


def test_metrics_of_classes(tmp_path: Path) -> None:
    built = task(tmp_path / "a")
    model, metrics = built.model().eval().requires_grad_(False), built.metrics()
    for i in range(3):
        built.score(model, built.held_out_batch("valid", torch.tensor([i])), metrics)
    whole = built.held_out_batch("valid", torch.arange(3))
    torch.testing.assert_close(metrics["loss"].compute(), built.loss(model, whole) / 3, check_dtype=False)
    assert set(metrics) == {"accuracy", "balanced_accuracy", "macro_f1", "matthews", "auroc", "loss"}


def test_splits(tmp_path: Path) -> None:
    own = str(two_groups(tmp_path / "own", split=True))
    built = NodeLearning.Config(data=own, model=SMALL).build()
    found = [built.splits.train.nodes, built.held_out("valid").nodes]
    assert [sorted({int(i) % 15 % 3 for i in nodes}) for nodes in found] == [[0], [1]]
    assert {int(i) % 15 % 3 for i in built.held_out("test").nodes} == {2}
    few = task(tmp_path / "a", train_per_class=3)
    assert few.splits.train.answers.values.bincount().tolist() == [3, 3]
    assert set(few.splits.train.nodes.tolist()) <= set(task(tmp_path / "a").splits.train.nodes.tolist())
    assert torch.equal(few.splits.held_out("valid").nodes, task(tmp_path / "a").splits.held_out("valid").nodes)
    more = task(tmp_path / "a", train_per_class=5)
    assert set(few.splits.train.nodes.tolist()) < set(more.splits.train.nodes.tolist())


def test_nodes_without_a_label_are_in_no_split(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a")
    header, *lines = (folder / "nodes.csv").read_text().splitlines()
    lines[:4] = [line.replace("left", "") for line in lines[:4]]
    (folder / "nodes.csv").write_text("\n".join([header, *lines]))
    built = NodeLearning.Config(data=str(folder), model=SMALL).build()
    train = built.splits.train
    assert int(train.nodes.min()) >= 4
    assert torch.equal(train.answers.values, (train.nodes >= 15).long())
    assert len(built.predict(built.model().eval(), [folder], torch.device("cpu"))) == 30


def test_rare_classes_weigh_as_much_as_frequent_ones(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a")
    header, *lines = (folder / "nodes.csv").read_text().splitlines()
    lines[3:15] = [line.replace("left", "right") for line in lines[3:15]]
    (folder / "nodes.csv").write_text("\n".join([header, *lines]))
    plain, built = (
        task(tmp_path / "b", data=str(folder), class_weights=weights, valid_fraction=0.1, inputs=WALKS)
        for weights in ("none", "balanced")
    )
    counts = built.splits.train.answers.values.bincount()
    assert (counts[0] < 4, len(plain.advice), built.advice) == (True, 1, ())
    assert (plain.objective.metric, built.objective.metric) == ("accuracy", "balanced_accuracy")
    model, batch = built.model().eval().requires_grad_(False), built.train_batch(torch.arange(built.num_train), NONE)
    alone = [plain.loss(model, {name: each[i : i + 1] for name, each in batch.items()}) for i in range(len(counts))]
    weights = counts.sum() / (2 * counts)
    own = weights[batch["targets"][: len(counts)]] * torch.stack(alone)
    for i, expected in enumerate(own):
        one = {name: each[i : i + 1] for name, each in batch.items()}
        torch.testing.assert_close(built.loss(model, one), expected)


def test_groups_and_times_decide_the_split(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a")
    header, *lines = (folder / "nodes.csv").read_text().splitlines()
    marked = [f"{line},g{i % 10},{i % 7}" for i, line in enumerate(lines)]
    (folder / "nodes.csv").write_text("\n".join([f"{header},group,time", *marked]))
    built = NodeLearning.Config(data=str(folder), model=SMALL).build()
    assert [name for name in built.facts.preparation.features if name in ("group", "time")] == []
    parts = [built.splits.train.nodes, built.held_out("valid").nodes, built.held_out("test").nodes]
    groups = [{int(i) % 10 for i in nodes} for nodes in parts]
    assert [len(group) for group in groups] == [7, 1, 2]
    assert sum(map(len, groups)) == len(set.union(*groups))
    (folder / "nodes.csv").write_text("\n".join([f"{header},time", *(f"{row},{i}" for i, row in enumerate(lines))]))
    timed = NodeLearning.Config(data=str(folder), model=SMALL, split_by="time").build()
    assert timed.held_out("test").nodes.tolist() == list(range(24, 30))
    assert timed.held_out("valid").nodes.tolist() == list(range(21, 24))


def test_the_order_of_nodes_and_edges_changes_nothing(tmp_path: Path) -> None:
    """Without positions, which are not unique because of the symmetries of this graph."""
    folder = two_groups(tmp_path / "a")
    built = NodeLearning.Config(data=str(folder), model=SMALL, inputs=GraphInputs(positions="none")).build()
    model = built.model().eval()
    rows = built.predict(model, [folder], torch.device("cpu"))
    for name in ("nodes.csv", "edges.csv"):
        header, *lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join([header, *lines[::-1]]))
    turned = {row["node"]: row for row in built.predict(model, [folder], torch.device("cpu"))}
    for row in rows:
        other = turned[row["node"]]
        assert other["class"] == row["class"]
        assert float(other["probability"]) == pytest.approx(float(row["probability"]), abs=1e-6)


def test_distant_nodes_have_no_influence_beyond_the_layers(tmp_path: Path) -> None:
    """Without long-range edges two layers see two edges far."""
    nodes = "id,label,x\n" + "".join(f"n{i},{'p' if i % 2 else 'q'},{i % 3}\n" for i in range(8))
    edges = "source,target\n" + "".join(f"n{a},n{b}\n" for i in range(7) for a, b in ((i, i + 1), (i + 1, i)))
    (tmp_path / "line").mkdir()
    for name, text in (("nodes.csv", nodes), ("edges.csv", edges)):
        (tmp_path / "line" / name).write_text(text)
    inputs = GraphInputs(num_walks=0, degrees=False, positions="none", scale="none")
    built = NodeLearning.Config(data=str(tmp_path / "line"), model=SMALL, inputs=inputs, valid_fraction=0.2).build()
    model = built.model().eval()
    before = built.predict(model, [tmp_path / "line"], torch.device("cpu"))
    (tmp_path / "line" / "nodes.csv").write_text(nodes.replace("n0,q,0", "n0,q,9"))
    after = built.predict(model, [tmp_path / "line"], torch.device("cpu"))
    moved = [row["probability"] != other["probability"] for row, other in zip(before, after, strict=True)]
    assert moved == [True] * 3 + [False] * 5


def test_it_learns_resumes_and_predicts(tmp_path: Path) -> None:
    data = two_groups(tmp_path / "a")
    config = Run.Config(
        task=NodeLearning.Config(data=str(data), model=SMALL, inputs=PLACED),
        training=TrainingConfig(epochs=15, batch_size=32, learning_rate=1e-2, tensorboard=False, ema_decay=0.5),
    )
    result = train(config, tmp_path / "run")
    assert result.metrics["accuracy"] > 0.8
    run = Run(tmp_path / "run")
    assert run.evaluate() == result.metrics
    rows = run.predict([data])
    assert sum(row["class"] == ("left" if i < 15 else "right") for i, row in enumerate(rows)) >= 28
    assert list(rows[0]) == ["file", "node", "class", "probability"]


def test_gradient_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    data = str(two_groups(tmp_path / "a"))
    metrics = []
    for accumulation in (1, 3):
        config = Run.Config(
            task=NodeLearning.Config(data=data, model=SMALL, inputs=PLACED),
            training=TrainingConfig(epochs=2, batch_size=10, accumulation=accumulation, tensorboard=False),
        )
        metrics.append(train(config, tmp_path / f"run-{accumulation}").metrics["loss"])
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)


def test_facts_and_config_survive_json(tmp_path: Path) -> None:
    built = task(tmp_path / "a", train_per_class=3)
    for value, kinds in ((built.facts, NodeLearning.parts), (built.config, NodeLearning.parts)):
        assert from_json(json.loads(json.dumps(to_json(value))), type(value), kinds) == value


def test_bad_settings_and_data_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"train_per_class": 0}, "train_per_class is 0; expected at least 1"),
        ({"model": dataclasses.replace(SMALL, pool="mean")}, "model.pool is 'mean', but each node needs an output"),
        ({"data": ""}, "no graph is given"),
        ({"data": str(rings(tmp_path / "rings"))}, "fredholm train graphs predicts those of graphs"),
    ):
        with refused(ValueError, message):
            task(tmp_path / "a", **settings)
    own = str(two_groups(tmp_path / "own", split=True))
    idle: dict[str, Any] = {"train_per_class": 3, "test_fraction": 0.3, "valid_fraction": 0.3, "split_seed": 1}
    for name, value in idle.items():
        with refused(ValueError, f"{name}=", "has no effect with", "which has its own split"):
            _ = task(tmp_path / "a", data=own, **{name: value}).splits
    built = task(tmp_path / "a")
    other = two_groups(tmp_path / "b", size=12)
    nodes = other / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("left", "west"))
    with refused(ValueError, "the run was made with the classes left, right"):
        _ = dataclasses.replace(built.config, data=str(other)).build(built.facts).splits
    with refused(ValueError, "holds 24 graphs; expected one"):
        inputs = GraphInputs(positions="none")
        found = task(tmp_path / "a", inputs=inputs)
        rings_alike = (tmp_path / "rings" / "nodes.csv").read_text().replace("heat", "x")
        lines = [f"{line},{'y' if i == 0 else '1'}" for i, line in enumerate(rings_alike.splitlines())]
        (tmp_path / "rings" / "nodes.csv").write_text("\n".join(lines))
        found.predict(found.model(), [tmp_path / "rings"], torch.device("cpu"))


def numbers(folder: Path, **settings: Any) -> NodeLearning:
    """A task with targets at the nodes of two groups, for a machine."""
    data = str(two_groups(folder, targets=True))
    given: dict[str, Any] = {"data": data, "model": NodeMachine.Config(num_trees=5), **settings}
    return NodeLearning.Config(**given).build()


def test_a_network_predicts_numbers(tmp_path: Path) -> None:
    built = numbers(tmp_path / "a", model=SMALL, inputs=PLACED)
    assert built.target.names == ("target",)
    assert (built.num_train, built.num_held_out("valid"), built.num_held_out("test")) == (21, 3, 6)
    batch = built.train_batch(torch.arange(21), NONE)
    assert batch["targets"].shape == (21, 1)
    assert float(batch["targets"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(batch["targets"].std(correction=0)) == pytest.approx(1, abs=1e-5)
    model, metrics = built.model().eval().requires_grad_(False), built.metrics()
    built.score(model, built.held_out_batch("valid", torch.arange(3)), metrics)
    assert {"mean_absolute_error", "root_mean_squared_error"} < set(metrics)
    assert list(built.predict(model, [Path(built.config.data)], torch.device("cpu"))[0]) == ["file", "node", "target"]
    assert built.likeness > 0.5


def test_a_machine_predicts_numbers(tmp_path: Path) -> None:
    task = numbers(tmp_path / "a").config
    run = Run.Config(task=task, training=TrainingConfig(epochs=0, tensorboard=False))
    result = train(run, tmp_path / "run")
    assert result.metrics["mean_absolute_error"] < 1
    opened = Run(tmp_path / "run")
    assert opened.evaluate() == result.metrics
    rows = opened.predict([tmp_path / "a"])
    for i, row in enumerate(rows):
        assert float(row["target"]) == pytest.approx(10 + 10 * (i // 15), abs=2)
    # nodes of a grown graph are recognised, those of another graph are not, and targets in the file are not used
    nodes, edges = tmp_path / "a" / "nodes.csv", tmp_path / "a" / "edges.csv"
    for file, more in ((nodes, "\nn30,,0.1,0.2"), (edges, "\nn30,n20\nn20,n30\nn30,n21\nn21,n30")):
        file.write_text(file.read_text() + more)
    grown = opened.predict([tmp_path / "a"])
    assert float(grown[30]["target"]) == pytest.approx(20, abs=2)
    nodes.write_text(nodes.read_text().replace("20.", "90."))
    assert opened.predict([tmp_path / "a"]) == grown
    model, device = opened.model("best").eval(), torch.device("cpu")
    assert isinstance(model, NodeMachine)
    model.share.fill_(0.5)
    opened.task.predict(model, [tmp_path / "a"], device)
    header, *lines = nodes.read_text().splitlines()
    nodes.write_text("\n".join([header, *(f"other_{line}" for line in lines)]))
    edges.write_text(edges.read_text().replace("n", "other_n"))
    with pytest.warns(UserWarning, match="is another graph than that of training"):
        opened.task.predict(model, [tmp_path / "a"], device)


def test_names_alone_do_not_identify_known_nodes(tmp_path: Path) -> None:
    built = numbers(tmp_path / "a")
    graph = open_graphs(tmp_path / "a")
    assert built._known_in(graph).tolist() == built.splits.train.nodes.tolist()  # pyright: ignore[reportPrivateUsage]
    first = int(built.splits.train.nodes[0])
    others = graph.features.clone()
    others[first, 0] += 1
    removed = ~((graph.edge_index == first).any(0))
    for other in (dataclasses.replace(graph, features=others), graph.with_edges(removed)):
        assert set(built._known_in(other).tolist()) == {-1}  # pyright: ignore[reportPrivateUsage]


def friends(folder: Path, *, count: int = 60, more: int = 0) -> Path:
    """Nodes of three groups without features, joined mostly within groups; three in four of `count` have a class."""
    own = torch.arange(99) % 3
    chance = torch.where(own[:, None] == own, 0.4, 0.03)
    joined = (torch.rand(99, 99, generator=torch.Generator().manual_seed(0)) < chance).triu(1)
    ends = joined[: count + more, : count + more].nonzero().tolist()
    folder.mkdir(exist_ok=True)
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{a},n{b}\nn{b},n{a}\n" for a, b in ends))
    rows = (f"n{i},{'abc'[i % 3] if i % 4 and i < count else ''}\n" for i in range(count + more))
    (folder / "nodes.csv").write_text("id,label\n" + "".join(rows))
    return folder


@pytest.mark.slow
def test_nodes_without_features_are_predicted_from_the_structure(tmp_path: Path) -> None:
    folder = friends(tmp_path / "a")
    config, schedule, *_ = NodeLearning.Config(data=str(folder)).recommended("small")
    assert isinstance(config, NodeLearning.Config)
    assert config.model == NodeMachine.Config()
    assert (config.inputs.degrees, config.inputs.surroundings, schedule.epochs) == (True, True, 0)
    network, *_ = NodeLearning.Config(data=str(folder), model=dataclasses.replace(SMALL, depth=1)).recommended("small")
    assert isinstance(network, NodeLearning.Config)
    assert isinstance(network.model, ITNet.Config)
    assert (network.inputs.degrees, network.inputs.surroundings) == (True, True)
    quick = dataclasses.replace(config, model=NodeMachine.Config(hops=0, num_trees=2))
    train(Run.Config(task=quick, training=TrainingConfig(epochs=0, tensorboard=False)), tmp_path / "run")
    opened = Run(tmp_path / "run")
    rows = opened.predict([folder])
    assert sum(row["class"] == "abc"[i % 3] for i, row in enumerate(rows)) >= 57
    # nodes of a graph that has grown are recognised; with lost edges of known nodes it is another graph
    rows = opened.predict([friends(tmp_path / "b", more=9)])
    assert sum(row["class"] == "abc"[i % 3] for i, row in enumerate(rows)) >= 65
    # by default means over neighbours are read too, which change when a graph grows
    whole = dataclasses.replace(config, model=NodeMachine.Config(num_trees=2))
    train(Run.Config(task=whole, training=TrainingConfig(epochs=0, tensorboard=False)), tmp_path / "default")
    rows = Run(tmp_path / "default").predict([friends(tmp_path / "b", more=9)])
    assert sum(row["class"] == "abc"[i % 3] for i, row in enumerate(rows)) >= 65
    first = opened.task
    assert isinstance(first, NodeLearning)
    known = first.splits.train.nodes.tolist()
    graph = open_graphs(folder)
    is_known = torch.zeros(60, dtype=torch.bool)
    is_known[known] = True
    within = is_known[graph.edge_index].all(0)
    assert first._known_in(graph).tolist() == known  # pyright: ignore[reportPrivateUsage]
    assert set(first._known_in(graph.with_edges(within)).tolist()) == {-1}  # pyright: ignore[reportPrivateUsage]


def test_a_directed_graph_that_lost_an_edge_of_known_nodes_is_not_recognised(tmp_path: Path) -> None:
    folder = friends(tmp_path / "a")
    config = NodeLearning.Config(data=str(folder), directed=True, model=NodeMachine.Config())
    built = dataclasses.replace(config, inputs=dataclasses.replace(config.inputs, degrees=True)).build()
    graph, known = open_graphs(folder, is_directed=True), built.splits.train.nodes
    is_known = torch.zeros(60, dtype=torch.bool)
    is_known[known] = True
    source, target = is_known[graph.edge_index]
    for lost in (source & ~target, target & ~source):
        others = graph.with_edges(~lost)
        assert built._known_in(graph).tolist() == known.tolist()  # pyright: ignore[reportPrivateUsage]
        assert set(built._known_in(others).tolist()) == {-1}  # pyright: ignore[reportPrivateUsage]


def test_nodes_without_targets_are_in_no_split(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a", targets=True)
    nodes = folder / "nodes.csv"
    nodes.write_text(re.sub(r"n(\d*[05]),[\d.]+,", r"n\1,,", nodes.read_text()))
    built = NodeLearning.Config(data=str(folder), model=SMALL, valid_fraction=0.2).build()
    parts = (built.splits.train, built.held_out("valid"), built.held_out("test"))
    found = sorted(int(i) for part in parts for i in part.nodes)
    assert found == [i for i in range(30) if i % 5]
    assert len(built.predict(built.model().eval(), [folder], torch.device("cpu"))) == 30


def test_groups_of_nodes_with_targets_are_left_out_together(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "a", targets=True)
    header, *lines = (folder / "nodes.csv").read_text().splitlines()
    marked = [f"{line},g{i % 6}" for i, line in enumerate(lines)]
    (folder / "nodes.csv").write_text("\n".join([f"{header},group", *marked]))
    machine: dict[str, Any] = {"data": str(folder), "model": NodeMachine.Config(num_trees=0)}
    built = NodeLearning.Config(**machine).build()
    parts = [{int(i) % 6 for i in nodes} for nodes in (built.splits.train.nodes, built.held_out("test").nodes)]
    assert parts[0].isdisjoint(parts[1])
    assert built.num_held_out("valid") == 0
    seen, model = list[Any](), built.model()
    assert isinstance(model, NodeMachine)
    model.fit = lambda *_, groups: seen.append(groups)  # pyright: ignore[reportAttributeAccessIssue]
    built.initialise(model, torch.device("cpu"))
    assert len(seen[0].unique()) == len(parts[0])
    (folder / "nodes.csv").write_text("\n".join([f"{header},time", *(f"{row},{i}" for i, row in enumerate(lines))]))
    timed = NodeLearning.Config(**machine, split_by="time").build()
    assert timed.held_out("test").nodes.tolist() == list(range(24, 30))


def test_recommended_settings_for_numbers(tmp_path: Path) -> None:
    data = str(two_groups(tmp_path / "a", targets=True))
    config, schedule, *_ = NodeLearning.Config(data=data).recommended("small")
    assert isinstance(config, NodeLearning.Config)
    assert config.model == NodeMachine.Config()
    assert (config.inputs.degrees, config.inputs.surroundings, schedule.epochs) == (True, True, 0)
    assert not config.build().learns_by_steps
    (note,) = NodeLearning.Config(data=data).recommended("small", epochs=5).notes
    assert note == f"epochs=5 takes a network; without it there is {MACHINE}"
    network, _, notes = NodeLearning.Config(data=data, model=dataclasses.replace(SMALL, depth=1)).recommended(
        "small", epochs=5
    )
    assert notes == ()
    assert isinstance(network, NodeLearning.Config)
    assert isinstance(network.model, ITNet.Config)


def test_recommended_settings_for_classes_of_nodes_with_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = NodeLearning.Config(data=str(two_groups(tmp_path / "a")))
    config, schedule, notes = given.recommended("small")
    assert isinstance(config, NodeLearning.Config)
    assert (config.model, schedule.epochs, notes) == (NodeMachine.Config(), 0, ())
    dropped = dataclasses.replace(given, inputs=dataclasses.replace(given.inputs, feature_dropout=0.3))
    for requested, expected in (
        (dataclasses.replace(given, valid_fraction=0.2), "valid_fraction=0.2"),
        (dropped, None),
    ):
        network, _, notes = requested.recommended("small")
        assert isinstance(network, NodeLearning.Config)
        assert isinstance(network.model, ITNet.Config)
        assert notes == (() if expected is None else (f"{expected} takes a network; without it there is {MACHINE}",))
    monkeypatch.setattr(node_learning, "MOST_OF_MACHINE", given.build().num_train - 1)
    assert given.recommended("small").config.build().learns_by_steps
    numbers = NodeLearning.Config(data=str(two_groups(tmp_path / "b", targets=True)))
    assert not numbers.recommended("small").config.build().learns_by_steps


def test_a_network_has_a_machine_where_a_validation_split_can_choose_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(two_groups(tmp_path / "a"))

    def count(**settings: Any) -> int | None:
        found: Any = NodeLearning.Config(data=data, **settings).recommended("small", epochs=5).config
        return found.node_machine

    built = NodeLearning.Config(data=data).build()
    num_edges = open_graphs(data).edge_index.shape[1]
    assert count() == built.num_train == 21
    assert count(node_machine=0) == count(objective="loss") == count(valid_fraction=0.0) == 0
    assert NodeLearning.Config(data=data, node_machine=9).with_stack(SMALL).node_machine == 0
    for name, enough, too_few in (("MOST_BESIDE", 21, 20), ("MOST_WALKED", 21 * num_edges, 21 * num_edges - 1)):
        with monkeypatch.context() as at:
            at.setattr(node_learning, name, enough)
            assert count() == 21
            at.setattr(node_learning, name, too_few)
            assert count() == 0


def test_a_machine_beside_a_network(tmp_path: Path) -> None:
    data = two_groups(tmp_path / "a")
    given = NodeLearning.Config(data=str(data), model=SMALL, inputs=PLACED, node_machine=21, valid_fraction=0.2)
    training = TrainingConfig(epochs=1, learning_rate=1e-6, tensorboard=False)
    result = train(Run.Config(task=given, training=training), tmp_path / "run")
    run = Run(tmp_path / "run")
    model = run.model()
    assert isinstance(model, BlendedNodes)
    assert float(model.share) < 1
    assert result.metrics["accuracy"] > 0.8
    assert result.metrics == run.evaluate()
    rows = run.predict([data])
    assert sum(row["class"] == ("left" if i < 15 else "right") for i, row in enumerate(rows)) >= 28
    built, nodes = run.task, torch.arange(6)
    assert isinstance(built, NodeLearning)
    batch, device = built.held_out_batch("test", nodes), torch.device("cpu")
    model.share.fill_(0.25)
    outputs, _, _ = built.outputs_and_targets(model, "test", nodes)
    known = torch.tensor([int(name[1:]) for name in built.facts.known])
    assert known.tolist() == built.splits.train.nodes.tolist()
    machine = model.fitted(KnownNodes(graphs_in(built._whole), known))[batch["nodes"]]
    network, _, _ = built.outputs_and_targets(model.network, "test", nodes)
    torch.testing.assert_close(outputs, 0.75 * machine + 0.25 * network)
    signs = {"signs": -torch.ones(6, 8)}
    assert not torch.equal(built.loss(model.train(), batch), built.loss(model, batch | signs))
    with refused(ValueError, "the model reads graphs"):
        built.tensor_form(model)
    other = two_groups(tmp_path / "b", size=12)
    model.eval().fitted.share.fill_(0.5)
    with pytest.warns(UserWarning, match="is another graph than that of training"):
        rows = built.predict(model, [other], device)
    there = dataclasses.replace(built.config, data=str(other)).build(built.facts)
    with pytest.warns(UserWarning, match="is another graph than that of training"):
        batch = there.held_out_batch("test", torch.arange(4))
    predicted = [rows[node]["class"] for node in batch["nodes"].tolist()]
    outputs, _, _ = there.outputs_and_targets(model, "test", torch.arange(4))
    assert predicted == [there.target.names[k] for k in outputs.argmax(1).tolist()]
    model.share.fill_(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built.predict(model, [other], device)


def test_a_machine_without_effect_is_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"node_machine": 1}, "nodes: node_machine must be at least 2; got 1"),
        ({"node_machine": 9, "objective": "loss"}, "objective='loss' is of the network alone, beside node_machine=9"),
        ({"node_machine": 9, "model": NodeMachine.Config()}, "node_machine=9 has no effect with model=NodeMachine"),
        ({"node_machine": 9, "valid_fraction": 0.0}, "node_machine is 9, whose share is chosen by a validation split"),
    ):
        with refused(ValueError, message):
            task(tmp_path / "a", **{"inputs": GraphInputs(positions="none"), **settings})


def test_bad_settings_for_numbers_are_refused(tmp_path: Path) -> None:
    machine = NodeMachine.Config()
    for settings, message in (
        ({"train_per_class": 3}, "train_per_class=3 has no effect with numbers, which have no classes"),
        ({"class_weights": "balanced"}, "class_weights='balanced' has no effect with numbers"),
        ({"objective": "accuracy"}, "objective is 'accuracy'; expected one of mean_absolute_error"),
        ({"model": machine, "valid_fraction": 0.3}, "valid_fraction=0.3 has no effect with model=NodeMachine"),
        (
            {"model": machine, "inputs": GraphInputs(positions="laplacian")},
            "inputs: positions='laplacian' has no effect with model=NodeMachine",
        ),
    ):
        with refused(ValueError, message):
            numbers(tmp_path / "a", **settings)
    one = tmp_path / "one"
    for header, cell, message in (
        ("target", "5", "all training values of 'target' of"),
        ("target", "", "has no labels of nodes and no targets; give some nodes one"),
    ):
        two_groups(one, targets=True)
        nodes = one / "nodes.csv"
        nodes.write_text(re.sub(r"(n\d+),[\d.]+,", rf"\1,{cell},", nodes.read_text()))
        assert header in nodes.read_text()
        with refused(ValueError, message):
            NodeLearning.Config(data=str(one), model=machine).build()
