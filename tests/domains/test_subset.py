import torch

from fredholm.domains import Grid, Points, Sequence, subset


def test_shared_points_stay_shared_and_own_ones_are_gathered() -> None:
    shared, own = torch.randn(5, 2), torch.randn(3, 5, 2)
    one, each = torch.tensor([4, 0, 4]), torch.tensor([[1, 2], [0, 0], [4, 3]])
    for pos in (shared, own):
        for index in (one, each):
            chosen = subset(Points(pos), index, torch.ones(index.shape))
            batched = pos.ndim == 3 or index.ndim == 2
            expected = pos.expand(3, -1, -1).gather(1, index.expand(3, -1)[..., None].expand(-1, -1, 2))
            assert torch.equal(chosen.pos, expected if batched else expected[0])


def test_points_keep_their_times_and_wrap_as_before() -> None:
    times = torch.tensor([0.0, 1.0, 4.0, 4.5])
    chosen = subset(Sequence(times=times), torch.tensor([[1, 3]]), torch.ones(1, 2), times)
    assert chosen.times is not None
    assert chosen.times.tolist() == [[1.0, 4.5]]
    assert subset(Grid(4, periodic=True), torch.tensor([2]), torch.ones(1)).is_periodic
