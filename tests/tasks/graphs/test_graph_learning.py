import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fredholm.encoders.graph import GraphBatch
from fredholm.models import GraphMachine, GraphStackConfig, ITNet, MLPConfig, NeighbourhoodBank, OnEdgesConfig
from fredholm.models.fitted import boosted_trees
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import GraphLearning
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.graphs.batches import graphs_in
from fredholm.tasks.graphs.inputs import GraphInputs
from fredholm.tasks.targets import TARGETS, NumberTarget
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused
from tests.tasks.graphs.build import rings, two_groups, write_several

NONE = torch.Generator()
CPU = torch.device("cpu")
STACK = ITNet.Config(
    embed_dim=8,
    depth=2,
    num_heads=2,
    kernel=OnEdgesConfig(kernel=MLPConfig(width=4, num_frequencies=2, sigma=0.5, epsilon=0.1)),
    dropout=0.0,
    drop_path=0.0,
    pool="mean",
)
SMALL = GraphStackConfig(stack=STACK)
BANK = NeighbourhoodBank.Config(num_waves=40)
ENDS = {
    "a": [(1, 2), (2, 3), (3, 4), (4, 5), (2, 6), (3, 6)],
    "b": [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (3, 7)],
}
CROOKED = {
    "nodes": "\n".join(
        ["graph,id,heat", *(f"{graph},{k},{k * k % 5}" for graph in "ab" for k in range(1, 7 + (graph == "b")))]
    ),
    "edges": "\n".join(
        ["graph,source,target,long"]
        + [
            f"{graph},{x},{y},{one + other}"
            for graph in "ab"
            for one, other in ENDS[graph]
            for x, y in ((one, other), (other, one))
        ]
    ),
    "graphs": "graph,label,split\na,x,train\nb,y,val\n",
}
"""Two graphs of different sizes without symmetries, with which the signs of positions would be ambiguous."""


def task(folder: Path, **settings: Any) -> GraphLearning:
    return GraphLearning.Config(**{"data": str(rings(folder)), "model": SMALL, **settings}).build()


def test_batches_hold_graphs_of_any_size(tmp_path: Path) -> None:
    built = task(tmp_path / "rings")
    assert (built.num_train, built.num_held_out("valid")) == (16, 3)
    assert built.facts.target.names == ("line", "ring")
    train, indices = built.splits.train, torch.tensor([4, 0, 7])
    batch = built.train_batch(indices, torch.Generator().manual_seed(0))
    assert torch.equal(batch["mask"].sum(1), train.num_nodes[indices])
    assert torch.equal(built.train_lengths, train.num_nodes)
    assert train.labels is not None
    assert torch.equal(batch["targets"], train.labels[indices])
    assert built.num_targets(batch) == 3
    assert list(built.held_out_batch("valid", torch.arange(2)))[:3] == ["targets", "features", "edge_index"]


def test_training_flips_the_signs_of_positions(tmp_path: Path) -> None:
    built, indices = task(tmp_path / "rings"), torch.arange(6)
    one, other, again = (built.train_batch(indices, torch.Generator().manual_seed(seed))["pos"] for seed in (0, 1, 0))
    assert torch.equal(one, again)
    assert torch.equal(one.abs(), other.abs())
    turned = (one != other).any(1)  # all nodes of a graph in a coordinate, or none
    assert len(turned.unique(dim=0)) > 1
    assert len(turned.unique(dim=1)[0]) > 1
    assert torch.equal((one == -other).all(1) | ~turned, torch.ones_like(turned))
    still = task(tmp_path / "rings", inputs=GraphInputs(flip_signs=False))
    assert torch.equal(still.train_batch(indices, torch.Generator().manual_seed(1))["pos"].abs(), one.abs())
    assert torch.equal(still.train_batch(indices, NONE)["pos"], still.train_batch(indices, NONE)["pos"])
    assert torch.equal(
        built.held_out_batch("valid", torch.arange(2))["pos"], still.held_out_batch("valid", torch.arange(2))["pos"]
    )


def test_the_loss_is_cross_entropy_summed_over_graphs(tmp_path: Path) -> None:
    built = task(tmp_path / "rings")
    model, batch = built.model().eval(), built.held_out_batch("valid", torch.arange(2))
    logits = model(graphs_in(batch))
    assert logits.shape == (2, 2)
    torch.testing.assert_close(built.loss(model, batch), F.cross_entropy(logits, batch["targets"]) * 2)
    metrics = built.metrics()
    built.score(model, batch, metrics)
    assert set(metrics) == {"accuracy", "balanced_accuracy", "macro_f1", "matthews", "auroc", "loss"}
    torch.testing.assert_close(metrics["loss"].compute(), built.loss(model, batch) / 2, check_dtype=False)
    assert float(metrics["accuracy"].compute()) == float((logits.argmax(1) == batch["targets"]).float().mean())


