import pytest
import torch
from torch import nn

from fredholm.training import ExponentialMovingAverage, warmed_decay


def test_the_decay_warms_up_to_its_limit() -> None:
    assert [warmed_decay(t, 0.9999) for t in (0, 8, 90)] == pytest.approx([1 / 10, 1 / 2, 91 / 100])
    assert warmed_decay(10**7, 0.9999) == 0.9999
    assert warmed_decay(5, 0.0) == 0.0


def test_the_average_follows_its_recurrence() -> None:
    model = nn.Linear(2, 1)
    average = ExponentialMovingAverage(model, 0.7)
    expected = model.weight.detach().clone().double()
    for t in range(40):
        with torch.no_grad():
            model.weight.normal_()
        average.update(model, t)
        decay = min(0.7, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    assert isinstance(average.model, nn.Linear)
    torch.testing.assert_close(average.model.weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_buffers_are_copied_and_the_trained_model_is_left_alone() -> None:
    model = nn.BatchNorm1d(2)
    average = ExponentialMovingAverage(model, 0.99)
    model(torch.randn(5, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    average.update(model, 0)
    assert isinstance(average.model, nn.BatchNorm1d)
    assert isinstance(average.model.running_mean, torch.Tensor)
    assert torch.equal(average.model.running_mean, before["running_mean"])
    assert int(average.model.state_dict()["num_batches_tracked"]) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not average.model.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
