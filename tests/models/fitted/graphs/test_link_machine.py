import pytest
import torch
from torch import Tensor

from fredholm.models import GraphPairs, LinkMachine
from fredholm.models.fitted.graphs import link_machine
from fredholm.models.fitted.graphs.pair_summaries import PairSummaries
from fredholm.models.fitted.ridge_head import ScoreRecorder
from fredholm.tasks.targets import ClassTarget
from tests.refusals import refused

JOINED = ClassTarget(names=("apart", "joined"))


def circle(size: int, *, is_directed: bool = False) -> Tensor:
    """Each node is joined to the next four; every seventh of these edges is missing."""
    places = torch.arange(size)
    ends = torch.cat([torch.stack([places, (places + k) % size]) for k in (1, 2, 3, 4)], 1)
    ends = ends[:, torch.arange(ends.shape[1]) % 7 > 0]
    return ends if is_directed else torch.cat([ends, ends.flip(0)], 1)


def learnt(edges: Tensor, features: Tensor, *, is_directed: bool = False, num_trees: int = 5) -> LinkMachine:
    torch.manual_seed(0)
    machine = LinkMachine.Config(num_trees=num_trees).build(features.shape[1], 2, is_directed=is_directed)
    own = edges.T if is_directed else edges.T[edges[0] < edges[1]]
    others = torch.randint(len(features), (len(own), 2))
    inputs = GraphPairs(edges, features, torch.cat([own, others]))
    machine.fit([(inputs, torch.tensor([1, 0]).repeat_interleave(len(own)))], JOINED)
    return machine


def logits(machine: LinkMachine, edges: Tensor, features: Tensor, pairs: Tensor) -> Tensor:
    return machine(GraphPairs(edges, features, pairs)).detach().diff(dim=1)[:, 0]


@pytest.mark.parametrize("is_directed", [False, True])
@pytest.mark.parametrize("num_features", [0, 2])
def test_missing_edges_score_higher_than_other_pairs(is_directed: bool, num_features: int) -> None:
    edges, features = circle(80, is_directed=is_directed), torch.zeros(80, num_features)
    machine = learnt(edges, features, is_directed=is_directed)
    missing = torch.tensor([[k, k + 1] for k in range(0, 77, 7)])
    far = torch.stack([missing[:, 0], (missing[:, 0] + 30) % 80], 1)
    near, away = (logits(machine, edges, features, each) for each in (missing, far))
    assert float((near[:, None] > away).float().mean()) > 0.95
    if is_directed:
        assert float((near - logits(machine, edges, features, missing.flip(1))).mean()) > 0.2


def test_an_edge_is_scored_in_a_graph_without_it_and_other_pairs_in_the_whole_graph() -> None:
    edges, features = circle(40), torch.randn(40, 2)
    machine = learnt(edges, features)
    pair = edges.T[:1]
    part = machine._parts(edges.T)
    without = edges[:, part != machine._parts(pair)]
    assert 0 < without.shape[1] < edges.shape[1]
    torch.testing.assert_close(logits(machine, edges, features, pair), logits(machine, without, features, pair))
    torch.testing.assert_close(logits(machine, edges, features, pair.flip(1)), logits(machine, edges, features, pair))
    other = torch.tensor([[0, 20]])
    assert not torch.allclose(logits(machine, edges, features, other), logits(machine, without, features, other))


def test_during_a_fit_negative_pairs_see_as_many_edges_as_positive_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, Tensor]]()

    whole = PairSummaries.of

    def watched(self: PairSummaries, pairs: Tensor) -> Tensor:
        seen.append((int(self.num_leaving.sum()), pairs))
        return whole(self, pairs)

    monkeypatch.setattr(PairSummaries, "of", watched)
    edges = circle(40)
    machine = learnt(edges, torch.zeros(40, 0))
    assert len(seen) == link_machine.PARTS
    assert all(count < edges.shape[1] for count, _ in seen)
    for count, pairs in seen:
        parts = machine._parts(pairs).unique()
        assert len(parts) == 1
        assert count == int((machine._parts(edges.T) != parts).sum())


def test_a_pair_is_scored_independently_of_the_others() -> None:
    edges, features = circle(40), torch.randn(40, 20)
    machine = learnt(edges, features)
    pairs = torch.tensor([[0, 20], [3, 4], [7, 9], [9, 7], [5, 5]])
    together = logits(machine, edges, features, pairs)
    alone = torch.cat([logits(machine, edges, features, pair[None]) for pair in pairs])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together[2], together[3])
    assert bool(together.isfinite().all())


def test_summaries_of_the_whole_graph_are_cached_until_another_graph_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    edges, features, pairs = circle(40), torch.randn(40, 2), torch.tensor([[0, 20], [3, 19]])
    machine = learnt(edges, features)
    expected = logits(machine, edges, features, pairs)
    made, whole = list[int](), PairSummaries.__init__

    def watched(self: PairSummaries, edges: Tensor, *given: Tensor, is_directed: bool) -> None:
        made.append(edges.shape[1])
        whole(self, edges, *given, is_directed=is_directed)

    monkeypatch.setattr(PairSummaries, "__init__", watched)
    together = torch.cat([logits(machine, edges, features, pair[None]) for pair in pairs])
    torch.testing.assert_close(together, expected)
    assert made == []
    fewer, others = edges[:, 20:], features.flip(0)
    for given in ((fewer, features), (edges, others)):
        logits(machine, *given, pairs)
        assert made.pop() == given[0].shape[1]
    machine = learnt(edges, features)
    fresh, kept = logits(machine, fewer, others, pairs), logits(machine, edges, features, pairs)
    assert not torch.allclose(fresh, kept)
    torch.testing.assert_close(kept, expected)