def test_numbers_are_standardised_and_measured_in_their_unit(tmp_path: Path) -> None:
    built = GraphLearning.Config(data=str(rings(tmp_path / "sizes", targets=True)), model=SMALL).build()
    train = built.splits.train
    assert train.targets is not None
    target = built.facts.target
    assert isinstance(target, NumberTarget)
    assert target.names == ("target",)
    assert built.objective.metric == "mean_absolute_error"
    torch.testing.assert_close(target.mean[0], float(train.targets.mean()))
    every = built.train_batch(torch.arange(built.num_train), NONE)["targets"]
    torch.testing.assert_close(every.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(every.std(correction=0), torch.tensor(1.0))
    model, batch, metrics = (
        built.model().eval(),
        built.held_out_batch("valid", torch.arange(built.num_held_out("valid"))),
        built.metrics(),
    )
    model.requires_grad_(False)
    built.score(model, batch, metrics)
    measured = built.held_out("valid")
    assert measured.targets is not None
    predicted = model(graphs_in(batch)) * target.deviation[0] + target.mean[0]
    errors = predicted.detach() - measured.targets
    torch.testing.assert_close(float(metrics["mean_absolute_error"].compute()), float(errors.abs().mean()))
    torch.testing.assert_close(
        float(metrics["root_mean_squared_error"].compute()), float(errors.square().mean().sqrt())
    )
    rows = built.predict(model, [Path(built.config.data)], CPU)
    names = [row["graph"] for row in rows]
    at = names.index(measured.names[0])
    assert rows[at]["target"] == pytest.approx(float(predicted[0]), abs=1e-5)


def test_splits_and_folds(tmp_path: Path) -> None:
    own = str(rings(tmp_path / "own", split=True))
    built = GraphLearning.Config(data=own, model=SMALL).build()
    assert (built.num_train, built.num_held_out("valid")) == (12, 6)
    names = built.held_out("valid").names
    assert {int(name[1:]) % 4 for name in names} == {1}
    assert not set(built.held_out("test").names) & {*names, *built.splits.train.names}
    folds = [task(tmp_path / "rings", num_folds=4, fold=fold).held_out("test").names for fold in range(4)]
    assert sorted(name for names in folds for name in names) == sorted(f"g{i}" for i in range(24))


def model_and_logits(
    folder: Path, model: Any = None, **tables: str
) -> tuple[GraphLearning, Any, dict[str, torch.Tensor]]:
    """A task on `CROOKED`, with tables replaced where given, its model, and its logits by graph name."""
    built = GraphLearning.Config(data=str(write_several(folder, **(CROOKED | tables))), model=SMALL).build()
    if model is None:
        torch.manual_seed(0)
        model = built.model().eval()
    found = {}
    for graphs, batch in (
        (built.splits.train, built.train_batch),
        (built.held_out("valid"), lambda i, _: built.held_out_batch("valid", i)),
    ):
        given = batch(torch.arange(len(graphs)), torch.Generator())
        given["pos"] = graphs.pos[None] if graphs.pos is not None else given["pos"]  # without flipped signs
        found |= dict(zip(graphs.names, model(graphs_in(given)), strict=True))
    return built, model, found


def test_the_order_of_nodes_and_edges_changes_nothing(tmp_path: Path) -> None:
    _, model, expected = model_and_logits(tmp_path / "one")
    turned = {}
    for name in ("nodes", "edges", "graphs"):
        header, *rows = CROOKED[name].splitlines()
        turned[name] = "\n".join([header, *rows[::-1]])
    _, _, found = model_and_logits(tmp_path / "other", model, **turned)
    for name, logits in expected.items():
        torch.testing.assert_close(found[name], logits, atol=1e-6, rtol=0)


def test_padding_and_batch_mates_change_nothing(tmp_path: Path) -> None:
    built = task(tmp_path / "rings", inputs=GraphInputs(flip_signs=False))
    model = built.model().eval()
    together = model(graphs_in(built.train_batch(torch.arange(16), NONE)))
    alone = torch.cat([model(graphs_in(built.train_batch(torch.tensor([i]), NONE))) for i in range(16)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    batch = graphs_in(built.train_batch(torch.arange(16), NONE))
    assert batch.mask is not None
    noise = torch.where(batch.mask[..., None], batch.features, torch.nan)
    torch.testing.assert_close(model(batch._replace(features=noise)), together, atol=1e-6, rtol=0)


def test_edges_and_their_features_and_weights_change_the_logits(tmp_path: Path) -> None:
    built, model, expected = model_and_logits(tmp_path / "one")
    batch = graphs_in(built.held_out_batch("valid", torch.tensor([0])))
    assert batch.edge_features is not None

    @torch.no_grad()
    def moved(other: GraphBatch) -> float:
        return float((model(other) - model(batch)).abs().max())

    assert moved(batch) == 0.0
    assert moved(batch._replace(edge_features=batch.edge_features + 1)) > 1e-6
    less = batch.edge_index.clone()
    less[:, :, :2] = -1
    assert moved(batch._replace(edge_index=less)) > 1e-6
    assert moved(batch._replace(edge_weights=torch.rand(batch.edge_index.shape[0], batch.edge_index.shape[2]))) > 1e-6
    assert moved(batch._replace(weights=torch.tensor([[0.7, 0.2, 0.1, 0, 0, 0, 0]]))) > 1e-6
    assert set(expected) == {"a", "b"}


def test_a_run_predicts_without_its_data(tmp_path: Path) -> None:
    data = rings(tmp_path / "rings")
    config = Run.Config(
        task=GraphLearning.Config(data=str(data), model=SMALL),
        training=TrainingConfig(epochs=2, batch_size=6, tensorboard=False, ema_decay=0.5),
    )
    result = train(config, tmp_path / "run")
    assert result.split == "test"
    run = Run(tmp_path / "run")
    assert isinstance(run.task, GraphLearning)
    moved = data.rename(tmp_path / "elsewhere")
    (moved / "graphs.csv").unlink()
    rows = run.predict([moved])
    assert [list(row) for row in rows] == [["file", "graph", "class", "probability"]] * 24
    assert [row["graph"] for row in rows] == [f"g{i}" for i in range(24)]
    assert {row["class"] for row in rows} <= {"ring", "line"}
    json.dumps([row.row() for row in rows])


def test_facts_and_config_survive_json(tmp_path: Path) -> None:
    built = task(tmp_path / "rings", num_folds=4, fold=2)
    of_bank = task(tmp_path / "rings", model=BANK)
    assert of_bank.facts.preparation.kinds is not None
    for value, kinds in (
        (of_bank.facts, (GraphLearning.Facts, *TARGETS)),
        (built.facts, (GraphLearning.Facts, *TARGETS)),
        (built.config, (GraphLearning.Config, *GraphLearning.parts)),
    ):
        assert from_json(json.loads(json.dumps(to_json(value))), type(value), kinds) == value
    assert built.config.build(built.facts).num_train == built.num_train


def test_other_data_are_evaluated_if_the_model_can_read_them(tmp_path: Path) -> None:
    built = task(tmp_path / "rings")
    more = dataclasses.replace(built.config, data=str(rings(tmp_path / "more", count=40)))
    assert more.build(built.facts).num_train > built.num_train
    others = rings(tmp_path / "others")
    graphs = others / "graphs.csv"
    graphs.write_text(graphs.read_text().replace("ring", "wheel"))
    with refused(ValueError, "the targets of ", "are line, wheel; the run was made with the classes line, ring"):
        _ = dataclasses.replace(built.config, data=str(others)).build(built.facts).splits
    wider = dataclasses.replace(built.config, inputs=dataclasses.replace(built.config.inputs, num_walks=9))
    with refused(ValueError, "inputs; the model knows"):
        _ = wider.build(built.facts).splits


def test_one_warning_reports_dropped_and_completed_edges(tmp_path: Path) -> None:
    edges = "graph,source,target\ntri,1,2\ntri,2,3\ntri,3,1\ntri,1,1\nline,1,2\nline,2,3\nline,2,3\n"
    graphs = "graph,label,split\nline,open,train\ntri,closed,val\n"
    built = GraphLearning.Config(data=str(write_several(tmp_path, edges=edges, graphs=graphs)), model=SMALL).build()
    message = "1 edge from a node to itself: dropped; 1 edge listed again: counted once; 5 edges listed one way: taken"
    with pytest.warns(UserWarning, match=message):
        _ = built.splits
    _ = built.splits  # a second warning would be an error


def test_bad_settings_and_data_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"fold": 1}, "fold=1 has no effect with num_folds=None"),
        ({"num_folds": 4, "fold": 4}, "fold is 4 of num_folds=4"),
        ({"num_folds": 4, "test_fraction": 0.3}, "test_fraction=0.3 has no effect with num_folds=4"),
        (
            {"model": GraphStackConfig(stack=dataclasses.replace(STACK, pool="max"))},
            "model.pool is 'max', but a graph",
        ),
        ({"num_folds": 60}, "num_folds is 60; pass a number from 2 to the 24 examples"),
        ({"valid_fraction": 0.9}, "valid_fraction is 0.9"),
        ({"data": ""}, "no graphs are given"),
        ({"data": str(two_groups(tmp_path / "nodes"))}, "fredholm train nodes predicts classes of nodes"),
    ):
        with refused(ValueError, message):
            task(tmp_path / "rings", **settings)
    own = str(rings(tmp_path / "own", split=True))
    for settings, message in (
        ({"num_folds": 4}, "num_folds=4 has no effect with"),
        ({"test_fraction": 0.3}, "test_fraction=0.3 has no effect with"),
        ({"split_seed": 3}, "split_seed=3 has no effect with"),
        ({"valid_fraction": 0.3}, "valid_fraction=0.3 has no effect with"),
    ):
        with refused(ValueError, message, "which has its own split"):
            task(tmp_path / "rings", data=own, **settings)
    graphs = "graph,label,split\nline,open,train\ntri,closed,val\n"
    no_test = write_several(tmp_path / "few", graphs=graphs)
    with pytest.warns(UserWarning, match="5 edges listed one way"):
        assert GraphLearning.Config(data=str(no_test), model=SMALL).build().num_held_out("test") == 0
    one = write_several(tmp_path / "one", graphs="graph,label,split\nline,open,train\ntri,open,val\n")
    with refused(ValueError, "has the classes ['open']; expected at least 2"):
        task(tmp_path / "rings", data=str(one))
    alike = write_several(tmp_path / "alike", graphs="graph,target,split\nline,3,train\ntri,4,val\n")
    with refused(ValueError, "all training values of 'target' of", "are 3; expected at least 2 of them"):
        task(tmp_path / "rings", data=str(alike))


