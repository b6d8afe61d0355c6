import torch

from fredholm.tasks.series import permute_samples
from tests.refusals import refused
from tests.tasks.series.build import regular, timed


def test_all_series_get_one_order() -> None:
    whole = regular(*[[[100.0 * i + k] for k in range(9)] for i in range(3)], spacing=0.5)
    mixed, again, other = (permute_samples(whole, seed) for seed in (4, 4, 5))
    order = mixed.values[0, :, 0].long()
    assert sorted(order.tolist()) == list(range(9))
    assert order.tolist() != list(range(9))
    for i in range(3):
        assert torch.equal(mixed.values[i], whole.values[i, order])
    assert torch.equal(mixed.values, again.values)
    assert not torch.equal(mixed.values, other.values)
    assert mixed.spacing == 0.5


def test_series_without_a_common_order_are_refused() -> None:
    for series in (regular([[1.0], [2.0]], [[3.0]]), timed([(0, 0), (1, 1), (5, 2)])):
        with refused(ValueError, "one length"):
            permute_samples(series, 0)