def test_directions_of_many_features_are_recomputed_after_another_fit() -> None:
    edges, one = circle(40), torch.randn(40, 90)
    machine, pairs = learnt(edges, one), torch.tensor([[0, 20], [3, 19]])
    logits(machine, edges, one, pairs)
    machine.directions.copy_(torch.linalg.qr(torch.randn(90, machine.directions.shape[1]))[0])
    turned = machine._summaries(GraphPairs(edges, one, pairs), link_machine.PARTS)
    assert turned.are_of(edges, one, machine.directions)


def test_without_trees_a_linear_function_predicts() -> None:
    edges, features = circle(40), torch.zeros(40, 0)
    machine, pairs = learnt(edges, features, num_trees=0), torch.tensor([[0, 1], [0, 20]])
    assert machine.trees is None
    near, far = logits(machine, edges, features, pairs).tolist()
    assert near > far


def test_bad_arguments_are_refused() -> None:
    edges, features = circle(10), torch.zeros(10, 2)
    machine, pairs = LinkMachine.Config(num_trees=1).build(2, 2, is_directed=False), torch.tensor([[0, 1], [0, 5]])
    for given, message in (
        (GraphPairs(edges, features[:, :1], pairs), r"features are \(10, 1\); expected \(nodes, 2\)"),
        (GraphPairs(edges.T, features, pairs), r"edges are .* and pairs .*; expected \(2, E\) and \(P, 2\)"),
        (GraphPairs(edges, features, pairs + 7), "pairs name nodes from 7 to 12; expected 0 to 9"),
    ):
        with pytest.raises(ValueError, match=message):
            machine(given)
    inputs = GraphPairs(edges, features, pairs)
    with refused(ValueError, "expected one graph with at least 2 pairs of nodes to fit to"):
        machine.fit([], JOINED)
    with refused(ValueError, "there are 3 targets of 2 pairs"):
        machine.fit([(inputs, torch.tensor([1, 0, 1]))], JOINED)
    with refused(ValueError, "num_trees must be at least 0; got -1"):
        LinkMachine.Config(num_trees=-1)


def test_both_parts_are_combined_with_gain_and_shift() -> None:
    edges, features, pairs = circle(40), torch.zeros(40, 0), torch.tensor([[0, 20], [3, 19]])
    machine = learnt(edges, features)
    assert machine.trees is not None
    machine.gain.copy_(torch.tensor([[2.0], [3.0]]))
    machine.shift.copy_(torch.tensor([0.5, -1.0]))
    inputs = GraphPairs(edges, features, pairs)
    numbers = machine._numbers(inputs, torch.full((2,), link_machine.PARTS))
    expected = 2 * machine.linear(numbers) + 3 * machine.trees(numbers) + machine.shift
    torch.testing.assert_close(machine(inputs), expected)


def test_the_share_with_the_smallest_left_out_errors_is_chosen() -> None:
    edges, features = circle(60), torch.zeros(60, 0)
    own = edges.T[edges[0] < edges[1]]
    torch.manual_seed(1)
    inputs = GraphPairs(edges, features, torch.cat([own, torch.randint(60, (len(own), 2))]))
    targets = torch.tensor([1, 0]).repeat_interleave(len(own))
    machine, alone = (LinkMachine.Config(num_trees=30).build(0, 2, is_directed=False) for _ in range(2))
    numbers = alone._numbers(inputs, alone._parts(inputs.pairs))
    linear, trees = ScoreRecorder(JOINED), ScoreRecorder(JOINED)
    assert alone.trees is not None
    torch.manual_seed(2)
    alone.linear.fit(numbers, targets, linear)
    alone.trees.fit(numbers, targets, trees)
    torch.manual_seed(2)
    left_out = machine.fit([(inputs, targets)], JOINED)
    tried = {a / 10: linear.scores + a / 10 * (trees.scores - linear.scores) for a in range(11)}
    errors = {a: float((JOINED.columns(targets) - each).square().mean()) for a, each in tried.items()}
    best = min(errors, key=errors.__getitem__)
    assert 0 < best < 1
    readout = JOINED.readout(tried[best], targets)
    torch.testing.assert_close(left_out, readout(tried[best]))
    # the scores of both parts, blended in the same shares
    scores = torch.zeros(len(targets), 2, dtype=torch.float64)
    with torch.no_grad():
        for share, part in ((1 - best, alone.linear), (best, alone.trees)):
            scores += share * part(numbers.to(alone.linear.weight)).double()
        found = machine._outputs(numbers)
    torch.testing.assert_close(found.double(), readout.gain * scores + readout.shift, rtol=1e-3, atol=1e-3)


def test_many_features_are_projected_on_their_principal_directions() -> None:
    features = torch.randn(40, 90, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 90)
    machine = learnt(circle(40), features + 5)
    directions = machine.directions.double()
    rank = min(directions.shape[1], 39)
    torch.testing.assert_close(
        directions[:, :rank].T @ directions[:, :rank], torch.eye(rank).double(), atol=1e-4, rtol=0
    )
    _, _, expected = torch.linalg.svd((features - features.mean(0)).double(), full_matrices=False)
    assert float((expected[:10] @ directions).norm(dim=1).min()) > 0.999
