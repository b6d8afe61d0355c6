"""The order of an epoch: every example once, by chance, and kind to disks where examples lie in shards."""

import pytest
import torch
from torch import Tensor

from fredholm.training import order
from fredholm.training.order import Cut, bucketed_batches, epoch_batches, shuffled


def joined(batches: Cut) -> Tensor:
    return torch.cat(list(batches))


def test_the_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    order = joined(epoch_batches(50, 8, seed=3, epoch=2))
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, joined(epoch_batches(50, 8, seed=3, epoch=2)))
    others = [joined(epoch_batches(50, 8, seed, epoch)) for seed, epoch in ((3, 1), (2, 3))]
    assert not any(torch.equal(order, other) for other in others)


def test_buckets_hold_examples_of_about_one_length() -> None:
    lengths = torch.randint(1, 100, (2003,), generator=torch.Generator().manual_seed(0))
    batches, again, other = (bucketed_batches(lengths, 8, seed=3, epoch=epoch) for epoch in (2, 2, 1))
    assert sorted(joined(batches).tolist()) == list(range(2003))
    assert sorted(map(len, batches)) == [3] + [8] * 250
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    assert {frozenset(a.tolist()) for a in batches}.isdisjoint(frozenset(a.tolist()) for a in other)
    places = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert places < 1.15 * int(lengths.sum())
    longest = torch.tensor([int(lengths[batch].max()) for batch in batches])
    assert 0.4 < (longest.diff() > 0).double().mean() < 0.6  # neither a pool nor the epoch goes from short to long


def test_a_cut_has_its_batches_by_number() -> None:
    cut = Cut(torch.arange(10, 20), 4, torch.tensor([2, 0, 1]))
    assert len(cut) == 3
    assert [batch.tolist() for batch in cut] == [[18, 19], [10, 11, 12, 13], [14, 15, 16, 17]]
    for number in (-1, 3):
        with pytest.raises(IndexError):
            cut[number]


SHARDS = torch.tensor([30, 1, 17, 30, 30, 9] * 10)
STARTS = SHARDS.cumsum(0) - SHARDS


def order_of(seed: int, epoch: int, **settings: Tensor) -> Tensor:
    return joined(epoch_batches(int(SHARDS.sum()), 8, seed, epoch, SHARDS))


def test_with_shards_every_example_comes_once_in_an_order_of_its_epoch() -> None:
    one = order_of(3, 2)
    assert one.dtype == torch.int64
    assert sorted(one.tolist()) == list(range(int(SHARDS.sum())))
    assert torch.equal(one, order_of(3, 2))
    assert not torch.equal(one, order_of(3, 1))
    assert not torch.equal(one, order_of(2, 2))


def test_few_shards_are_read_at_a_time_and_their_examples_mixed() -> None:
    one, other = order_of(0, 0), order_of(0, 1)
    shard = torch.searchsorted(STARTS, one, right=True) - 1
    first, last = (torch.tensor([int((shard == k).nonzero()[at]) for k in range(len(SHARDS))]) for at in (0, -1))
    at_a_time = [int(((first <= place) & (last >= place)).sum()) for place in range(len(one))]
    assert max(at_a_time) <= order.OPEN
    assert sum(at_a_time) / len(one) > order.OPEN / 2
    apart = (one.diff() != 1).double().mean()
    assert apart > 0.98  # neighbours on the disk seldom follow each other
    assert (shard.diff() != 0).double().mean() > 0.85

    def together(found: Tensor) -> set[frozenset[int]]:
        pools = (torch.searchsorted(STARTS, found, right=True) - 1).split(300)
        return {frozenset(pool.tolist()) for pool in pools}

    assert together(one).isdisjoint(together(other))  # other shards meet in another epoch


def test_rows_of_several_processes_never_overlap() -> None:
    batches = epoch_batches(int(SHARDS.sum()), 8, 0, 0, SHARDS)
    rows = [row for rank in range(3) for batch in batches for row in batch[rank::3].tolist()]
    assert sorted(rows) == list(range(int(SHARDS.sum())))


def test_buckets_of_shards_read_few_at_a_time() -> None:
    lengths = torch.randint(1, 100, (int(SHARDS.sum()),), generator=torch.Generator().manual_seed(0))
    whole = epoch_batches(len(lengths), 8, 3, 2, SHARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "POOL", 2)
        patch.setattr(order, "OPEN", 5)
        batches = bucketed_batches(lengths, 8, seed=3, epoch=2, shards=SHARDS)
        place = torch.empty(len(lengths), dtype=torch.int64)
        place[joined(epoch_batches(len(lengths), 8, 3, 2, SHARDS))] = torch.arange(len(lengths))
    assert len(batches) == len(whole)
    assert sorted(joined(batches).tolist()) == list(range(len(lengths)))
    moved = place[joined(batches)] - torch.arange(len(lengths))
    assert 40 < moved.abs().max() <= 2 * 5 * 8  # within the batches of five pools
    spread = [int(lengths[batch].max() - lengths[batch].min()) for batch in batches]
    assert sum(spread) / len(spread) < 50


def test_one_shard_is_all_examples_alike() -> None:
    found = shuffled(50, torch.Generator().manual_seed(0), torch.tensor([50]))
    assert sorted(found.tolist()) == list(range(50))
    assert (found.diff() != 1).double().mean() > 0.8
