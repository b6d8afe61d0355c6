"""Node machines: the targets of nearby known nodes are used where that surely helps, and nowhere else."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.encoders import GraphBatch
from fredholm.models import GraphReading, KernelMachine, KnownNodes, NodeMachine
from fredholm.models.fitted.graphs import node_machine
from fredholm.models.fitted.graphs.graph_kernel import GraphSteps, Reach
from fredholm.models.fitted.graphs.graph_positions import positions_of
from fredholm.models.fitted.graphs.node_machine import MOST_FEATURES, NUM_DIRECTIONS, left_out_part
from fredholm.models.fitted.kernel_fit import members_of
from fredholm.models.fitted.ridge_head import Losses
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("quick_choices")  # kernels and trees have their own tests
NUMBER = NumberTarget(names=("height",), mean=(0.0,), deviation=(1.0,))
SIZE, KNOWN = 90, torch.arange(0, 90, 2)


def ring(features: Tensor) -> GraphBatch:
    places = torch.arange(SIZE)
    edges = torch.stack([places, (places + 1) % SIZE])
    return GraphBatch(features[None], torch.cat([edges, edges.flip(0)], 1)[None], torch.zeros(1, SIZE, 1))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def machine(num_features: int = 2, num_outputs: int = 1, known: Tensor = KNOWN, **settings: Any) -> NodeMachine:
    torch.manual_seed(0)
    config = dataclasses.replace(NodeMachine.Config(num_trees=5), **settings)
    return config.build(GraphReading(features=num_features, pos_dim=1), num_outputs, len(known))


def heights() -> Tensor:
    return (4 * torch.pi * torch.arange(SIZE) / SIZE).sin()[:, None].double()


def error(predicted: Tensor, targets: Tensor) -> float:
    others = torch.ones(SIZE, dtype=torch.bool)
    others[KNOWN] = False
    return float((predicted.detach().double() - targets)[others].square().mean().sqrt())


@pytest.mark.parametrize("settings", [{}, {"num_centres": 30}])
def test_targets_that_vary_smoothly_along_edges_are_predicted_from_known_nodes(settings: dict[str, Any]) -> None:
    known, targets = KnownNodes(ring(noise(SIZE, 2)), KNOWN), heights()
    built = machine(**settings)
    assert not built(known).any()
    left_out = built.fit([(known, targets[KNOWN])], NUMBER)
    assert float((left_out - targets[KNOWN]).square().mean().sqrt()) < 0.2
    assert error(built(known), targets) < 0.1
    elsewhere = known._replace(nodes=torch.full_like(KNOWN, -1))
    assert error(built(elsewhere), targets) > 0.4


def test_choices_on_some_known_nodes_are_fitted_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    between, calls = GraphSteps.between, list[tuple[int, tuple[Reach, ...]]]()

    def counted(steps: GraphSteps, nodes: Tensor, reaches: list[Reach]) -> list[Tensor]:
        calls.append((len(nodes), tuple(reaches)))
        return between(steps, nodes, reaches)

    monkeypatch.setattr(GraphSteps, "between", counted)
    monkeypatch.setattr(node_machine, "CHOSEN", 25)
    known, wanted = KnownNodes(ring(noise(SIZE, 2)), KNOWN), heights()
    built = machine()
    built.fit([(known, wanted[KNOWN])], NUMBER)
    assert error(built(known), wanted) < 0.2
    assert bool((built.dual != 0).all())
    of_all = [reaches for count, reaches in calls if count == len(KNOWN)]
    assert 0 < len(of_all) == len(set(of_all)), "κ_g between all known nodes takes long in a large graph"
    assert {count for count, _ in calls} == {25, len(KNOWN)}


def test_features_and_known_nodes_are_used_together() -> None:
    features = noise(SIZE, 2)
    targets, known = heights() + features[:, :1].double(), KnownNodes(ring(features), KNOWN)
    built = machine()
    built.fit([(known, targets[KNOWN])], NUMBER)
    assert 0 < float(built.share) < 1
    assert error(built(known), targets) < 0.3


def test_neighbours_may_have_opposite_targets() -> None:
    targets = (torch.arange(SIZE) % 2 * 2.0 - 1)[:, None].double()
    known = KnownNodes(ring(noise(SIZE, 2)), torch.arange(0, SIZE, 3))
    built = machine(known=known.nodes)
    built.fit([(known, targets[known.nodes])], NUMBER)
    assert float((built(known).detach() - targets).abs().mean()) < 0.2


def test_losses_that_decide_are_those_of_the_whole_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, found = KernelMachine.solve, list[Tensor]()
    target, labels, every = ClassTarget(names=("low", "high")), (heights() > 0)[:, 0].long()[KNOWN], torch.arange(45)

    def recorded(kernel: KernelMachine, x: Tensor, wanted: Tensor, losses: Losses | None = None, **rest: Any) -> Any:
        if losses is not None:
            found.append(losses(wanted, every))
        return solve(kernel, x, wanted, losses=losses, **rest)

    monkeypatch.setattr(KernelMachine, "solve", recorded)
    machine(num_outputs=2, hops=0, num_positions=0).fit([(KnownNodes(ring(noise(SIZE, 2)), KNOWN), labels)], target)
    # whatever a fit leaves to the kernel, its prediction without error makes the whole one without error
    perfect = target.columns(labels)
    expected = target.losses(target.readout(perfect, labels)(perfect), labels)
    assert len(found) == 3, "for the labels, for what the graph leaves, and in the end"
    torch.testing.assert_close(torch.stack(found), expected.expand(3, -1))


def test_known_nodes_are_ignored_where_features_suffice() -> None:
    features = noise(SIZE, 2)
    targets, known = features[:, :1].double() * 2, KnownNodes(ring(features), KNOWN)
    built = machine()
    built.fit([(known, targets[KNOWN])], NUMBER)
    assert (float(built.share), bool(built.dual.any())) == (0.0, False)
    elsewhere = known._replace(nodes=torch.full_like(KNOWN, -1))
    assert torch.equal(built(known), built(elsewhere))


def grown(graph: GraphBatch, more: list[list[int]]) -> GraphBatch:
    ends = torch.tensor(more).T
    count = int(ends.max()) + 1 - SIZE
    edges = torch.cat([graph.edge_index[0], ends, ends.flip(0)], 1)[None]
    features = torch.cat([graph.features, torch.zeros(1, count, graph.features.shape[2])], 1)
    return GraphBatch(features, edges, torch.zeros(1, SIZE + count, 1))


@pytest.mark.parametrize("settings", [{"num_positions": 0}, {"num_positions": 0, "num_centres": 30}])
def test_a_graph_that_has_grown_has_the_same_predictions(settings: dict[str, Any]) -> None:
    """β of a smooth kernel is large, which would amplify small differences between kernels."""
    targets, known = heights(), KnownNodes(ring(noise(SIZE, 2)), KNOWN)
    built = machine(**settings)
    built.fit([(known, (targets + 0.2 * noise(SIZE, 1))[KNOWN])], NUMBER)
    assert float(built.reach[0]) > 0.8
    far = KnownNodes(grown(known.graph, [[SIZE, SIZE + 1]]), KNOWN)
    torch.testing.assert_close(built(far)[:SIZE], built(known), atol=1e-3, rtol=0.0)
    near = KnownNodes(grown(known.graph, [[SIZE, 2], [SIZE + 1, 30], [SIZE + 2, SIZE + 1]]), KNOWN)
    assert error(built(near)[:SIZE], targets) < 0.3
    assert float((built(near).detach()[SIZE:].double() - targets[[2, 30, 30]]).abs().max()) < 0.5


def groups(seed: int, *, join: float, ring_of: int = 5, size: int = 160, more: int = 0) -> tuple[GraphBatch, Tensor]:
    """Nodes of some groups, each joined mostly to those of the next group; the last `more` nodes are new."""
    draw = torch.Generator().manual_seed(seed)
    own = torch.arange(size + more) % ring_of
    apart = (own[:, None] - own).remainder(ring_of)
    chance = torch.where((apart == 1) | (apart == ring_of - 1), join, 0.01)
    joined = (torch.rand(size + more, size + more, generator=draw) < chance).triu(1)
    ends = joined.nonzero().T
    edges = torch.cat([ends, ends.flip(0)], 1)
    degrees = joined.sum(0) + joined.sum(1)
    graph = GraphBatch(degrees[None, :, None].float().log1p(), edges[None], torch.zeros(1, size + more, 1))
    return graph, own


def test_groups_that_are_joined_to_each_other_are_predicted_from_positions() -> None:
    graph, own = groups(0, join=0.15)
    known, target = torch.arange(50), ClassTarget(names=tuple("abcde"))
    right = list[float]()
    for count in (16, 0):
        built = machine(1, 5, known, num_positions=count)
        assert not built.reads_known
        built.fit([(KnownNodes(graph, known), own[known])], target)
        assert built.read_places.any() == (count > 0)
        assert built.reads_known
        found = built(KnownNodes(graph, known)).argmax(1)
        right.append(float((found == own)[50:].double().mean()))
    assert right[0] > 0.9
    assert right[0] > right[1] + 0.05


def test_positions_are_recovered_in_a_graph_that_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, own = groups(1, join=0.2, more=20)
    before = (whole.edge_index[0] < 160).all(0)
    graph = GraphBatch(whole.features[:, :160], whole.edge_index[:, :, before], whole.pos[:, :160])
    known = torch.arange(60)
    built = machine(1, 5, known)
    built.fit([(KnownNodes(graph, known), own[known])], ClassTarget(names=tuple("abcde")))
    assert built.read_places.any()
    found = built(KnownNodes(whole, known)).argmax(1)
    assert float((found == own)[60:160].double().mean()) > 0.9
    assert float((found == own)[160:].double().mean()) > 0.9
    elsewhere = built(KnownNodes(whole, torch.full_like(known, -1)))
    assert bool(elsewhere.isfinite().all())
    assert float((elsewhere.argmax(1) == own).double().mean()) < 0.6
    # signs of eigenvectors are arbitrary
    monkeypatch.setattr(node_machine, "positions_of", lambda *of, **settings: -positions_of(*of, **settings))
    torch.testing.assert_close(built(KnownNodes(whole, known)).argmax(1), found)


def crowds(more: int) -> tuple[GraphBatch, GraphBatch, Tensor]:
    """Three groups joined within, as a graph of 60 nodes and one with more."""
    own = torch.arange(60 + more) % 3
    chance = torch.where(own[:, None] == own, 0.4, 0.02)
    joined = torch.rand(60 + more, 60 + more, generator=torch.Generator().manual_seed(1)) < chance
    found = list[GraphBatch]()
    for size in (60, 60 + more):
        ends = joined[:size, :size].triu(1).nonzero().T
        degrees = ends.flatten().bincount(minlength=size).float().log1p()
        edges = torch.cat([ends, ends.flip(0)], 1)[None]
        found.append(GraphBatch(degrees[None, :, None], edges, torch.zeros(1, size, 1)))
    return found[0], found[1], own


def test_predictions_for_known_nodes_are_stored_for_a_graph_that_has_grown() -> None:
    """Means of neighbouring degrees separate small groups by chance, and differently in a larger graph."""
    graph, whole, own = crowds(9)
    known = torch.arange(60)
    built = machine(1, 3, known, num_positions=0)
    with torch.no_grad():
        built.fit([(KnownNodes(graph, known), own[:60])], ClassTarget(names=tuple("abc")))
        torch.testing.assert_close(built.answers, built(KnownNodes(graph, known)).double())
        found = built(KnownNodes(whole, known))
        assert torch.equal(found.argmax(1), own)
        torch.testing.assert_close(found[:60].double(), built.answers, atol=0.5, rtol=0.0)
        built.answers.zero_()
        assert not torch.equal(built(KnownNodes(whole, known)), found)
        torch.testing.assert_close(built(KnownNodes(graph, known)).argmax(1), own[:60])


def test_a_change_at_known_nodes_propagates_along_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every second node of a ring known, walks of even length would not reach the others."""
    built, places, change = machine(), torch.arange(SIZE), heights()
    built.signed.fill_(False)
    steps = GraphSteps(places, (places + 1) % SIZE, torch.ones(SIZE), SIZE)
    found = [built._change(steps, KNOWN, change[KNOWN] + more) for more in (0.0, 3.0)]  # pyright: ignore[reportPrivateUsage]
    assert float((found[0] - change).abs().max()) < 0.1
    torch.testing.assert_close(found[1], found[0] + 3)
    chance = noise(len(KNOWN), 1).double()
    left = built._change(steps, KNOWN, 3 + chance)  # pyright: ignore[reportPrivateUsage]
    assert float((left - 3).abs().max()) < 0.6
    one = built._change(steps, KNOWN[:1], change[:1] + 2)  # pyright: ignore[reportPrivateUsage]
    torch.testing.assert_close(one, (change[:1] + 2).expand(SIZE, -1))
    monkeypatch.setattr(node_machine, "KEEPING", (Reach(0.0, 1), Reach(0.97, 1, stride=2)))
    even = built._change(steps, KNOWN, change[KNOWN])  # pyright: ignore[reportPrivateUsage]
    torch.testing.assert_close(even, change[KNOWN].mean(0).expand(SIZE, -1))


