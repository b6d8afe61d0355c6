"""Logarithmic scales of skewed numbers against loops, and their inverse."""

import math

import pytest
import torch
from torch import Tensor

from fredholm.models.fitted.logarithmic_scale import OFFSETS, LogarithmicScale, Logarithms
from fredholm.models.fitted.ridge_head import Readout


def skewed_numbers(n: int = 41) -> Tensor:
    """Two skewed columns, in opposite directions, about a symmetric one."""
    normal = torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.stack([normal[:, 0].exp(), normal[:, 1], 3 - 2 * normal[:, 2].exp()], 1)


def skewness(values: list[float]) -> float:
    mean = sum(values) / len(values)
    second, third = (sum((v - mean) ** k for v in values) / len(values) for k in (2, 3))
    return third / second**1.5


def test_the_offset_has_the_smallest_skewness() -> None:
    y = skewed_numbers()
    scales = Logarithms.of(y)
    assert scales is not None
    assert scales.is_skewed.tolist() == [True, False, True]
    found = scales.of_columns(y)
    for column, sign in ((0, 1.0), (2, -1.0)):
        values = [sign * v for v in y[:, column].tolist()]
        least, middle = min(values), sorted(values)[len(values) // 2]
        tried = [[math.log(v - least + float(share) * (middle - least)) for v in values] for share in OFFSETS]
        best = min(tried, key=lambda logs: abs(skewness(logs)))
        logs = torch.tensor(best, dtype=torch.float64)
        torch.testing.assert_close(found[:, column], (logs - logs.mean()) / logs.std(correction=0))
        assert abs(skewness(best)) < 0.1
    assert torch.equal(found[:, 1], y[:, 1])
    torch.testing.assert_close(scales.back(found), y)


def test_predictions_stay_in_the_range_of_training_and_keep_the_mean() -> None:
    y = skewed_numbers()
    scales = Logarithms.of(y)
    assert scales is not None
    z = scales.of_columns(y)
    far = scales.back(torch.full_like(z, 50.0))
    torch.testing.assert_close(far[0, [0, 2]], torch.stack([y[:, 0].max(), y[:, 2].min()]))
    left_out = z + 0.5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain, found = scales.back(left_out), scales.calibrated(left_out, y).back(left_out)
    for column in (0, 2):
        torch.testing.assert_close(found[:, column].mean(), y[:, column].mean())
        assert abs(float(plain[:, column].mean() - y[:, column].mean())) > 0.1
        ratio = (found[:, column] - scales.shift[column]) / (plain[:, column] - scales.shift[column])
        torch.testing.assert_close(ratio, ratio[:1].expand(len(y)))
    assert torch.equal(found[:, 1], left_out[:, 1])


def test_outputs_go_back_with_the_readout_of_their_column() -> None:
    y = skewed_numbers()
    scales = Logarithms.of(y)
    assert scales is not None
    column, shift = torch.tensor([0, 0, 1, 2]), torch.tensor([-0.5, 0.5, 9.0, 0.25], dtype=torch.float64)
    scale, z = LogarithmicScale(4), scales.of_columns(y)[:, column]
    assert torch.equal(scale(z), z)
    scale.read(scales, Readout(column, torch.tensor([1.0, 2.0, 7.0, 1.0], dtype=torch.float64), shift))
    expected = y[:, column] * torch.tensor([1.0, 2.0, 1.0, 1.0]) + shift
    expected[:, 2] = y[:, 1]  # the machine itself has read out what is not skewed
    torch.testing.assert_close(scale(z), expected)
    assert scale(z.float()).dtype == torch.float32
    scale.reset()
    assert torch.equal(scale(z), z)


@pytest.mark.parametrize(
    "values",
    [torch.randn(60, 1, generator=torch.Generator().manual_seed(3)), torch.ones(5, 1), torch.tensor([[0.0], [1.0]])],
)
def test_columns_that_are_not_skewed_have_no_logarithms(values: Tensor) -> None:
    assert Logarithms.of(values.double()) is None


def test_mostly_equal_numbers_have_finite_logarithms() -> None:
    y = torch.tensor([[0.0]] * 30 + [[5.0], [9.0]], dtype=torch.float64)
    scales = Logarithms.of(y)
    assert scales is not None
    torch.testing.assert_close(scales.back(scales.of_columns(y)), y)
