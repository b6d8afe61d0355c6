import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fredholm.tasks.series import Fill, Preparation
from tests.refusals import refused
from tests.tasks.series.build import NAN, regular


def test_observed_training_values_have_mean_0_and_deviation_1() -> None:
    train = regular([[1, 100], [NAN, 200], [4, 600]], [[7, 300]])
    prepared = Preparation.learn(train)
    values = prepared.apply(train.values)[train.exists]
    assert prepared.observation == (0,)
    assert prepared.num_channels == values.shape[-1] == 3
    observed = values[:, 2].bool()
    assert observed.tolist() == [True, False, True, True]
    assert values[1, 0] == 0
    for column in (values[observed, 0], values[:, 1]):
        torch.testing.assert_close(column.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
        torch.testing.assert_close(column.std(correction=0), torch.tensor(1.0))


def test_padding_is_not_counted() -> None:
    short, padded = regular([[1], [3]]), regular([[1], [3]], [[2]]).select(torch.tensor([0]))
    assert Preparation.learn(short) == Preparation.learn(padded)
    assert Preparation.learn(regular([[1], [3]], [[2]])).observation == ()


@pytest.mark.parametrize(
    ("rows", "observation"),
    [
        ([[1, 2, 3], [4, 5, 6]], ()),
        ([[1, 2, 3], [NAN, NAN, NAN], [4, 5, 7]], (0,)),
        ([[1, 2, 3], [4, NAN, NAN], [4, 5, 7]], (1, 2)),
        ([[NAN, 2, 3], [4, 5, 6], [4, 5, 7]], (0,)),
    ],
)
def test_an_observation_channel_is_added_for_each_pattern_of_missing_values(
    rows: list[list[float]], observation: tuple[int, ...]
) -> None:
    train = regular(rows)
    prepared = Preparation.learn(train)
    assert prepared.observation == observation
    expected = ~train.values[..., list(observation)].isnan()
    assert torch.equal(prepared.apply(train.values)[..., 3:], expected.float())


def test_a_constant_channel_becomes_0() -> None:
    train = regular([[5, 0], [5, 0]])
    assert torch.equal(Preparation.learn(train).apply(train.values), torch.zeros(1, 2, 2))


def test_the_last_observed_value_is_carried_forward() -> None:
    rows = [[NAN, 1], [4, NAN], [NAN, NAN], [NAN, 3], [8, NAN]]
    train = regular(rows, [[NAN, NAN], [6, 2]])
    by_mean, by_last = (Preparation.learn(train, fill=fill).apply(train.values) for fill in ("mean", "last"))
    assert torch.equal(by_last[..., 2:], by_mean[..., 2:])
    x, y = by_last[0, :, 0], by_last[0, :, 1]
    assert torch.equal(x, by_mean[0, [0, 1, 1, 1, 4], 0])
    assert x[0] == 0
    assert torch.equal(y, by_mean[0, [0, 0, 0, 3, 3], 1])
    # no value of another series
    assert torch.equal(by_last[1, 0, :2], torch.zeros(2))


def test_missing_values_are_interpolated_between_observed_ones() -> None:
    rows = [[NAN, 1], [4, NAN], [NAN, NAN], [NAN, 4], [10, NAN]]
    train = regular(rows, [[NAN, NAN], [6, 2]], [[NAN, NAN]])
    prepared = Preparation.learn(train, fill="linear")
    filled = prepared.apply(train.values)
    values = filled[..., :2] * torch.tensor(prepared.deviation) + torch.tensor(prepared.mean)
    torch.testing.assert_close(values[0].T, torch.tensor([[4.0, 4, 6, 8, 10], [1, 2, 3, 4, 4]]))
    torch.testing.assert_close(values[1, :2], torch.tensor([[6.0, 2], [6, 2]]))
    assert not filled[2].any()  # never observed
    assert torch.equal(filled[..., 2:], (~train.values.isnan()).float())


def test_values_are_clipped_at_the_limit() -> None:
    train = regular([[k] for k in (0.0, 0.0, 0.0, 0.0, NAN, 10.0)])
    whole, cut = (Preparation.learn(train, limit).apply(train.values)[0] for limit in (None, 1.5))
    assert whole[5, 0] == 2
    assert torch.equal(cut[:, 0], whole[:, 0].clamp(-1.5, 1.5))
    assert torch.equal(cut[:, 1], whole[:, 1])


def test_values_far_from_0_keep_their_digits() -> None:
    train = regular([[8192.0], [8192.0], [8192.0 + 2**-10]])  # neighbours in float32
    values = Preparation.learn(train).apply(train.values)[0, :, 0]
    torch.testing.assert_close(values, torch.tensor([-1.0, -1.0, 2.0]) / 2**0.5)


def test_a_channel_without_observed_training_values_is_refused() -> None:
    with refused(ValueError, "channel 'c1' has no observed value in training; take it out"):
        Preparation.learn(regular([[1, NAN], [2, NAN]]))


def test_a_channel_missing_after_training_is_filled_with_its_mean_and_reported() -> None:
    prepared = Preparation.learn(regular([[1, 3], [2, 4]]))
    later = regular([[1, NAN], [2, NAN]])
    with pytest.warns(UserWarning, match="values are missing in c1, but none were in training; they.*fill=mean"):
        prepared.warn_of_gaps(later)
    assert prepared.apply(later.values)[0, :, 1].tolist() == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared.warn_of_gaps(regular([[1, 3], [2, 4]], [[1, 2]]))


@pytest.mark.parametrize(("fill", "filled"), [("last", [0, 1, 1, 1, 4, 4]), ("linear", [1, 1, 2, 3, 4, 4])])
def test_values_are_filled_by_operators_that_onnx_has(fill: Fill, filled: list[float]) -> None:
    used = set[str]()

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            used.add(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    prepared = Preparation(mean=(0.0,), deviation=(1.0,), fill=fill)
    with Recorded():
        values = prepared.apply(torch.tensor([NAN, 1, NAN, NAN, 4, NAN])[:, None])
    assert values[:, 0].tolist() == filled
    assert "gather" in used
    assert used.isdisjoint({"cummax", "cummin", "searchsorted"})
