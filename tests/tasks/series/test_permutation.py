import torch

from fredholm.tasks.series import permute_samples
from tests.refusals import refused
from tests.tasks.series.build import regular, timed


def test_all_series_get_one_order() -> None:
    whole = regular(*[[[100.0 * i + k] for k in range(9)] for i in range(3)], spacing=0.5)
    mixed, again, other = (permute_samples(whole, seed, 9) for seed in (4, 4, 5))
    order = mixed.values[0, :, 0].long()
    assert sorted(order.tolist()) == list(range(9))
    assert order.tolist() != list(range(9))
    for i in range(3):
        assert torch.equal(mixed.values[i], whole.values[i, order])
    assert torch.equal(mixed.values, again.values)
    assert not torch.equal(mixed.values, other.values)
    assert mixed.spacing == 0.5


def test_series_without_a_common_order_are_refused() -> None:
    with refused(ValueError, "s1: has 1 samples", "needs 2"):
        permute_samples(regular([[1.0], [2.0]], [[3.0]]), 0, 2)
    with refused(ValueError, "s0: has 2 samples", "needs 3"):
        permute_samples(regular([[1.0], [2.0]]), 0, 3)
    with refused(ValueError, "irregular times"):
        permute_samples(timed([(0, 0), (1, 1), (5, 2)]), 0, 3)
