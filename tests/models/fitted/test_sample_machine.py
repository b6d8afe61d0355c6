import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm.encoders.series import SeriesBatch
from fredholm.models import SampleMachine, SeriesSampling
from fredholm.models.fitted import sample_machine
from fredholm.models.fitted.sample_machine import OF_CHANNEL, OF_SAMPLE
from fredholm.tasks.targets import UNKNOWN, ElementTarget
from tests.refusals import refused

TARGET = ElementTarget(names=("a", "b"))


def machine(extent: float = 19.0, channels: int = 2, spacing: float = 1.0, **sizes: int) -> SampleMachine:
    sampling = SeriesSampling(channels=channels, spacing=spacing, extent=extent)
    return SampleMachine.Config(**{"num_samples": 200, "num_trees": 4, **sizes}).build(sampling, 2)


def numbers(built: SampleMachine, batch: SeriesBatch, i: int = 0) -> Tensor:
    """v of all samples of a series, `(N, channels, numbers)`: those for all reaches, and eight for each reach."""
    one = sample_machine._Series.of(batch, i, batch.values.shape[1], built.sampling.spacing)
    found = sample_machine._Windows(one, built.reaches).all_numbers(torch.arange(one.u.shape[1]))
    return found.unflatten(1, (-1, one.u.shape[0])).mT


def literal(u: np.ndarray, inside: np.ndarray, t: int) -> list[float]:
    """The eight numbers of a window of one channel: five of any window, and three of the channels alone."""
    steps = np.abs(np.diff(u, prepend=u[0]))
    at = np.flatnonzero(inside)
    own = u[at]
    later, earlier = u[at[at >= t]].mean(), u[at[at <= t]].mean()
    return [own.mean(), own.std(), steps[at].mean(), own[0], own[-1], later - earlier, own.min(), own.max()]


@pytest.mark.parametrize("timing", ["regular", "irregular", "half the rate"])
def test_numbers_of_windows(timing: str) -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(20, 2)) + 100
    times = np.cumsum(rng.uniform(0.3, 2.0, 20)) if timing == "irregular" else np.arange(20.0)
    times = 2 * times if timing == "half the rate" else times
    batch = SeriesBatch(torch.from_numpy(u)[None])
    if timing == "irregular":
        batch = batch._replace(times=torch.from_numpy(times)[None])
    elif timing == "half the rate":
        batch = batch._replace(spacing=torch.tensor([2.0]))
    built = machine()
    assert built.reaches == [1, 2, 4, 8]
    found = numbers(built, batch).double().numpy()
    assert found.shape == (20, 2, 4 * OF_CHANNEL + OF_SAMPLE)
    of_any = 3 + 5 * len(built.reaches)
    for t in range(20):
        for c in range(2):
            np.testing.assert_allclose(found[t, c, :3], [u[t, c], u[:, c].mean(), u[:, c].std()], rtol=1e-4)
            for k, reach in enumerate(built.reaches):
                expected = literal(u[:, c], np.abs(times - times[t]) <= reach + 1e-9, t)
                got = [*found[t, c, 3 + 5 * k : 8 + 5 * k], *found[t, c, of_any + 3 * k : of_any + 3 * k + 3]]
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("longest", "room", "expected"),
    [(9, 1000, [1, 2, 4, 8]), (512, 1000, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]), (8, 20, [1, 3]), (99, 1, [1])],
)
def test_reaches(longest: int, room: int, expected: list[int]) -> None:
    found = sample_machine._reaches(longest, room, OF_CHANNEL)
    assert found[0] == 1
    assert len(found) <= max(1, (room - OF_SAMPLE) // OF_CHANNEL)
    assert found == expected or len(expected) == len(found) == 2


def states(count: int, length: int = 24) -> tuple[SeriesBatch, Tensor]:
    labels = torch.arange(length) // 6 % 2 + torch.zeros(count, 1, dtype=torch.int64)
    torch.manual_seed(0)
    return SeriesBatch((labels + 0.2 * torch.randn(count, length))[..., None]), labels


def test_left_out_outputs_are_those_of_the_drawn_samples() -> None:
    batch, labels = states(6)
    labels[:, ::2] = UNKNOWN
    built = machine(channels=1, num_samples=50)
    assert built.fit([(batch, labels)], TARGET).shape == (50, 2)
    built = machine(channels=1)
    assert len(built.fit([(batch, labels)], TARGET)) == int((labels != UNKNOWN).sum())


@pytest.mark.parametrize(("count", "parts"), [(6, 6), (1, 5)])
def test_series_are_left_out_whole_and_few_in_parts(count: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Tensor]()
    fit = sample_machine.BoostedTrees.fit

    def recorded(self: sample_machine.BoostedTrees, *data: Tensor, groups: Tensor, weights: None) -> Tensor:
        given.append(groups)
        return fit(self, *data, groups=groups, weights=weights)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(sample_machine.BoostedTrees, "fit", recorded)
    batch, labels = states(count, 40)
    machine(channels=1, num_samples=1000).fit([(batch, labels)], TARGET)
    assert all(own.equal(torch.arange(40 * count) * parts // (40 * count)) for own in given)
    assert len(given) == 2


def test_no_series_is_seen_by_the_first_trees_that_it_teaches_the_second() -> None:
    """Without the series itself in the first trees, its noise labels are no better than chance for the second."""
    torch.manual_seed(1)
    batch = SeriesBatch(torch.randn(8, 40, 1))
    labels = torch.randint(2, (8, 40))
    built = machine(channels=1, num_samples=320, num_trees=10, extent=9.0)
    left_out = built.fit([(batch, labels)], TARGET)
    assert float((left_out.argmax(-1) == labels.flatten()).float().mean()) < 0.6


def test_of_many_samples_some_series_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_machine, "MOST_READ", 30)
    torch.manual_seed(0)
    found = sample_machine._some_read([10, 0, *[10] * 10])
    assert len(found) == 5  # as many as folds, of at least 30 samples
    assert found == sorted(found)
    assert 1 not in found


def test_what_cannot_be_fitted_is_refused() -> None:
    batch, labels = states(6)
    with refused(ValueError, "models.SampleMachine: 0 samples have a known class; expected at least 2"):
        machine(channels=1).fit([(batch, torch.full_like(labels, UNKNOWN))], TARGET)
    mask = torch.ones(6, 24, dtype=torch.bool)
    mask[0, 3] = False
    with refused(ValueError, "models.SampleMachine: samples exist after others that do not; put padding last"):
        machine(channels=1)(batch._replace(mask=mask))


def test_series_of_greater_weight_count_more() -> None:
    values, classes = torch.zeros(20, 10, 2), (torch.arange(20) % 2)[:, None].expand(20, 10)
    weights = torch.where(torch.arange(20) % 2 == 0, 9.0, 1.0).double()
    for given, expected in ((None, 0.5), (weights, 0.9)):
        built = machine()
        built.fit([(SeriesBatch(values), classes)], TARGET, weights=given)
        found = built(values[:1]).detach().softmax(-1)[0, 0, 0]
        assert float(found) == pytest.approx(expected, abs=0.03)
