"""Series machines: numbers of a series by loops, and that what is said is the better of filters and places."""

import math

import torch
from torch import Tensor

from fredholm.encoders import SeriesBatch
from fredholm.models import FilterBank, SeriesMachine, SeriesSampling
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

FEW = FilterBank.Config(num_thresholds=6, num_groups=2)
CLASSES = ClassTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("at",), mean=(20.0,), deviation=(10.0,), quantiles=())


def machine(sampling: SeriesSampling, num_outputs: int = 2, num_places: int = 32) -> SeriesMachine:
    torch.manual_seed(0)
    return SeriesMachine.Config(bank=FEW, num_places=num_places).build(sampling, num_outputs)


def noise(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


def steps(count: int) -> tuple[Tensor, Tensor]:
    """Series whose level changes at a sample, and which one."""
    at = 4 + torch.arange(count) * 7 % 32
    return (torch.arange(40) >= at[:, None]).float()[..., None] + 0.2 * noise(count, 40, 1), at


def test_numbers_are_means_by_place_and_what_times_say() -> None:
    sampling = SeriesSampling(channels=3, spacing=0.5, extent=9.0, observation=(0,))
    built = machine(sampling, num_places=4)
    seen = torch.rand(3, 12, 1, generator=torch.Generator().manual_seed(1)) < 0.4
    values = torch.cat([torch.where(seen, noise(3, 12, 1), 0.0), noise(3, 12, 1) + 2, seen.float()], -1)
    times = (0.1 + torch.rand(3, 12, generator=torch.Generator().manual_seed(2))).double().cumsum(1)
    exists = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
    found = built.numbers(SeriesBatch(values, exists, times))
    by_place, of_times = found[:, 18:26].unflatten(1, (2, 4)), found[:, 26:]
    for i, n in enumerate((12, 7, 3)):
        t = times[i, :n]
        place = ((t - t[0]) / (t[-1] - t[0]) * 4).floor().clamp_max(3)
        for c in range(2):
            counts = seen[i, :n, 0] if c == 0 else torch.ones(n, dtype=torch.bool)
            known = {k: values[i, :n, c][counts & (place == k)].mean() for k in place[counts].unique().tolist()}
            for k in range(4):
                left = max((j for j in known if j <= k), default=None)
                right = min((j for j in known if j >= k), default=None)
                near = [j for j in (left, right) if j is not None]
                if not near:
                    assert by_place[i, c, k].isnan()
                    continue
                a, b = known[near[0]], known[near[-1]]
                share = (k - near[0]) / max(near[-1] - near[0], 1)
                torch.testing.assert_close(by_place[i, c, k], a + share * (b - a), rtol=1e-5, atol=1e-5)
        gaps = (t.diff() / 0.5).log()
        expected = [math.log(n), float((t[-1] - t[0]) / 0.5), float(gaps.mean()), float(gaps.std(correction=0))]
        torch.testing.assert_close(of_times[i].tolist(), expected, rtol=1e-4, atol=1e-4)


def test_when_something_happens_is_told() -> None:
    values, at = steps(90)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    left_out = built.fit([(SeriesBatch(values[:60]), NUMBER.targets(at[:60, None].float()))], NUMBER)
    wanted = NUMBER.targets(at[:, None].float())
    with torch.no_grad():
        errors = [float((told - wanted[60:]).square().mean()) for told in (built(values[60:]), built.bank(values[60:]))]
    assert errors[0] < 0.02 < errors[1]
    assert float((left_out - wanted[:60]).square().mean()) < 0.05
    assert float(built.gain[1]) > 0.5


def test_where_shapes_decide_filters_do() -> None:
    phase = 6.3 * torch.rand(60, 1, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(60) % 2
    values = torch.sin((0.9 + 0.25 * labels[:, None]) * torch.arange(90) + phase)[..., None] + 0.3 * noise(60, 90, 1)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=89.0))
    built.fit([(SeriesBatch(values[:40]), labels[:40])], CLASSES)
    assert bool((built(values[40:]).argmax(1) == labels[40:]).all())
    assert float(built.gain[0].min()) > 0.5 > float(built.gain[1].max())


def test_outputs_are_read_from_the_mean_of_scores() -> None:
    values, at = steps(40)
    target = NumberTarget(names=("at",), mean=(20.0,), deviation=(10.0,), quantiles=(0.1, 0.5, 0.9))
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 3)
    left_out = built.fit([(SeriesBatch(values), target.targets(at[:, None].float()))], target)
    told = built(values)
    torch.testing.assert_close(told[:, 1:].diff(dim=0), told[:, :2].diff(dim=0), rtol=1e-3, atol=1e-3)
    # three levels of one score are as far apart as those of series that are left out
    torch.testing.assert_close(told.diff(dim=1).double(), left_out.diff(dim=1), rtol=1e-3, atol=1e-3)


def test_mates_of_a_batch_and_saving_change_nothing() -> None:
    values, at = steps(30)
    sampling = SeriesSampling(channels=1, spacing=1.0, extent=39.0)
    built = machine(sampling)
    built.fit([(SeriesBatch(values), (at > 18).long())], CLASSES)
    exists = torch.arange(40) < torch.tensor([40, 25, 1])[:, None]
    together = built(SeriesBatch(values[:3], exists))
    for i, n in enumerate((40, 25, 1)):
        torch.testing.assert_close(built(values[i : i + 1, :n]), together[i : i + 1], rtol=1e-4, atol=1e-4)
    other = machine(sampling)
    other.load_state_dict(built.state_dict())
    torch.testing.assert_close(other(values), built(values))


def test_one_series_is_told_as_it_is() -> None:
    values, _ = steps(1)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    built.fit([(SeriesBatch(values), torch.ones(1, 1))], NUMBER)
    torch.testing.assert_close(built(values), torch.ones(1, 1))


def test_sizes_below_one_are_refused() -> None:
    with refused(ValueError, "models.SeriesMachine", "num_places", "0"):
        SeriesMachine.Config(num_places=0)
    with refused(ValueError, "models.SeriesMachine", "num_centres", "0"):
        SeriesMachine.Config(num_centres=0)
