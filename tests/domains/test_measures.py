"""Weights of points and pairs: the counting measure, and measures that differ between queries."""

import pytest
import torch

from fredholm.domains import Grid, PairList, Points, Sequence, Union, is_ordered_by_index
from tests.refusals import refused


def test_the_uniform_measure_counts_every_point_that_exists_once():
    mask = torch.tensor([[True, True, False, True], [False] * 4])
    assert Grid(2, 2).counts.tolist() == [1.0] * 4
    assert Sequence(0).counts.shape == (0,)
    assert Sequence(4, mask=mask).counts.tolist() == [[1.0, 1.0, 0.0, 1.0], [0.0] * 4]
    assert Sequence(4).restrict(mask).counts.tolist() == [[1.0, 1.0, 0.0, 1.0], [0.0] * 4]
    assert Union(Sequence(2), Sequence(3)).counts.tolist() == pytest.approx([1.0] * 5)


def test_parts_that_share_their_mass_count_with_mean_one():
    counts = Union(Sequence(2), Sequence(2), mass=(0.75, 0.25)).counts
    assert counts.tolist() == pytest.approx([1.5, 1.5, 0.5, 0.5])


def test_given_weights_are_counts():
    weights = torch.tensor([0.5, 2.0, 0.0])
    assert Points(torch.rand(3, 2), weights=weights).counts.tolist() == weights.tolist()
    masked = Points(torch.rand(3, 2), weights=weights, mask=torch.tensor([True, False, True]))
    assert masked.counts.tolist() == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(("shape", "stored"), [((3, 4), (1, 1, 3, 4)), ((2, 3, 4), (2, 1, 3, 4)), ((2, 5, 3, 4),) * 2])
def test_pair_weights_are_stored_by_batch_and_head(shape, stored):
    bias = torch.randn(shape)
    domain = Sequence(4)
    weighed = domain.weigh_pairs(bias)
    assert domain.pair_bias is None
    assert domain.pair_weights is None
    assert weighed.pair_bias is not None
    assert weighed.pair_bias.shape == stored
    torch.testing.assert_close(weighed.pair_weights, bias.exp().reshape(stored))
    assert weighed.batch_size == (stored[0] if stored[0] > 1 else None)
    keep = bias > 0
    torch.testing.assert_close(domain.weigh_pairs(keep).pair_weights, keep.reshape(stored).double(), atol=0, rtol=0)


def test_pair_weights_survive_a_restriction_and_a_move():
    domain = Sequence(3).weigh_pairs(torch.randn(3, 3))
    for changed in (domain.restrict(torch.tensor([True, False, True])), domain.to("meta")):
        assert changed.pair_bias is not None
        assert changed.pair_bias.device == changed.device


def test_listed_pairs_keep_their_precision_beside_masses_of_lower_precision():
    index, m = torch.arange(3).expand(1, 3, 3), torch.rand(1, 3, 3, dtype=torch.float64)
    points = Points(torch.rand(3, 2), weights=torch.rand(3))
    dense = points.list_pairs(PairList.of_index(index, m, 3)).with_dense_pairs()
    torch.testing.assert_close(dense.pair_weights, m[:, None], rtol=0, atol=0)
    torch.testing.assert_close(dense.pair_bias, m.log()[:, None], rtol=1e-12, atol=0)
    torch.testing.assert_close(dense.as_met_by(slice(1, 3), None).pair_weights, m[:, None, 1:], rtol=0, atol=0)
    torch.testing.assert_close(dense.weigh_pairs(torch.zeros(3, 3)).pair_weights, torch.ones(1, 1, 3, 3))


def test_refuses_pair_weights_that_do_not_fit():
    domain = Points(torch.rand(4, 2))
    with refused(ValueError, "bias must be (Nq, 4)", "(3, 5)"):
        domain.weigh_pairs(torch.rand(3, 5))
    with refused(ValueError, "(4,)"):
        domain.weigh_pairs(torch.rand(4))
    with refused(TypeError, "bool (True = keep) or float", "int64"):
        domain.weigh_pairs(torch.ones(4, 4, dtype=torch.int64))
    with refused(TypeError, "must be a tensor"):
        domain.weigh_pairs([[True]])  # pyright: ignore[reportArgumentType]
    for value in (float("nan"), float("inf")):
        with refused(ValueError, "NaN or +inf"):
            domain.weigh_pairs(torch.full((4, 4), value))
    with refused(ValueError, "meta", "cpu"):
        domain.weigh_pairs(torch.zeros(4, 4, device="meta"))
    with refused(ValueError, "weigh or list the pairs of the union itself"):
        Union(domain.weigh_pairs(torch.zeros(4, 4)), Points(torch.rand(2, 2)))


def test_order_of_indices():
    assert is_ordered_by_index(Grid(2, 3))
    assert is_ordered_by_index(Sequence(times=torch.tensor([0.0, 0.5, 1.0])))
    assert not is_ordered_by_index(Sequence(times=torch.tensor([0.0, 0.5, 0.5])))
    for mask, is_ordered in (([0, 1, 0, 1], True), ([1, 1, 1, 0], False), ([1, 1, 0, 1], True), ([1, 0, 1, 1], True)):
        times = torch.tensor([0.0, 0.5, 0.5, 2.0])
        assert is_ordered_by_index(Sequence(times=times, mask=torch.tensor(mask).bool())) == is_ordered
    assert is_ordered_by_index(Sequence(times=torch.zeros(0)))
