import torch

from fredholm.training.batches import EpochBatches, iterate
from tests.training.toy_task import ToyTask


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
            assert all(torch.equal(one.rows[name], other.rows[name]) for name in one.rows)
            assert one[1:] == other[1:]
    assert torch.equal(state, torch.get_rng_state())
    noise = [batch.rows["x"] - batches._task.inputs[i] for batch, i in zip(plain, batches.indices, strict=True)]  # pyright: ignore[reportAttributeAccessIssue]
    assert not torch.allclose(noise[0], noise[1])  # every batch has its own stream
