import pytest
import torch
from torch import Tensor

from fredholm.encoders.series import SeriesBatch
from fredholm.models.series.reading_in_parts import parts_of, read_in_parts


def numbers(given: SeriesBatch) -> Tensor:
    """The values, the times and the spacing of samples that exist."""
    assert given.times is not None
    assert given.spacing is not None
    assert given.mask is not None
    spacing = given.spacing[:, None].expand(given.times.shape)
    found = torch.stack([given.values[..., 0], given.times, spacing], -1)
    return torch.where(given.mask[..., None], found, 0.0)


@pytest.mark.parametrize("window", [None, 4, 7, 16])
def test_every_sample_is_read_once(window: int | None) -> None:
    lengths = torch.tensor([5, 16, 31, 1, 0])
    times = torch.arange(31.0) + 100 * torch.arange(5)[:, None]
    mask = torch.arange(31) < lengths[:, None]
    given = SeriesBatch(torch.randn(5, 31, 1), mask, times, torch.arange(5.0) + 1)
    torch.testing.assert_close(read_in_parts(numbers, given, window), numbers(given))
    longest = list[int]()
    read_in_parts(lambda part: longest.append(part.values.shape[1]) or numbers(part), given, window)
    assert max(longest) == (window or 31)


def test_parts_have_context_on_both_sides_and_end_with_the_series() -> None:
    parts = parts_of(0, 50, 16)
    assert [(part.start, part.length) for part in parts] == [(0, 16), (8, 16), (16, 16), (24, 16), (32, 16), (34, 16)]
    assert all((part.first, part.until) == (4, 12) for part in parts[1:-1])
    assert parts_of(3, 9, 16) == [(3, 0, 9, 0, 9)]
    assert parts_of(0, 0, 16) == []


def test_a_batch_without_samples() -> None:
    given = SeriesBatch(torch.zeros(2, 9, 1), torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 9), torch.ones(2))
    assert torch.equal(read_in_parts(numbers, given, 4), torch.zeros(2, 9, 3))
