import math
from typing import Any

import pytest
import torch

from fredholm.domains import Sequence
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models import ITNet
from fredholm.models.kernel_configs import ContinuousConvolutionConfig, KernelConfig, RecurrenceConfig
from fredholm.models.signal_model import Pool
from tests.refusals import refused

MASK = torch.tensor([[True] * 5, [True, True, True, False, False]])


def test_samples_at_the_training_rate_weigh_1() -> None:
    values = torch.randn(2, 5, 3)
    signal, domain = Series(3, spacing=0.5)(values)
    assert torch.equal(signal, values)
    assert isinstance(domain, Sequence)
    assert domain.is_plain
    assert domain.pos[:, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert domain.counts.tolist() == [1.0] * 5
    for spacing in (torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5], dtype=torch.float64) * (1 + 1e-8)):
        assert Series(3, spacing=0.5)(SeriesBatch(values, spacing=spacing))[1].is_plain
    masked = Series(3, spacing=0.5)(SeriesBatch(values, MASK))[1]
    assert torch.equal(masked.counts, MASK.double())


@pytest.mark.parametrize("rate", [0.25, 2.0])
def test_samples_at_another_rate_weigh_their_time_interval(rate: float) -> None:
    batch = SeriesBatch(torch.randn(2, 5, 3), MASK, spacing=torch.tensor([rate, rate]))
    domain = Series(3, spacing=0.5)(batch)[1]
    assert domain.pos[:, 0].tolist() == [k * rate for k in range(5)]
    assert len(domain.grid_blocks) == 1
    torch.testing.assert_close(domain.counts, MASK * (rate / 0.5) * torch.ones(5, dtype=torch.float64))


def test_irregular_samples_weigh_half_the_distance_to_their_neighbours() -> None:
    times = torch.tensor([[0.0, 1, 2, 6, 8], [1, 4, 5, 0, 0]], dtype=torch.float64)
    domain = Series(1, spacing=0.5)(SeriesBatch(torch.randn(2, 5, 1), MASK, times))[1]
    expected = torch.tensor([[0.5, 1, 2.5, 3, 1], [1.5, 2, 0.5, 0, 0]]) / 0.5
    torch.testing.assert_close(domain.counts, expected.double())
    assert torch.equal(domain.pos[0, :, 0], times[0])


def test_a_single_sample_weighs_1() -> None:
    times = torch.tensor([[3.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True]])
    domain = Series(1, spacing=0.5)(SeriesBatch(torch.randn(2, 2, 1), mask, times))[1]
    assert domain.counts.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_rates_that_differ_within_a_batch() -> None:
    batch = SeriesBatch(torch.randn(2, 4, 1), MASK[:, :4], spacing=torch.tensor([0.5, 2.0]))
    domain = Series(1, spacing=0.5)(batch)[1]
    assert domain.pos[..., 0].tolist() == [[0.0, 0.5, 1.0, 1.5], [0.0, 2.0, 4.0, 0.0]]
    assert domain.counts.tolist() == [[1.0] * 4, [4.0, 4.0, 4.0, 0.0]]


@pytest.mark.parametrize("extent", [None, 3.0])
def test_a_series_does_not_depend_on_other_rates_in_the_batch(extent: float | None) -> None:
    mask = torch.tensor([[True] * 4, [False, True, True, False]])
    encoder, values, rates = Series(1, extent=extent), torch.randn(2, 4, 1), torch.tensor([1.0, 2.0])
    together = encoder(SeriesBatch(values, mask, spacing=rates))[1]
    for i, exists in enumerate(mask):
        alone = encoder(SeriesBatch(values[i, None], exists[None], spacing=rates[i, None]))[1]
        torch.testing.assert_close(together.pos[i, exists, 0], alone.pos[exists, 0])
        torch.testing.assert_close(together.counts[i], alone.counts[0])


def test_a_linear_map_of_the_channels() -> None:
    encoder, values = Series(3, 7), torch.randn(2, 5, 3)
    signal, _ = encoder(SeriesBatch(torch.where(MASK[..., None], values, torch.nan), MASK))
    assert isinstance(encoder.embedding, torch.nn.Linear)
    expected = values @ encoder.embedding.weight.mT + encoder.embedding.bias
    torch.testing.assert_close(signal, torch.where(MASK[..., None], expected, 0.0))
    assert (encoder.embed_dim, Series(3).embed_dim, encoder.pos_dim) == (7, 3, 1)


def test_no_samples() -> None:
    signal, domain = Series(3)(torch.zeros(2, 0, 3))
    assert (signal.shape, domain.num_points) == ((2, 0, 3), 0)
    assert Series(3)(torch.zeros(0, 4, 3))[0].shape == (0, 4, 3)


def test_with_an_extent_weights_have_mean_1_also_at_irregular_times() -> None:
    times = torch.tensor([[0.0, 1.0, 2.0, 6.0, 7.0], [3.0, 3.5, 7.0, 7.0, 7.0]], dtype=torch.float64)
    domain = Series(3, extent=10.0)(SeriesBatch(torch.randn(2, 5, 3), MASK, times))[1]
    torch.testing.assert_close(domain.weights.sum(-1), torch.ones(2).double())
    torch.testing.assert_close(domain.counts.sum(-1), MASK.sum(-1).double())
    torch.testing.assert_close(domain.counts[0], torch.tensor([0.5, 1.0, 2.5, 2.5, 0.5]).double() * 5 / 7)


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("kernel", [ContinuousConvolutionConfig(depthwise=False), RecurrenceConfig()])
def test_a_series_gives_the_same_output_from_times_and_from_a_rate(kernel: KernelConfig, pool: Pool) -> None:
    torch.manual_seed(0)
    encoder = Series(2, 4, spacing=0.1, extent=6.3)
    model = ITNet.Config(embed_dim=4, depth=1, kernel=kernel, pool=pool).build(encoder, 3).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    values = torch.randn(2, 64, 2, dtype=torch.float64)
    times = (0.1 * torch.arange(64).double()).expand(2, -1)
    at_rate, at_times = model(values), model(SeriesBatch(values, times=times))
    # the trapezoid rule halves the first and the last sample
    assert (at_rate - at_times).norm() < 0.1 * at_rate.norm()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"values": torch.zeros(2, 5)}, "expected float values of shape (batch, samples, 3); got (2, 5)"),
        ({"values": torch.zeros(2, 5, 4)}, "got (2, 5, 4)"),
        ({"values": torch.zeros(2, 5, 3).long()}, "torch.int64"),
        ({"values": torch.full((2, 5, 3), math.nan)}, "values hold NaN or infinite numbers at samples that exist"),
        ({"times": torch.zeros(2, 5) - torch.arange(5)}, "times must not decrease"),
        ({"times": torch.full((2, 5), math.nan)}, "NaN"),
        ({"spacing": torch.tensor([1.0, -1.0])}, "spacing must be (2,), above 0"),
        ({"spacing": torch.tensor([1.0, 2.0, 3.0])}, "spacing must be (2,), above 0; got (3,)"),
    ],
)
def test_bad_batches_are_refused(batch: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        Series(3)(SeriesBatch(**{"values": torch.zeros(2, 5, 3), **batch}))


def test_bad_settings_are_refused() -> None:
    with refused(ValueError, "encoders.Series: channels must be at least 1; got 0"):
        Series(0)
    with refused(ValueError, "encoders.Series: embed_dim must be at least 1; got 0"):
        Series(1, 0)
    for spacing in (0.0, math.inf, math.nan):
        with refused(ValueError, f"encoders.Series: spacing must be a finite number above 0; got {spacing}"):
            Series(1, spacing=spacing)