def test_gradients_continue_after_a_fit_in_its_own_graph() -> None:
    known, targets = KnownNodes(ring(noise(SIZE, 2)), KNOWN), heights()
    built = machine()
    built.fit([(known, targets[KNOWN])], NUMBER)
    before = built(known).detach()
    with torch.no_grad():
        built.dual.mul_(0.5)
    assert float((built(known) - before).detach().abs().max()) > 0.1


def test_kernels_of_even_walks_are_not_used_where_they_do_not_reach_other_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With every second node of a ring known, walks of even length do not reach the others."""
    known, targets = KnownNodes(ring(torch.zeros(SIZE, 1)), KNOWN), heights()
    built = machine(1)
    built.fit([(known, targets[KNOWN])], NUMBER)
    assert not bool(built.signed)
    assert int(built.reach[2]) == 1
    assert error(built(known), targets) < 0.1
    rest = KnownNodes(known.graph, torch.arange(0, SIZE, 3))
    both = machine(1, known=rest.nodes)
    both.fit([(rest, targets[rest.nodes])], NUMBER)
    assert bool(both.signed)
    monkeypatch.setattr(node_machine, "REACHES", (Reach(0.0, 1), Reach(0.97, 1, stride=2)))
    built.fit([(known, targets[KNOWN])], NUMBER)
    assert float(built.share) == 0


def test_positions_are_not_used_for_noise() -> None:
    graph, _ = groups(2, join=0.2, ring_of=3)
    known = torch.arange(48)
    for seed in range(2):
        built = machine(1, known=known, num_trees=0)
        targets = torch.randn(48, 1, generator=torch.Generator().manual_seed(seed)).double()
        built.fit([(KnownNodes(graph, known), targets)], NUMBER)
        assert not built.reads_known


def test_without_features_the_aim_is_the_centred_target() -> None:
    targets = heights()[KNOWN] + 0.2 * noise(len(KNOWN), 1).double()
    built = machine()
    built.fit([(KnownNodes(ring(torch.zeros(SIZE, 2)), KNOWN), targets)], NUMBER)
    assert float(built.share) == 1
    torch.testing.assert_close(built.aim, targets - targets.mean(0))


def test_the_graph_of_the_fit_needs_no_new_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, graph = heights(), ring(noise(SIZE, 2))
    built = machine()
    built.fit([(KnownNodes(graph, KNOWN), targets[KNOWN])], NUMBER)
    monkeypatch.delattr(GraphSteps, "between")
    order = torch.arange(SIZE).flip(0)  # the same graph, with its nodes and edges in another order
    turned = GraphBatch(graph.features[:, order], SIZE - 1 - graph.edge_index.flip(2), graph.pos)
    found = built(KnownNodes(turned, SIZE - 1 - KNOWN))[order]
    torch.testing.assert_close(found, built(KnownNodes(graph, KNOWN)))


def test_left_out_groups_have_larger_errors() -> None:
    """Each group is an arc of the ring, whose middle is far from all other known nodes."""
    targets, known = heights(), KnownNodes(ring(noise(SIZE, 2)), KNOWN)
    alone, whole = machine(), machine()
    by_itself = alone.fit([(known, targets[KNOWN])], NUMBER)
    by_groups = whole.fit([(known, targets[KNOWN])], NUMBER, groups=torch.arange(len(KNOWN)) // 15)
    errors = [float((each - targets[KNOWN]).square().mean()) for each in (by_itself, by_groups)]
    assert errors[1] > errors[0]


def test_classes_and_several_numbers() -> None:
    targets, graph = (torch.arange(SIZE) // 30).long(), ring(noise(SIZE, 2))
    built = machine(num_outputs=3)
    built.fit([(KnownNodes(graph, KNOWN), targets[KNOWN])], ClassTarget(names=("a", "b", "c")))
    assert float((built(KnownNodes(graph, KNOWN)).argmax(1) == targets).double().mean()) > 0.9
    two = NumberTarget(names=("x", "y"), mean=(0.0, 0.0), deviation=(1.0, 1.0), quantiles=(0.1, 0.9))
    both = torch.cat([heights(), -heights()], 1)
    built = machine(num_outputs=4)
    built.fit([(KnownNodes(graph, KNOWN), both[KNOWN])], two)
    found = built(KnownNodes(graph, KNOWN))
    assert bool((found[:, 0] < found[:, 1]).all())
    assert error(found.unflatten(1, (2, 2)).mean(2), both) < 0.2


def test_many_features_are_projected_on_their_principal_directions() -> None:
    width = MOST_FEATURES + 6
    features = noise(SIZE, 1) @ noise(1, width)
    known, targets = KnownNodes(ring(features), KNOWN), features[:, :1].double()
    built = machine(width)
    assert built.machine.mean.shape == (3 * NUM_DIRECTIONS + len(KNOWN) // 4,)
    built.fit([(known, targets[KNOWN])], NUMBER)
    assert error(built(known), targets) < 0.3


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_known_nodes(count: int) -> None:
    known = KnownNodes(ring(noise(SIZE, 2)), torch.arange(count) * 7)
    built = machine(known=known.nodes)
    left_out = built.fit([(known, heights()[known.nodes])], NUMBER)
    assert bool(left_out.isfinite().all())
    assert bool(built(known).isfinite().all())


def test_bad_arguments_are_refused() -> None:
    graph, targets = ring(noise(SIZE, 2)), heights()
    with refused(ValueError, "expected one graph with at least 2 known nodes"):
        machine(known=KNOWN[:1]).fit([(KnownNodes(graph, KNOWN[:1]), targets[:1])], NUMBER)
    with refused(ValueError, "there are 44 targets of 45 nodes; expected 45 of each"):
        machine().fit([(KnownNodes(graph, KNOWN), targets[:44])], NUMBER)
    with refused(ValueError, "known nodes are (3,); expected (45,)"):
        machine()(KnownNodes(graph, KNOWN[:3]))
    with refused(ValueError, "num_centres must be at least 2"):
        NodeMachine.Config(num_centres=1)


@pytest.mark.parametrize("groups", [None, torch.arange(12) // 3])
def test_left_out_scores_equal_those_of_refits(groups: Tensor | None) -> None:
    root, other, targets = noise(12, 4).double(), noise(12, 3).double().exp(), noise(12, 2).double()
    of_graph = other @ other.T
    kernel = root @ root.T + of_graph + 0.3 * torch.eye(12, dtype=torch.float64)
    centred = targets - targets.mean(0)
    errors, found, _ = left_out_part(torch.linalg.inv(kernel), of_graph, centred, members_of(groups))
    for own in [torch.tensor([i]) for i in range(12)] if groups is None else members_of(groups) or []:
        rest = torch.ones(12, dtype=torch.bool)
        rest[own] = False
        mean = targets[rest].mean(0)
        dual = torch.linalg.solve(kernel[rest][:, rest], targets[rest] - mean)
        torch.testing.assert_close(errors[own], targets[own] - mean - kernel[own][:, rest] @ dual)
        torch.testing.assert_close(found[own], of_graph[own][:, rest] @ dual)


def test_known_nodes_are_not_used_for_noise() -> None:
    known, found = KnownNodes(ring(noise(SIZE, 2)), KNOWN), list[float]()
    for seed in range(4):
        targets = torch.randn(len(KNOWN), 1, generator=torch.Generator().manual_seed(seed)).double()
        built = machine(num_trees=0)
        built.fit([(known, targets)], NUMBER)
        found.append(float(built.share))
    assert found == [0.0] * 4


def rings_of_two_kinds(count: int, size: int) -> tuple[GraphBatch, Tensor]:
    """Rings, each of one kind, which the mean of its features shows and those of a few neighbours hardly do."""
    kind, places = torch.arange(count).repeat_interleave(size) % 2, torch.arange(count * size)
    after = places // size * size + (places + 1) % size
    features = (kind - 0.5)[:, None] + 1.5 * noise(count * size, 3)
    edges = torch.stack([torch.cat([places, after]), torch.cat([after, places])])
    return GraphBatch(features[None], edges[None], torch.zeros(1, count * size, 1)), kind


@pytest.mark.parametrize("settings", [{}, {"num_centres": 80}])
def test_features_are_spread_along_edges_where_that_surely_helps(settings: dict[str, Any]) -> None:
    graph, kind = rings_of_two_kinds(100, 20)
    nodes = torch.arange(0, 70 * 20, 20)  # one in each of the first rings, none in the others
    others, target = torch.arange(70 * 20, 100 * 20), ClassTarget(names=("even", "odd"))
    built = machine(3, 2, nodes, **settings)
    left_out = built.fit([(KnownNodes(graph, nodes), kind[nodes])], target)
    assert built.spread is not None
    assert built.spread.dual.any()
    assert float((left_out.argmax(1) == kind[nodes]).double().mean()) > 0.9
    found = built(KnownNodes(graph, nodes))
    assert float((found[others].argmax(1) == kind[others]).double().mean()) > 0.9
    near = machine(3, 2, nodes, hops=0, **settings)
    assert near.spread is None
    near.fit([(KnownNodes(graph, nodes), kind[nodes])], target)
    assert float((near(KnownNodes(graph, nodes))[others].argmax(1) == kind[others]).double().mean()) < 0.8
    # features predict in another graph too, and a fit to uninformative ones leaves nothing behind
    elsewhere, theirs = rings_of_two_kinds(20, 20)
    answers = built(KnownNodes(elsewhere, torch.full_like(nodes, -1))).argmax(1)
    assert float((answers == theirs).double().mean()) > 0.9
    built.fit([(KnownNodes(graph, nodes), torch.arange(len(nodes)) // 2 % 2)], target)
    assert not built.spread.dual.any()


def test_spread_features_are_expected_values_at_the_ends_of_walks() -> None:
    built, features = machine(), noise(SIZE, 2)
    u, domain = built._signal(ring(features))  # pyright: ignore[reportPrivateUsage]
    step = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for i in range(SIZE):
        step[i, (i + 1) % SIZE] = step[i, i - 1] = 0.5
    expected, power = torch.zeros(SIZE, 2, dtype=torch.float64), features.double()
    for k in range(node_machine.WALK):
        expected += (1 - node_machine.SPREAD) * node_machine.SPREAD**k * power
        power = step @ power
    torch.testing.assert_close(built._far(u, domain).double(), expected, rtol=1e-5, atol=1e-6)  # pyright: ignore[reportPrivateUsage]


def test_spread_features_and_known_nodes_are_used_together() -> None:
    """Targets of rings: one part follows from features, another is shown by two known nodes of each ring."""
    graph, kind = rings_of_two_kinds(110, 20)
    own = noise(110, 1).repeat_interleave(20, 0).double()
    targets = 7 + 2 * kind[:, None].double() + 0.6 * own
    nodes, others = torch.arange(100).repeat_interleave(2) * 20 + torch.tensor([0, 10]).repeat(100), kind[2000:]
    known = KnownNodes(graph, nodes)
    built = machine(3, 1, nodes, hops=1, num_positions=0, num_trees=0, num_centres=150)
    left_out = built.fit([(known, targets[nodes])], NUMBER)
    assert built.spread is not None
    assert built.spread.dual.any()
    assert 0 < float(built.share) < 1
    # below, predictions would depend on the node's own target
    assert 0.4 < float((left_out - targets[nodes]).square().mean().sqrt()) < 0.6
    found = built(known).detach().double()
    assert float((found[:2000] - targets[:2000]).square().mean().sqrt()) < 0.5
    # in rings without known nodes, features predict all but the ring's own part
    assert float((found[2000:, 0] - 7 - 2 * others).square().mean().sqrt()) < 0.6
    # the residual of one system is λ β
    u, domain = built._signal(graph)  # pyright: ignore[reportPrivateUsage]
    of_features = built.spread(built._far(u, domain)).detach().double()[nodes]  # pyright: ignore[reportPrivateUsage]
    steps = node_machine._steps(domain, u.shape[1])  # pyright: ignore[reportPrivateUsage]
    of_graph = steps.sums(nodes, built.dual.detach(), built._sight.coefficients())[nodes]  # pyright: ignore[reportPrivateUsage]
    drawn = built.dual.detach()[:, 0] != 0
    rest = (targets[nodes] - of_features - of_graph - built.noise * built.dual.detach())[drawn]
    torch.testing.assert_close(rest, targets[nodes][drawn].mean(0).expand_as(rest), atol=1e-4, rtol=0.0)
