"""The bank of neighbourhoods: its features node by node from their definition, and inputs that it ignores."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm.domains import Graph
from fredholm.encoders import GraphBatch
from fredholm.models import FeatureBlock, GraphReading, NeighbourhoodBank, RidgeHead
from fredholm.models.fitted.graphs.neighbourhood_bank import SCALES, neighbourhoods, read_graphs
from fredholm.models.fitted.ridge_head import SHARES
from fredholm.tasks.targets import ClassTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b"))
READING = GraphReading(features=3, pos_dim=1, edge_dim=2)


def bank(reading: GraphReading = READING, **settings: Any) -> NeighbourhoodBank:
    torch.manual_seed(0)
    return NeighbourhoodBank.Config(**{"num_waves": 300, **settings}).build(reading, 2)


def batch(size: int = 5, nodes: int = 6, edges: int = 9) -> GraphBatch:
    """Graphs of 1 to `nodes` nodes with every optional part; no edge ends at node 0 of each."""
    counts = torch.arange(size) % nodes + 1
    ends = torch.full((size, 2, edges), -1)
    for i, count in enumerate(counts.tolist()):
        own = edges - i % 2
        if count > 1:
            ends[i, 0, :own] = torch.randint(count, (own,))
            ends[i, 1, :own] = torch.randint(1, count, (own,))
    mask = torch.arange(nodes) < counts[:, None]
    weights = torch.rand(size, nodes) + 0.1
    return GraphBatch(
        torch.randn(size, nodes, 3),
        ends,
        torch.zeros(size, nodes, 1),
        mask,
        torch.rand(size, edges),
        torch.randn(size, edges, 2),
        weights * mask / (weights * mask).sum(1, keepdim=True),
        torch.randint(2, (size, nodes)),
        torch.randint(2, (size, edges)),
    )


def some(graphs: GraphBatch, indices: slice) -> GraphBatch:
    """Some of the graphs of a batch."""
    return GraphBatch(*(None if part is None else part[indices] for part in graphs))  # pyright: ignore[reportArgumentType]


def by_loop(built: NeighbourhoodBank, graphs: GraphBatch) -> Tensor:
    """The waves, from the definition alone, in float64."""
    rows = []
    assert graphs.mask is not None
    assert graphs.edge_weights is not None
    assert graphs.edge_features is not None
    assert graphs.weights is not None
    for i in range(len(graphs.features)):
        count = int(graphs.mask[i].sum())
        h, weights = graphs.features[i, :count].double(), graphs.weights[i].double()
        edges = [
            (int(w), int(v), float(a) * float(weights[w]), e.double())
            for (w, v), a, e in zip(
                graphs.edge_index[i].T, graphs.edge_weights[i], graphs.edge_features[i], strict=True
            )
            if w >= 0
        ]

        def average(values: list[Tensor], v: int, edges: Any = edges) -> Tensor:
            """The weighted mean of the values of the edges that end at v."""
            own = [(a, value) for (_, end, a, _), value in zip(edges, values, strict=True) if end == v]
            mass = sum(a for a, _ in own)
            return sum((a * value for a, value in own), torch.zeros(values[0].shape).double()) / (mass or 1.0)

        found = [e for *_, e in edges] or [torch.zeros(2).double()][:0]
        u = [torch.cat([h[v], average(found, v) if edges else torch.zeros(2).double()]) for v in range(count)]
        parts = [u]
        for _ in range(built.config.hops):
            last = parts[-1]
            parts.append(
                [average([last[w] for w, *_ in edges], v) if edges else torch.zeros(5).double() for v in range(count)]
            )
        z = torch.stack([torch.cat([part[v] for part in parts]) for v in range(count)])
        angles = float(built.scale) / math.sqrt(z.shape[1]) * z @ built.directions.double() + built.phases.double()
        share = weights[:count, None] / weights[:count].sum()
        mean = (share * angles.cos()).sum(0)
        rows.append(torch.cat([mean, (share * (angles.cos() - mean).square()).sum(0).sqrt()]))
    return torch.stack(rows)


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_features_are_means_and_deviations_of_waves_over_neighbourhoods(hops: int, scale: float) -> None:
    built, graphs = bank(hops=hops, num_colours=50), batch()
    built.scale.fill_(scale)
    expected = by_loop(built, graphs)
    built.fit([(graphs, torch.tensor([0, 1, 0, 1, 1]))], CLASSES)
    built.scale.fill_(scale)
    waves, colours = built.features(graphs).split([600, 50], 1)
    torch.testing.assert_close(waves.double(), expected, rtol=1e-4, atol=2e-5)
    assert not expected[0, 300:].abs().max() > 1e-6  # a single node has no variation
    assert not waves[0, 300:].any()
    u, domain = read_graphs(built.encoder, graphs)
    assert built.colours is not None
    assert torch.equal(colours, built.colours(graphs, domain, u.dtype))
    nodes = torch.arange(5) + 1.0
    if hops < 3:  # otherwise there are more than 50 colours
        torch.testing.assert_close(colours.square().sum(1), (hops + 1) * nodes)


def test_edges_and_nodes_of_weight_0_and_padding_change_nothing() -> None:
    built, graphs = bank(), batch()
    built.fit([(graphs, torch.tensor([0, 1, 0, 1, 1]))], CLASSES)
    expected = built(graphs)
    assert graphs.mask is not None
    noise = torch.where(graphs.mask[..., None], graphs.features, torch.nan)
    torch.testing.assert_close(built(graphs._replace(features=noise)), expected)
    torch.testing.assert_close(built(some(graphs, slice(2, 3))), expected[2:3])
    assert graphs.edge_weights is not None
    idle = graphs._replace(edge_weights=torch.cat([torch.zeros(5, 3), graphs.edge_weights[:, 3:]], 1))
    removed = graphs._replace(edge_index=torch.cat([torch.full((5, 2, 3), -1), graphs.edge_index[..., 3:]], 2))
    torch.testing.assert_close(built(idle), built(removed))
    assert not torch.allclose(built(idle), expected)


def test_without_masks_weights_and_edges() -> None:
    plain = GraphReading(features=3, pos_dim=1)
    built, u = bank(plain, num_colours=0), torch.randn(2, 4, 3)
    none = torch.zeros(2, 2, 0, dtype=torch.int64)
    found = built.features(GraphBatch(u, none, torch.zeros(2, 4, 1)))
    got = GraphBatch(u, none, torch.zeros(2, 4, 1), weights=torch.full((2, 4), 0.25))
    torch.testing.assert_close(found, built.features(got))
    z = torch.cat([u, torch.zeros(2, 4, 6)], 2)
    waves = (z @ built.directions / 3 + built.phases).cos()
    torch.testing.assert_close(found, torch.cat([waves.mean(1), waves.std(1, correction=0)], 1), rtol=1e-4, atol=1e-5)


def test_the_inner_product_of_means_approximates_the_gaussian_kernel() -> None:
    built, graphs = bank(num_waves=40_000, hops=0), batch(2)
    built.scale.fill_(1.5)
    mean = built.features(graphs)[:, :40_000]  # colours come last
    zs = []
    for i in range(2):
        one = some(graphs, slice(i, i + 1))
        u, domain = built.encoder(one)
        assert isinstance(domain, Graph)
        zs.append(neighbourhoods(u, domain, built.config.hops)[: i + 1])
    gauss = torch.exp(-(1.5**2) * torch.cdist(zs[0], zs[1]).square() / (2 * zs[0].shape[1]))
    assert graphs.weights is not None
    expected = graphs.weights[0, :1] @ gauss @ graphs.weights[1, :2]
    torch.testing.assert_close(2 / 40_000 * mean[0] @ mean[1], expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("num_colours", [0, 60])
def test_the_fit_uses_the_scale_and_shares_with_the_smallest_errors(num_colours: int) -> None:
    graphs = batch(30)
    assert graphs.kinds is not None
    labels = (graphs.features[:, 0, 0] + 2 * graphs.kinds[:, 0] > 1).long()
    built = bank(num_waves=50, num_colours=num_colours)
    parts = [(some(graphs, slice(k, None, 2)), labels[k::2]) for k in (0, 1)]
    built.fit(parts, CLASSES)
    order = torch.cat([torch.arange(30)[k::2] for k in (0, 1)])
    best = None
    for scale in SCALES:
        other = bank(num_waves=50, num_colours=0)
        other.scale.fill_(scale)
        waves = other.features(graphs)[order]
        head = RidgeHead(100, 2, further=[FeatureBlock(50)])
        head.fit(waves, labels[order], CLASSES)
        if best is None or head.error < best[1].error:
            best = scale, head, waves
    assert best is not None
    scale, head, waves = best
    assert float(built.scale) == scale
    if built.colours is not None:
        u, domain = read_graphs(built.encoder, graphs)
        both = torch.cat([waves, built.colours(graphs, domain, u.dtype)[order]], 1)
        share, heads = float(head.shares[1]), []
        for last in SHARES:
            further = [FeatureBlock(50), FeatureBlock(num_colours, standardised=False)]
            heads.append(RidgeHead(100 + num_colours, 2, further=further))
            shares = ((1 - last) * (1 - share), (1 - last) * share, last)
            heads[-1].fit(both, labels[order], CLASSES, shares=[shares])
        head = min(heads, key=lambda each: float(each.error))
        assert 0 < float(head.shares[2]) < 1
    torch.testing.assert_close(built.head.weight, head.weight)
    torch.testing.assert_close(built.head.shares, head.shares)
    assert float(built.head.error) == pytest.approx(float(head.error))


def test_the_scale_is_chosen_by_a_sample_of_many_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredholm.models.fitted.graphs.neighbourhood_bank.CHOSEN_BY", 10)
    seen: list[int] = []
    has_groups = False
    fit = RidgeHead.fit

    def watched(head: RidgeHead, features: Tensor, targets: Tensor, *given: Any, **more: Any) -> Any:
        groups = more["groups"]
        assert (groups is not None) == has_groups
        assert groups is None or len(groups) == len(features) == len(targets)
        seen.append(len(features))
        return fit(head, features, targets, *given, **more)

    monkeypatch.setattr(RidgeHead, "fit", watched)
    graphs, labels = batch(25), torch.arange(25) % 2
    bank(num_waves=20).fit(
        [(some(graphs, slice(20)), labels[:20]), (some(graphs, slice(20, 25)), labels[20:])], CLASSES
    )
    assert seen == [10] * len(SCALES) + [10, 25]
    seen.clear()
    has_groups = True
    bank(num_waves=20).fit([(graphs, labels)], CLASSES, groups=torch.arange(25) // 2)
    assert set(seen[:-1]) <= {9, 10}
    assert seen[-1] == 25
    seen.clear()
    bank(num_waves=20).fit([(graphs, labels)], CLASSES, groups=(torch.arange(25) > 2).long())
    assert seen == [25] * (len(SCALES) + 2)  # at least two groups, however large


def test_cycles_and_paths_are_distinguished_by_their_edges_alone() -> None:
    """Equally many nodes, all alike; means over neighbours alone show nothing, walks in `GraphInputs` would."""
    draw = np.random.default_rng(0)
    ends, labels = torch.full((60, 2, 12), -1), torch.arange(60) % 2
    for i in range(60):
        order = torch.from_numpy(draw.permutation(6))
        pairs = torch.stack([order, order.roll(1)])[:, : 6 if labels[i] else 5]
        ends[i, :, : 2 * pairs.shape[1]] = torch.cat([pairs, pairs.flip(0)], 1)
    degree = torch.zeros(60, 6).scatter_add_(1, ends[:, 1].clamp(min=0), (ends[:, 1] >= 0).float())
    graphs = GraphBatch(degree[..., None], ends, torch.zeros(60, 6, 1))
    built = bank(GraphReading(features=1, pos_dim=1), num_waves=64)
    built.fit([(some(graphs, slice(40)), labels[:40])], CLASSES)
    assert torch.equal(built(some(graphs, slice(40, None))).argmax(1), labels[40:])


def bonds(count: int) -> tuple[GraphBatch, Tensor]:
    """A node between two others of two kinds: the class says which edge leads to which, with one in five wrong.

    Means of nodes and of edges are the same for both classes.
    """
    labels = torch.arange(count) % 2
    turned = torch.where(torch.rand(count) < 0.2, 1 - labels, labels)
    ends = torch.tensor([[1, 2, 0, 0], [0, 0, 1, 2]]).expand(count, -1, -1)
    kinds = torch.tensor([0, 1, 2]).expand(count, -1)
    edge_kinds = torch.stack([turned, 1 - turned, turned, 1 - turned], 1)
    u = torch.nn.functional.one_hot(kinds, 3).float()
    u = u + 0.1 * torch.randn_like(u)
    return GraphBatch(u, ends, torch.zeros(count, 3, 1), kinds=kinds, edge_kinds=edge_kinds), labels


def test_colours_record_which_neighbour_is_joined_by_which_edge() -> None:
    graphs, labels = bonds(300)
    tested, truth = bonds(200)
    reached = []
    for num_colours in (0, 50):
        built = bank(GraphReading(features=3, pos_dim=1), num_waves=64, num_colours=num_colours)
        built.fit([(graphs, labels)], CLASSES)
        reached.append(float((built(tested).argmax(1) == truth).float().mean()))
    assert reached[0] < 0.6
    assert reached[1] > 0.72
    assert built.head.shares[2] > 0.4


def test_a_saved_bank_keeps_its_colours(tmp_path: Path) -> None:
    graphs, labels = bonds(60)
    built = bank(GraphReading(features=3, pos_dim=1), num_waves=64, num_colours=50)
    built.fit([(graphs, labels)], CLASSES)
    torch.save(built.state_dict(), tmp_path / "bank.pt")
    other = bank(GraphReading(features=3, pos_dim=1), num_waves=64, num_colours=50)
    assert not torch.equal(other(graphs), built(graphs))
    other.load_state_dict(torch.load(tmp_path / "bank.pt", weights_only=True))
    assert torch.equal(other(graphs), built(graphs))
    assert built.colours is not None
    assert torch.equal(built.double().colours.known, other.colours.known)  # pyright: ignore[reportOptionalMemberAccess]
    torch.testing.assert_close(built(graphs).float(), other(graphs), rtol=1e-4, atol=1e-5)


def test_features_of_nodes_have_gradients() -> None:
    built, graphs = bank(num_waves=40), batch()
    built.fit([(graphs, torch.tensor([0, 1, 0, 1, 1]))], CLASSES)
    built = built.double()
    mask = graphs.mask
    assert mask is not None

    def compute(u: Tensor) -> Tensor:
        return built(graphs._replace(features=torch.zeros(5, 6, 3).double().masked_scatter(mask[..., None], u)))

    assert torch.autograd.gradcheck(compute, graphs.features[mask].double().flatten().requires_grad_())


def test_autocast_does_not_round_phases() -> None:
    built, graphs = bank(), batch()
    built.fit([(graphs, torch.tensor([0, 1, 0, 1, 1]))], CLASSES)
    built.scale.fill_(8.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = built.features(graphs)
    torch.testing.assert_close(found, built.features(graphs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_features_are_computed_in_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    built, graphs = bank(), batch()
    rounded = graphs.features.to(dtype)
    found = built.features(graphs._replace(features=rounded))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, built.features(graphs._replace(features=rounded.float())))


def test_no_graph_and_a_single_graph() -> None:
    built = bank()
    with refused(ValueError, "models.NeighbourhoodBank", "no graph"):
        built.fit([], CLASSES)
    one = batch(1)
    built.fit([(one, torch.zeros(1, dtype=torch.long))], CLASSES)
    assert built(one).isfinite().all()


def test_bad_arguments_are_refused() -> None:
    graphs = batch()
    with refused(ValueError, "models.NeighbourhoodBank", "too large for float32"):
        bank()(graphs._replace(features=3e38 * torch.ones(5, 6, 3)))
    with refused(ValueError, "encoders.Graph", "2 features of an edge; got 0"):
        bank()(graphs._replace(edge_features=None))
    for settings in ({"hops": -1}, {"num_waves": 0}, {"num_colours": -1}):
        with refused(ValueError, "models.NeighbourhoodBank", *settings):
            NeighbourhoodBank.Config(**settings)
    small: Any = {"features": 1, "pos_dim": 1}
    for name, value in (("features", 0), ("edge_dim", -1), ("pos_dim", 0)):
        with refused(ValueError, "models.GraphReading", name):
            GraphReading(**small | {name: value})