def test_a_bank_is_computed_in_closed_form_from_training_and_validation_data(tmp_path: Path) -> None:
    built = task(tmp_path / "rings", model=BANK)
    assert not built.learns_by_steps
    assert (built.num_train, built.num_held_out("valid"), built.num_held_out("test")) == (19, 0, 5)
    assert not built.splits.train.pos.any()  # pyright: ignore[reportOptionalMemberAccess]
    own = GraphLearning.Config(data=str(rings(tmp_path / "own", split=True)), model=BANK).build()
    assert (own.num_train, own.num_held_out("valid")) == (12, 6)
    config = Run.Config(task=built.config, training=TrainingConfig(epochs=0, tensorboard=False))
    result = train(config, tmp_path / "run")
    assert result.metrics["accuracy"] == 1.0  # walks distinguish rings from lines
    run = Run(tmp_path / "run")
    assert isinstance(run.model("best"), NeighbourhoodBank)
    rows = run.predict([Path(built.config.data)])
    assert {(row["graph"], row["class"]) for row in rows[:2]} == {("g0", "ring"), ("g1", "line")}


def nitro(folder: Path, count: int = 80, *, odd: bool = False) -> Path:
    """Chains whose third atom has a double bond to oxygen and a single bond to sulphur, or the reverse.

    With `odd`, the first atom is of another kind.
    """
    tables = {"nodes": "graph,id,n,o,s,c", "edges": "graph,source,target,double", "graphs": "graph,label"}
    atoms = {"N": "1,0,0,0", "O": "0,1,0,0", "S": "0,0,1,0", "C": "0,0,0,1", "X": "0,0,0,7"}
    for i in range(count):
        size = 1 + i % 5
        chain = (["X"] if odd else ["C"]) + ["C"] * (size - 1) + ["N", "O", "S"]
        joined = [(k, k + 1, 0) for k in range(size)] + [(size, size + 1, i // 5 % 2), (size, size + 2, 1 - i // 5 % 2)]
        tables["nodes"] += "".join(f"\ng{i},{k},{atoms[atom]}" for k, atom in enumerate(chain))
        both = [*joined, *((target, source, double) for source, target, double in joined)]
        tables["edges"] += "".join(f"\ng{i},{source},{target},{double}" for source, target, double in both)
        tables["graphs"] += f"\ng{i},{'ab'[i // 5 % 2]}"
    return write_several(folder, **{name: text + "\n" for name, text in tables.items()})


def test_a_bank_uses_the_kinds_of_atoms(tmp_path: Path) -> None:
    bank = NeighbourhoodBank.Config(num_waves=8, hops=2)
    data = nitro(tmp_path / "data")
    inputs = GraphInputs(num_walks=0)
    config = Run.Config(
        task=GraphLearning.Config(data=str(data), model=bank, inputs=inputs),
        training=TrainingConfig(epochs=0, tensorboard=False),
    )
    assert train(config, tmp_path / "run").metrics["accuracy"] == 1.0
    run = Run(tmp_path / "run")
    assert isinstance(run.task, GraphLearning)
    assert run.task.facts.preparation.kinds is not None
    assert run.task.facts.preparation.kinds.features == ("n", "o", "s", "c")
    assert run.task.facts.preparation.kinds.edge_features == ("double",)
    rows = run.predict([data])
    assert [row["class"] for row in rows] == ["ab"[i // 5 % 2] for i in range(80)]
    strange = run.predict([nitro(tmp_path / "odd", 10, odd=True)])  # an unknown atom
    assert [row["graph"] for row in strange] == [f"g{i}" for i in range(10)]
    network = task(tmp_path / "rings")
    assert network.facts.preparation.kinds is None


def test_a_bank_leaves_out_whole_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor | None] = []
    fit = NeighbourhoodBank.fit

    def watched(model: NeighbourhoodBank, *given: Any, groups: torch.Tensor | None = None) -> None:
        seen.append(groups)
        fit(model, *given, groups=groups)

    monkeypatch.setattr(NeighbourhoodBank, "fit", watched)
    for name in ("alone", "grouped"):
        data = rings(tmp_path / name)
        if name == "grouped":
            header, *lines = (data / "graphs.csv").read_text().splitlines()
            lines = [f"{line},p{i // 4}" for i, line in enumerate(lines)]
            (data / "graphs.csv").write_text("\n".join([f"{header},group", *lines]) + "\n")
        built = task(tmp_path, data=str(data), model=BANK)
        built.initialise(built.model(), CPU)
    alone, grouped = seen
    assert alone is None
    assert grouped is not None
    assert set(grouped.bincount().tolist()) == {4}


def test_settings_that_a_bank_does_not_read_are_refused(tmp_path: Path) -> None:
    for name, value in (
        ("positions", "given"),
        ("positions", "laplacian"),
        ("num_positions", 3),
        ("flip_signs", False),
        ("adds_positions", True),
        ("feature_dropout", 0.5),
    ):
        given: dict[str, Any] = {name: value}
        with refused(ValueError, f"inputs: {name}={value!r} has no effect with model=NeighbourhoodBank"):
            task(tmp_path / "rings", model=BANK, inputs=GraphInputs(**given))
    with refused(ValueError, "valid_fraction=0.2 has no effect with model=NeighbourhoodBank"):
        task(tmp_path / "rings", model=BANK, valid_fraction=0.2)
    for settings in ({"valid_fraction": 0.0}, {"inputs": GraphInputs(positions="none")}):
        assert task(tmp_path / "rings", model=BANK, **settings).num_train == 19


def test_directedness_must_match_the_training_data(tmp_path: Path) -> None:
    open_graphs(rings(tmp_path / "a", one_way=True), is_directed=True).save(tmp_path / "a.npz")
    built = task(tmp_path / "b", data=str(tmp_path / "a.npz"), model=BANK, inputs=GraphInputs(positions="none"))
    assert built.facts.preparation.is_directed
    assert built._read(tmp_path / "a").is_directed  # tables do not record it
    open_graphs(tmp_path / "a").save(tmp_path / "both.npz")
    with refused(ValueError, "directed is False, but edges are to be read as directed"):
        built._read(tmp_path / "both.npz")
    undirected = dataclasses.replace(built.config, data=str(tmp_path / "both.npz")).build()
    with refused(ValueError, "edges are directed; the model was trained on edges without directions"):
        undirected._read(tmp_path / "a.npz")


def test_graphs_with_many_outputs_get_fewer_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "MOST_BOXES", 24)
    data = str(rings(tmp_path / "a"))
    for given, number in ((GraphMachine.Config(), 12), (GraphMachine.Config(num_trees=70), 70)):
        recommended: Any = GraphLearning.Config(data=data, model=given).recommended("small")[0]
        assert recommended.model.num_trees == number
