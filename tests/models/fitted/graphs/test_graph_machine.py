"""Graph machines: their numbers of a graph, and the choice between neighbourhoods and summaries."""

import pytest
import torch
from torch import Tensor

from fredholm.encoders import GraphBatch
from fredholm.models import GraphMachine, GraphReading, NeighbourhoodBank
from fredholm.models.fitted.graphs.graph_machine import MOST_NUMBERS, NUM_COLOURS
from fredholm.models.fitted.graphs.graph_summaries import num_summaries
from fredholm.models.fitted.graphs.neighbourhood_bank import read_graphs
from fredholm.models.fitted.graphs.weisfeiler_lehman import colours
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

FEW = NeighbourhoodBank.Config(num_waves=50, num_colours=20)
CLASSES = ClassTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("how many",), mean=(0.0,), deviation=(1.0,), quantiles=())
READING = GraphReading(features=2, pos_dim=1)
SIZE = 10


def machine(reading: GraphReading = READING, num_outputs: int = 2) -> GraphMachine:
    torch.manual_seed(0)
    return GraphMachine.Config(bank=FEW, num_trees=20).build(reading, num_outputs)


def graphs(count: int, seed: int = 0) -> GraphBatch:
    """Five to ten nodes of two kinds per graph, joined at random."""
    draw = torch.Generator().manual_seed(seed)
    number = 5 + torch.arange(count) % 6
    joined = torch.rand(count, SIZE, SIZE, generator=draw).triu(1) < 0.1 + 0.3 * torch.rand(count, 1, 1, generator=draw)
    mask = torch.arange(SIZE) < number[:, None]
    joined = (joined | joined.mT) & mask[:, None] & mask[:, :, None]
    kinds = torch.randint(2, (count, SIZE), generator=draw)
    edges = torch.full((count, 2, int(joined.sum((1, 2)).max())), -1)
    for row, own in zip(edges, joined, strict=True):
        ends = own.nonzero().T
        row[:, : ends.shape[1]] = ends
    features = (torch.nn.functional.one_hot(kinds, 2) - 0.4) / 0.5
    return GraphBatch(features, edges, torch.zeros(count, SIZE, 1), mask, kinds=kinds)


def some(batch: GraphBatch, indices: slice) -> GraphBatch:
    return GraphBatch(*(None if part is None else part[indices] for part in batch))  # pyright: ignore[reportArgumentType]


def triangles(batch: GraphBatch) -> Tensor:
    joined = torch.zeros(len(batch.features), SIZE + 1, SIZE + 1)
    for own, ends in zip(joined, batch.edge_index, strict=True):
        own[ends[0], ends[1]] = 1  # padding edges join the last node
    joined = joined[:, :-1, :-1]
    return (joined @ joined @ joined).diagonal(dim1=1, dim2=2).sum(1) / 6


def test_the_number_of_triangles_is_predicted() -> None:
    batch = graphs(110)
    targets = triangles(batch)[:, None].double()
    built = machine(num_outputs=1)
    left_out = built.fit([(some(batch, slice(70)), targets[:70])], NUMBER)
    rest = some(batch, slice(70, None))
    with torch.no_grad():
        errors = [float((predicted - targets[70:]).square().mean()) for predicted in (built(rest), built.bank(rest))]
    assert errors[0] < 0.2 * errors[1]
    assert float((left_out - targets[:70]).square().mean()) < 0.2 * errors[1]
    assert float(built.second.gain[1]) > 0.5


def test_the_bank_gets_the_larger_share_where_neighbourhoods_decide() -> None:
    batch = graphs(60)
    values = torch.randn(60, SIZE, 2, generator=torch.Generator().manual_seed(1))
    batch = batch._replace(features=values, kinds=None, edge_index=torch.full((60, 2, 1), -1))
    # how often both features have the same sign; each by itself is uninformative
    alike = torch.where(batch.mask[..., None], values, 0).prod(-1).sign().sum(1) if batch.mask is not None else values
    built = machine(num_outputs=1)
    built.fit([(batch, alike[:, None].double())], NUMBER)
    assert float(built.second.gain[1]) < 0.5 < float(built.second.gain[0])


