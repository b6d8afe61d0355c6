import torch

from fredholm.training.batches import EpochBatches, bucketed_batches, epoch_batches, iterate
from tests.training.toy_task import ToyTask


def test_the_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    order = torch.cat(epoch_batches(50, 8, seed=3, epoch=2))
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, torch.cat(epoch_batches(50, 8, seed=3, epoch=2)))
    others = [torch.cat(epoch_batches(50, 8, seed, epoch)) for seed, epoch in ((3, 1), (2, 3))]
    assert not any(torch.equal(order, other) for other in others)


def test_buckets_hold_examples_of_about_one_length() -> None:
    lengths = torch.randint(1, 100, (2003,), generator=torch.Generator().manual_seed(0))
    batches, again, other = (bucketed_batches(lengths, 8, seed=3, epoch=epoch) for epoch in (2, 2, 1))
    assert sorted(torch.cat(batches).tolist()) == list(range(2003))
    assert sorted(map(len, batches)) == [3] + [8] * 250
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    assert {frozenset(a.tolist()) for a in batches}.isdisjoint(frozenset(a.tolist()) for a in other)
    places = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert places < 1.15 * int(lengths.sum())
    means = torch.tensor([lengths[batch].double().mean() for batch in batches])
    assert abs(float(torch.corrcoef(torch.stack([means, torch.arange(251.0).double()]))[0, 1])) < 0.15


def test_batches_cover_the_epoch_once() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    assert [len(indices) for indices in batches.indices] == [8] * 6 + [2]
    assert sorted(torch.cat(list(batches.indices)).tolist()) == list(range(50))


def test_workers_and_a_late_start_give_the_same_batches_and_draw_nothing_global() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=4)
    state = torch.get_rng_state()
    plain = list(iterate(batches, 0, num_workers=0, pin_memory=False))
    for start, num_workers in ((0, 2), (3, 0), (3, 1)):
        batch_list = list(iterate(batches, start, num_workers=num_workers, pin_memory=False))
        assert len(batch_list) == 7 - start
        for one, other in zip(plain[start:], batch_list, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(state, torch.get_rng_state())
    noise = [batch["x"] - batches._task.inputs[i] for batch, i in zip(plain, batches.indices, strict=True)]  # pyright: ignore[reportAttributeAccessIssue]
    assert not torch.allclose(noise[0], noise[1])  # every batch has its own stream
