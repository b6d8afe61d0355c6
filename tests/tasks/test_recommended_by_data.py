"""Settings that graphs, nodes, links, fields and operators take from their data unless set."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm.models import GraphMachine, GraphStackConfig, ITNet, LinkMachine, MLPConfig, OnEdgesConfig
from fredholm.models.kernel_configs import ConstantConfig
from fredholm.tasks import (
    FieldLearning,
    GraphLearning,
    ImageLearning,
    LinkLearning,
    NodeLearning,
    OperatorLearning,
    PointLearning,
    SeriesLearning,
)
from fredholm.tasks.graphs.inputs import GraphInputs
from fredholm.tasks.graphs.link_learning import walks_between
from tests.tasks.graphs.build import rings, two_groups


def kernel_of(config: Any) -> object:
    return config.model.kernel.kernel


def test_graphs_include_their_size_and_a_machine_takes_no_steps(tmp_path: Path) -> None:
    config: Any
    config, schedule, *_ = GraphLearning.Config(data=str(rings(tmp_path / "a"))).recommended("small")
    assert config.model == GraphMachine.Config()
    assert config.inputs.sizes
    assert (schedule.epochs, schedule.patience) == (0, None)
    assert config.build().num_held_out("valid") == 0


def test_networks_that_sum_over_neighbours_use_no_positions(tmp_path: Path) -> None:
    config: Any
    given = GraphLearning.Config(data=str(rings(tmp_path / "a")), model=GraphStackConfig())
    config, schedule, *_ = given.recommended("small")
    assert isinstance(config.model.stack.kernel.kernel, ConstantConfig)
    assert config.model.stack.kernel.edge_mass == "sum"
    assert (config.inputs.sizes, config.inputs.positions, config.model.stack.depth, schedule.batch_size) == (
        True,
        "none",
        4,
        8,
    )
    config.build().model()
    config, *_ = dataclasses.replace(given, inputs=GraphInputs(num_positions=3)).recommended("base")
    assert isinstance(config.model.stack.kernel.kernel, MLPConfig)
    assert (config.inputs.num_positions, config.model.stack.depth, config.model.stack.embed_dim) == (3, 8, 128)
    headed = GraphStackConfig(stack=dataclasses.replace(GraphStackConfig().stack, num_heads=2))
    config, *_ = dataclasses.replace(given, model=headed).recommended("small")
    assert isinstance(config.model.stack.kernel.kernel, MLPConfig)
    assert config.model.stack.num_heads == 2
    config, *_ = dataclasses.replace(given, inputs=GraphInputs(positions="laplacian")).recommended("small")
    assert isinstance(config.model.stack.kernel.kernel, MLPConfig)
    assert config.inputs.positions == "laplacian"


def test_the_size_of_a_graph_is_a_feature_of_its_nodes(tmp_path: Path) -> None:
    shown = {}
    for sizes in (False, True):
        inputs = GraphInputs(num_walks=0, degrees=False, positions="none", sizes=sizes, scale="none")
        task = GraphLearning.Config(data=str(rings(tmp_path / str(sizes))), inputs=inputs).build()
        shown[sizes] = task.splits.train.features
        counts = task.splits.train.num_nodes
    assert torch.equal(shown[True][:, :-1], shown[False])
    found = counts.double().log().repeat_interleave(counts)
    expected = (found - found.mean()) / found.std(correction=0)
    torch.testing.assert_close(shown[True][:, -1].double(), expected, rtol=1e-5, atol=1e-5)


def nodes_of(folder: Path, *, alike: bool) -> str:
    """A ring of 60 nodes whose two classes form halves, or alternate."""
    folder.mkdir()
    labels = ["a" if (i < 30 if alike else i % 2 == 0) else "b" for i in range(60)]
    (folder / "nodes.csv").write_text("id,label,x\n" + "".join(f"{i},{labels[i]},{i % 7}\n" for i in range(60)))
    (folder / "edges.csv").write_text(
        "source,target\n" + "".join(f"{i},{(i + k) % 60}\n" for i in range(60) for k in (1, 59))
    )
    return str(folder)


def test_outputs_are_spread_where_neighbours_have_equal_classes(tmp_path: Path) -> None:
    found: dict[bool, Any] = {}
    for alike in (True, False):
        given = NodeLearning.Config(data=nodes_of(tmp_path / str(alike), alike=alike))
        found[alike], schedule, *_ = given.recommended("small", epochs=5)
        task = given.build()
        assert schedule.batch_size == task.num_train
        # by hand: the share of edges outside the test split that join one class, and the share expected by chance
        assert task.splits.valid is not None
        labels = {
            node: label
            for part in (task.splits.train, task.splits.valid)
            for node, label in zip(part.nodes.tolist(), part.answers.values.tolist(), strict=True)
        }
        ends = [(labels[i], labels[(i + 1) % 60]) for i in range(60) if i in labels and (i + 1) % 60 in labels]
        share = [sum(end == k for pair in ends for end in pair) / (2 * len(ends)) for k in (0, 1)]
        chance = sum(p * p for p in share)
        within = (2 * sum(a == b for a, b in ends) + 8) / (2 * len(ends) + 8)  # both directions, and 8 more
        expected = (within - chance) / (1 - chance)
        assert task.likeness == pytest.approx(expected, abs=1e-6)
        assert (task.likeness > 0.5) == alike
    assert (found[True].model.diffusion, found[False].model.diffusion) == (0.9, 0.0)
    assert (found[True].model.dropout, found[True].inputs.feature_dropout) == (0.5, 0.5)
    given = dataclasses.replace(NodeLearning.Config().model, diffusion=0.3)
    config: Any = NodeLearning.Config(data=str(tmp_path / "False"), model=given).recommended("base")[0]
    assert (config.model.diffusion, config.model.depth, config.model.embed_dim) == (0.3, 4, 128)


@pytest.mark.parametrize("is_predictive", [True, False])
def test_nodes_include_their_structure_where_it_predicts_their_class(tmp_path: Path, is_predictive: bool) -> None:
    drawn = np.random.default_rng(0)
    ends = np.array([(i, int(drawn.integers(i))) for i in range(1, 120)])
    number = np.bincount(ends.ravel(), minlength=120)
    x = drawn.normal(size=120)
    labels = (number > 1) if is_predictive else (x + 0.3 * drawn.normal(size=120) > 0)
    data = tmp_path / "nodes.npz"
    np.savez(data, edges=np.concatenate([ends, ends[:, ::-1]]), features=x[:, None], labels=labels.astype(np.int64))
    config: Any
    config, *_ = NodeLearning.Config(data=str(data)).recommended("small", epochs=5)
    assert config.build().structure_helps is is_predictive
    assert (config.inputs.degrees, config.inputs.surroundings) == (is_predictive, is_predictive)


@pytest.mark.parametrize(("edges", "spreads"), [(0, True), (1, True), (6, False)])
def test_outputs_are_spread_until_some_edges_join_different_classes(edges: int, spreads: bool, tmp_path: Path) -> None:
    known = [f"{i},{i % 3},{'ab'[i % 2]},{'train' if i < 8 else 'test'}" for i in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,x,label,split", *known]) + "\n")
    joined = [(i, i + 1) for i in range(edges)] + [(i, i + 10) for i in range(10, 30)]
    rows = [f"{a},{b}\n{b},{a}\n" for a, b in joined]
    (tmp_path / "edges.csv").write_text("".join(["source,target\n", *rows]))
    config: Any = NodeLearning.Config(data=str(tmp_path)).recommended("small", epochs=5)[0]
    assert config.model.diffusion == (0.9 if spreads else 0.0)


def test_an_explicit_model_stays_even_if_it_is_the_default(tmp_path: Path) -> None:
    rows = [f"{i},{t},{'ab'[i % 2]},{'' if t else i}" for i in range(8) for t in range(9)]
    (tmp_path / "sparse.csv").write_text("\n".join(["series,time,label,value", *rows]) + "\n")
    pixels, labels = np.random.default_rng(0).random((12, 9, 9)), np.arange(12) % 2
    np.savez(tmp_path / "images.npz", x=(255 * pixels).astype(np.uint8), y=labels)
    np.savez(tmp_path / "clouds.npz", x=pixels[..., :3], y=labels)
    configs: list[Any] = [
        NodeLearning.Config(data=nodes_of(tmp_path / "nodes", alike=True)),
        LinkLearning.Config(data=str(tmp_path / "nodes")),
        SeriesLearning.Config(data=str(tmp_path / "sparse.csv")),
        ImageLearning.Config(data=str(tmp_path / "images.npz")),
        PointLearning.Config(data=str(tmp_path / "clouds.npz")),
    ]
    for given in configs:
        free, kept = (given.recommended("small", keeps_model=keeps) for keeps in (False, True))
        assert type(free.config.model) is not type(kept.config.model) is type(given.model)
        assert (kept.schedule.epochs > 0, kept.notes) == (given.model.learns_by_steps, ())


def test_links_get_a_machine_unless_a_setting_of_a_network_is_given(tmp_path: Path) -> None:
    config: Any
    requested = LinkLearning.Config(data=str(two_groups(tmp_path / "a")))
    config, schedule, notes = requested.recommended("small")
    assert (config.model, schedule.epochs, notes) == (LinkMachine.Config(), 0, ())
    config.build()
    walks = dataclasses.replace(requested, inputs=GraphInputs(num_walks=4))
    for settings, expected in (
        (dataclasses.replace(requested, code_dim=4), "code_dim=4 takes"),
        (walks, "inputs takes"),
    ):
        config, schedule, [note] = settings.recommended("small")
        assert isinstance(config.model, ITNet.Config)
        assert schedule.epochs > 0
        assert note == f"{expected} a network; without it there is a link machine, fitted in closed form and better"


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [("", None), (",weight", "weights"), (",years", "features"), (",weight,years", "weights and features")],
)
def test_notes_report_edge_attributes_that_a_link_machine_does_not_read(
    columns: str, wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{i},{(i + k) % 9}" + ",1.5" * columns.count(",") for i in range(9) for k in (1, 8)]
    (tmp_path / "edges.csv").write_text("\n".join([f"source,target{columns}", *rows]) + "\n")
    (tmp_path / "nodes.csv").write_text("\n".join(["id", *map(str, range(9))]) + "\n")
    # slow in large graphs, and read by a network alone
    monkeypatch.setattr("fredholm.tasks.graphs.inputs.walks_back", None)
    config, _, notes = LinkLearning.Config(data=str(tmp_path)).recommended("small")
    assert isinstance(config, LinkLearning.Config)
    assert isinstance(config.model, LinkMachine.Config)
    expected = f"{wanted} of edges are not read by a link machine; --task.model itnet reads them"
    assert notes == (() if wanted is None else (expected,))


def test_link_networks_average_over_neighbours_and_use_large_batches(tmp_path: Path) -> None:
    config: Any
    given = LinkLearning.Config(data=str(two_groups(tmp_path / "a")))
    config, schedule, *_ = given.recommended("small", epochs=3)
    assert isinstance(kernel_of(config), ConstantConfig)
    assert (config.inputs.adds_positions, config.model.depth, schedule.batch_size) == (True, 2, 8)
    assert config.inputs.positions == "laplacian"
    headed = dataclasses.replace(LinkLearning.Config().model, num_heads=2)
    config, *_ = LinkLearning.Config(data=str(tmp_path / "a"), model=headed).recommended("small")
    assert isinstance(kernel_of(config), MLPConfig)
    kernel = OnEdgesConfig(kernel=MLPConfig(width=4), long_range=None)
    requested = dataclasses.replace(LinkLearning.Config().model, kernel=kernel)
    config, *_ = LinkLearning.Config(data=str(tmp_path / "a"), model=requested).recommended("small")
    assert config.model.kernel == kernel
    assert isinstance(requested, ITNet.Config)


def literal_walks(edges: Tensor, size: int, pairs: Tensor) -> Tensor:
    """Walks between two nodes, enumerated one by one."""
    near = [set(edges[1, edges[0] == i].tolist()) for i in range(size)]
    rows = []
    for a, b in pairs.tolist():
        common = near[a] & near[b]
        rare = sum(1 / np.log(max(len(near[c]), 2)) for c in common)
        longer = sum(b in near[d] for c in near[a] for d in near[c])
        rows.append([len(common), rare, longer])
    return torch.tensor(rows).log1p()


def test_walks_between_two_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    some = (torch.rand(9, 9) < 0.3).triu(1)
    edges = (some | some.T).nonzero().T
    pairs = torch.randint(9, (14, 2))
    expected = literal_walks(edges, 9, pairs)
    assert (expected > 0).any(0).all()
    torch.testing.assert_close(walks_between(edges, 9, pairs), expected.float(), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr("fredholm.tasks.graphs.link_learning.CELLS", 30)
    torch.testing.assert_close(walks_between(edges, 9, pairs), expected.float(), rtol=1e-5, atol=1e-6)


def bumps(path: Path, noise: float = 0.0) -> str:
    drawn = np.random.default_rng(0)
    pos, centre = drawn.uniform(-1, 1, (40, 30, 2)), 0.4 * drawn.standard_normal((40, 1, 2))
    values = np.exp(-4 * ((pos - centre) ** 2).sum(-1)) + noise * drawn.standard_normal((40, 30))
    np.savez(path, pos=pos, values=values)
    return str(path)


def test_half_of_a_field_is_shown_and_interpolated_by_a_spline(tmp_path: Path) -> None:
    config: Any
    config, schedule, *_ = FieldLearning.Config(data=bumps(tmp_path / "a.npz")).recommended("small")
    assert (config.shown, config.spline_kernel, config.width, config.model.embed_dim) == (15, "matern52", 32, 64)
    assert config.spline <= 1e-6
    assert config.omega_0 == pytest.approx(np.pi * 15**0.5 / 12**0.5, abs=0.05)
    assert schedule.weight_decay == 1e-4
    task = config.build()
    model, batch = task.model(), task.held_out_batch("valid", torch.arange(2))
    nothing = dataclasses.replace(config, model=dataclasses.replace(config.model, epsilon=1e-12)).build().model()
    alone, begun = (float(task.loss(each, batch).detach()) for each in (nothing, model))
    assert begun == pytest.approx(alone, rel=0.05)  # at first the prediction is the spline alone
    seen = batch | {f"target_{name}": batch[name] for name in ("pos", "values", "mask")}
    assert float(task.loss(model, seen).detach()) < 1e-8
    noisy: Any = FieldLearning.Config(data=bumps(tmp_path / "b.npz", noise=0.3)).recommended("small")[0]
    assert noisy.spline > 1e-4
    kept: Any = FieldLearning.Config(data=str(tmp_path / "a.npz"), shown=4, refine_steps=2, omega_0=7.0).recommended(
        "base"
    )
    assert (kept[0].shown, kept[0].spline, kept[0].omega_0, kept[0].width) == (4, None, 7.0, 64)
    arrays = dict(np.load(tmp_path / "a.npz"))
    arrays["values"][:2, 1:] = np.nan  # two functions of a single sample do not decide for all
    np.savez(tmp_path / "c.npz", **arrays)
    sparse: Any = FieldLearning.Config(data=str(tmp_path / "c.npz"), spline=0.0).recommended("small")[0]
    assert sparse.shown == 15


def test_other_functions_get_no_spline(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", values=drawn.normal(size=(20, 4, 4)), target_values=drawn.normal(size=(20, 4, 4)))
    config: Any = FieldLearning.Config(data=str(tmp_path / "a.npz")).recommended("small")[0]
    assert (config.shown, config.spline) == (None, None)
    with pytest.raises(ValueError, match="spline fits fields to what is shown"):
        dataclasses.replace(config, spline=0.0).build()


def waves(path: Path, *, axes: int, walls: bool = False, ramp: bool = False) -> str:
    drawn, x = np.random.default_rng(0), np.arange(12) / 12
    phase = drawn.uniform(0, 6, (20, 1))
    line = np.sin(np.pi * (x + 1 / 24)) * phase if walls else np.sin(2 * np.pi * x + phase) + (2 * x if ramp else 0)
    values = line if axes == 1 else line[:, :, None] * line[:, None] if walls else line[:, :, None] + line[:, None]
    places: dict[str, Any] = {"pos": x[:, None], "target_pos": x[:, None]} if axes == 1 else {}
    np.savez(path, values=values, target_values=2 * values, **places)
    return str(path)


@pytest.mark.parametrize("axes", [1, 2])
def test_periodic_functions_are_recognised_at_their_borders(axes: int, tmp_path: Path) -> None:
    config: Any
    config, schedule, *_ = OperatorLearning.Config(data=waves(tmp_path / "a.npz", axes=axes)).recommended("small")
    assert config.is_periodic
    assert (config.model.kernel.num_waves_per_axis, config.model.embed_dim) == ((16, 64) if axes == 1 else (6, 32))
    assert (schedule.learning_rate, schedule.weight_decay) == (4e-3, 1e-4)
    assert (config.num_frequencies, config.model.kernel.period) == (0, 1.0)
    config.build().model()
    for name in ("walls", "ramp"):
        own: Any = OperatorLearning.Config(data=waves(tmp_path / f"{name}.npz", axes=axes, **{name: True}))
        own = own.recommended("small")[0]
        assert not own.is_periodic
        assert (own.num_frequencies, own.position_sigma, own.model.kernel.period) == (4, 0.5, 1.25)
    requested: Any = OperatorLearning.Config(data=str(tmp_path / "a.npz"), position_sigma=2.0).recommended("base")[0]
    assert (requested.is_periodic, requested.position_sigma) == (False, 2.0)
    assert requested.model.kernel.num_waves_per_axis == (24 if axes == 1 else 8)
    without: Any = OperatorLearning.Config(data=own.data, position_frequencies=0).recommended("small")[0]
    assert (without.num_frequencies, without.position_sigma) == (0, 1.0)


def test_few_validation_functions_end_no_run_early(tmp_path: Path) -> None:
    for count, stops in ((70, False), (80, True)):
        values = np.random.default_rng(0).normal(size=(count, 8))
        np.savez(tmp_path / f"{count}.npz", values=values, target_values=values)
        config = OperatorLearning.Config(data=str(tmp_path / f"{count}.npz"))
        assert (config.recommended("small").schedule.patience is not None) == stops


def test_scattered_functions_are_not_periodic(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    for name, places in (("own", (20, 30, 2)), ("shared", (30, 2))):
        values = drawn.normal(size=(20, 30))
        pos = drawn.random(places)
        np.savez(tmp_path / f"{name}.npz", pos=pos, values=values, target_pos=pos, target_values=values)
        assert not OperatorLearning.Config(data=str(tmp_path / f"{name}.npz")).build().repeats