def test_numbers_are_summaries_of_features_above_their_minimum_and_colour_counts() -> None:
    batch = graphs(12)
    built = machine()
    built.fit([(batch, torch.arange(12) % 2)], CLASSES)
    found = built.numbers(batch).double()
    assert batch.kinds is not None
    assert batch.mask is not None
    count = num_summaries(2, 0, 6)
    kinds = torch.nn.functional.one_hot(batch.kinds, 2) * batch.mask[..., None]
    # N m is the count, in units of the deviation
    torch.testing.assert_close(found[:, 25:27], kinds.sum(1).double() / 0.5, rtol=1e-5, atol=1e-5)
    own = colours(torch.tensor([0, 1]), torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0).long(), 0)[0]
    for kind, colour in enumerate(own.tolist()):
        place = built.colours.known.tolist().index(colour)
        expected = kinds[..., kind].sum(1).double()
        torch.testing.assert_close(found[:, count + place].square(), expected, rtol=1e-5, atol=1e-5)
    assert found.shape[1] == count + 2 * NUM_COLOURS
    of_edges = built.edge_colours(batch, read_graphs(built.bank.encoder, batch)[1], torch.float32)
    torch.testing.assert_close(found[:, count + NUM_COLOURS :], of_edges.double())


def test_the_minimum_is_subtracted_from_features_of_edges() -> None:
    batch = graphs(12)
    draw = torch.Generator().manual_seed(2)
    batch = batch._replace(edge_features=torch.randn(*batch.edge_index.shape[::2], 1, generator=draw) - 5)
    built = machine(GraphReading(features=2, pos_dim=1, edge_dim=1))
    built.fit([(batch, torch.arange(12) % 2)], CLASSES)
    least = built.numbers(batch)[:, num_summaries(2, 1, 6) - 1]
    assert float(least.nan_to_num(1.0).min()) == 0
    assert built.second.machine.table.reading.may_miss[2:] == (num_summaries(2, 1, 6) - 2, num_summaries(2, 1, 6) - 1)


def test_batch_mates_padding_and_saving_change_nothing() -> None:
    batch, labels = graphs(30), torch.arange(30) % 2
    built = machine()
    built.fit([(some(batch, slice(20)), labels[:20]), (some(batch, slice(20, None)), labels[20:])], CLASSES)
    together = built(batch)
    for i in range(3):
        alone = some(batch, slice(i, i + 1))
        torch.testing.assert_close(built(alone), together[i : i + 1], rtol=1e-4, atol=1e-4)
        nodes = 5 + i
        edges = alone.edge_index[:, :, alone.edge_index[0, 0] >= 0]
        bare = GraphBatch(alone.features[:, :nodes], edges, alone.pos[:, :nodes], kinds=_kinds(alone)[:, :nodes])
        torch.testing.assert_close(built(bare), together[i : i + 1], rtol=1e-4, atol=1e-4)
    other = machine()
    other.load_state_dict(built.state_dict())
    torch.testing.assert_close(other(batch), together)


def _kinds(batch: GraphBatch) -> Tensor:
    assert batch.kinds is not None
    return batch.kinds


@pytest.mark.parametrize(("features", "each"), [(2, 6), (32, 6), (50, 3), (MOST_NUMBERS, 1), (MOST_NUMBERS + 1, 0)])
def test_features_share_the_limited_numbers_of_a_graph(features: int, each: int) -> None:
    built = machine(GraphReading(features=features, pos_dim=1))
    assert built.num_of_each == each
    assert built.second.machine.table.reading.num_numbers == num_summaries(features, 0, each) + 2 * NUM_COLOURS


def test_a_single_graph_and_a_single_class_are_fitted_exactly() -> None:
    built = machine(num_outputs=1)
    built.fit([(graphs(1), torch.ones(1, 1))], NUMBER)
    torch.testing.assert_close(built(graphs(1)), torch.ones(1, 1))
    built = machine()
    built.fit([(graphs(12), torch.zeros(12, dtype=torch.long))], CLASSES)
    assert bool((built(graphs(12)).argmax(1) == 0).all())


def test_groups_are_left_out_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, seen = torch.arange(20) // 2, list[Tensor | None]()
    fit = NeighbourhoodBank.fit
    monkeypatch.setattr(
        NeighbourhoodBank, "fit", lambda *given, groups, weights: seen.append(groups) or fit(*given, groups=groups)
    )
    machine().fit([(graphs(20), torch.arange(20) % 2)], CLASSES, groups=groups)
    assert len(seen) == 1
    assert seen[0] is groups


def test_bad_sizes_and_empty_sets_are_refused() -> None:
    with refused(ValueError, "models.GraphMachine", "num_centres", "0"):
        GraphMachine.Config(num_centres=0)
    with refused(ValueError, "models.GraphMachine", "num_trees", "-1"):
        GraphMachine.Config(num_trees=-1)
    with refused(ValueError, "models.GraphMachine", "no graph"):
        machine().fit([], CLASSES)


def test_repeated_numbers_have_the_same_ranks_in_float64() -> None:
    """A number equal to a quantile is ranked in the middle of equal numbers, in the precision of any weights."""
    batch = graphs(60)
    built = machine()
    built.fit([(batch, (triangles(batch) > 2).long())], CLASSES)
    expected = built.second.machine.coordinates(built.numbers(batch))
    found = built.double().second.machine.coordinates(built.numbers(batch))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
