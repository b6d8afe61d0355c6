"""A linear function of the last samples and a kernel machine on them: coordinates, shares and gains."""

import pytest
import torch
from torch import Tensor

from fredholm.encoders import SeriesBatch
from fredholm.models import FilterBank, LagMachine, SeriesSampling
from fredholm.models.fitted import second_reading
from fredholm.models.fitted.ridge_head import ScoreRecorder
from fredholm.tasks.forecasts.gain import ShrunkTarget
from fredholm.tasks.targets import NumberTarget
from tests.refusals import refused

LINEAR = FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=8)
ONE = NumberTarget(names=("next",), mean=(0.0,), deviation=(1.0,))


def machine(channels: int = 1, num_outputs: int = 1, num_coordinates: int = 96, longest: int = 6) -> LagMachine:
    torch.manual_seed(0)
    sampling = SeriesSampling(channels=channels, spacing=1.0, extent=float(longest - 1))
    config = LagMachine.Config(bank=LINEAR, num_coordinates=num_coordinates, num_centres=60)
    return config.build(sampling, num_outputs)


def windows(of: Tensor, length: int = 6) -> tuple[Tensor, Tensor]:
    """All windows `(n, length, 1)` of a series, and the samples after them, `(n, 1)`."""
    found = of.unfold(0, length + 1, 1)
    return found[:, :-1, None], found[:, -1:].double()


def tent(count: int) -> Tensor:
    """A chaotic series without linear autocorrelation."""
    x = [0.3137]
    while len(x) < count:
        x.append(1.9999 * min(x[-1], 1 - x[-1]))
    return torch.tensor(x)


def waves(count: int) -> Tensor:
    """A linear series: each sample is a linear function of the four before it, plus noise."""
    t, noise = torch.arange(count), torch.randn(count, generator=torch.Generator().manual_seed(0))
    return torch.sin(0.7 * t) + torch.cos(2.1 * t) + 0.03 * noise


@pytest.mark.parametrize(("channels", "num_coordinates", "num_lags"), [(1, 96, 6), (2, 9, 4), (3, 2, 1)])
def test_coordinates_are_lags_divided_by_the_root_of_their_age(
    channels: int, num_coordinates: int, num_lags: int
) -> None:
    u = torch.randn(2, 6, channels, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[6], [2]])
    found = machine(channels, 1, num_coordinates).coordinates(SeriesBatch(u, mask=mask))
    assert found.shape == (2, channels * num_lags)
    for row, length in enumerate((6, 2)):
        for channel in range(channels):
            for k in range(1, num_lags + 1):
                expected = float(u[row, length - k, channel]) / k**0.5 if k <= length else 0.0
                assert float(found[row, (channel + 1) * num_lags - k]) == pytest.approx(expected, rel=1e-6)


def test_a_nonlinear_series_is_predicted_by_the_kernel() -> None:
    inputs, targets = windows(tent(160))
    built = machine()
    left_out = built.fit([(SeriesBatch(inputs[:100]), targets[:100])], ONE, groups=torch.arange(100) // 20)
    share = built.second.gain[1]
    assert float(share) >= 0.9
    of_bank = built.bank(inputs[100:]).detach()
    errors = [float((each - targets[100:]).square().mean()) for each in (of_bank, built(inputs[100:]).detach())]
    assert errors[1] < 0.1 * errors[0]
    assert float((left_out - targets[:100]).square().mean()) < 0.1 * errors[0]


def test_the_linear_function_reads_whole_windows() -> None:
    inputs = torch.randn(220, 31, 1, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, 1].double()  # 29 samples before the last
    torch.manual_seed(0)
    config = LagMachine.Config(num_coordinates=4, num_centres=20)
    built = config.build(SeriesSampling(channels=1, spacing=1.0, extent=30.0), 1)
    built.fit([(SeriesBatch(inputs[:200]), targets[:200])], ONE)
    torch.testing.assert_close(built.bank(inputs[200:]).double(), targets[200:], rtol=0.1, atol=0.1)


def test_a_linear_series_is_predicted_by_the_linear_function_alone() -> None:
    inputs, targets = windows(waves(160))
    built, bank = machine(), LINEAR.build(machine().sampling, 1)
    groups = torch.arange(len(inputs)) // 20
    left_out = built.fit([(SeriesBatch(inputs), targets)], ONE, groups=groups)
    expected = bank.fit([(SeriesBatch(inputs), targets)], ONE, groups=groups)
    assert built.second.gain.tolist() == [[1.0], [0.0]]
    torch.testing.assert_close(left_out, expected)
    torch.testing.assert_close(built(inputs), bank(inputs))


def test_a_part_that_is_useless_alone_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readout is fitted to both scores; the linear function alone has the gain 0 here."""
    inputs, targets = windows(tent(160) - 0.5)
    groups = torch.arange(len(inputs)) // 20
    built, alone = machine(), machine()
    alone.bank.fit([(SeriesBatch(inputs), targets)], ShrunkTarget(ONE, None), groups=groups)
    assert not alone.bank.head.weight.any()
    monkeypatch.setattr(second_reading, "SHARES", (0.0, 0.5))
    torch.manual_seed(1)
    left_out = built.fit([(SeriesBatch(inputs), targets)], ShrunkTarget(ONE, None), groups=groups)
    of_bank, of_kernel = ScoreRecorder(ONE), ScoreRecorder(ONE)
    torch.manual_seed(1)
    alone.bank.fit([(SeriesBatch(inputs), targets)], of_bank, groups=groups)
    alone.second.machine.fit(alone.coordinates(inputs), targets, of_kernel, groups=groups)
    assert built.second.gain.tolist() == [[0.5], [0.5]]
    torch.testing.assert_close(left_out, 0.5 * of_bank.scores + 0.5 * of_kernel.scores)
    assert alone.bank.head.weight.any()
    outputs = 0.5 * alone.bank(inputs) + 0.5 * alone.second.machine(alone.coordinates(inputs))
    torch.testing.assert_close(built(inputs), outputs)


def test_single_series_and_bad_arguments() -> None:
    one = machine()
    one.fit([(SeriesBatch(torch.randn(1, 6, 1)), torch.ones(1, 1, dtype=torch.float64))], ONE)
    torch.testing.assert_close(one(torch.randn(3, 6, 1)).detach(), torch.ones(3, 1))
    with refused(ValueError, "models.FilterBank: there is no series to fit to"):
        one.fit([], ONE)
    with refused(ValueError, "models.LagMachine", "num_coordinates", "0"):
        LagMachine.Config(num_coordinates=0)
    with refused(ValueError, "models.LagMachine", "num_centres", "0"):
        LagMachine.Config(num_centres=0)
