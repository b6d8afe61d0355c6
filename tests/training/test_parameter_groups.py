from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import encoders, kernels, models
from fredholm.training import parameter_groups
from tests.refusals import refused


def names(model: nn.Module) -> tuple[set[str], set[str]]:
    decayed, exempt = parameter_groups(model, 0.3)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)
    return {name for name, _ in decayed["params"]}, {name for name, _ in exempt["params"]}


KERNEL = models.MLPConfig(width=4, num_frequencies=2)


def itnet(**settings: Any) -> models.ITNet:
    config = models.ITNet.Config(embed_dim=8, depth=2, num_heads=2, kernel=KERNEL, **settings)
    image = encoders.Image.Config(image_size=(4, 4), patch_size=2, channels=1, num_frequencies=2)
    return models.ITNet(encoders.Image(image, 8), 3, config)


def test_itnet_keeps_decay_off_biases_norms_tokens_and_the_kernels_output_bias() -> None:
    model = itnet()
    decayed, exempt = names(model)
    parameters = dict(model.named_parameters())
    assert decayed | exempt == parameters.keys()
    assert not decayed & exempt
    output_biases = {name for name in parameters if name.endswith("output_bias")}
    assert len(output_biases) == 2
    assert all(parameters[name].ndim > 1 for name in output_biases)  # so that their rank does not exempt them
    assert output_biases <= exempt
    assert {name for name, parameter in parameters.items() if parameter.ndim <= 1} <= exempt
    assert "cls_token" in exempt
    assert "head.weight" in decayed
    assert exempt - output_biases == {name for name, parameter in parameters.items() if parameter.ndim <= 1}


def test_frozen_frequencies_are_in_no_group() -> None:
    model = itnet()
    frozen = {name for name, _ in model.named_buffers() if "frequencies" in name}
    decayed, exempt = names(model)
    assert frozen
    assert not frozen & (decayed | exempt)


def test_norms_of_any_rank_are_exempt() -> None:
    decayed, exempt = names(nn.Sequential(nn.LayerNorm([3, 4]), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)))
    assert exempt == {"0.weight", "0.bias", "1.bias", "2.weight", "2.bias"}
    assert decayed == {"1.weight"}


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert names(model) == ({"1.weight"}, {"1.bias"})


def test_a_shared_parameter_that_one_owner_exempts_is_exempt_and_appears_once() -> None:
    class Exempting(nn.Module):
        no_weight_decay = frozenset({"table"})

        def __init__(self, table: Tensor) -> None:
            super().__init__()
            self.table = table

    plain = nn.Linear(3, 3, bias=False)
    assert names(nn.Sequential(plain, Exempting(plain.weight))) == (set(), {"0.weight"})


def test_an_unknown_exemption_is_an_error() -> None:
    class Wrong(nn.Module):
        no_weight_decay = frozenset({"wieght"})

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    with pytest.raises(ValueError, match=r"^0\.no_weight_decay lists wieght, not among its parameters$"):
        parameter_groups(nn.Sequential(Wrong()), 0.1)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.LinearRNN(3, 4),
        kernels.LinearRNN(3, 4, bias=True),
        kernels.DiagonalStateSpace(3, 4, feedthrough=False),
        kernels.SelectiveStateSpace(3, 4, feedthrough=False),
        kernels.LSTM(3, 4, bias=False),
        kernels.Attention(4, bias=False) + 0.0 * kernels.LinearAttention(4),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_every_kernel_finds_its_groups_whatever_its_options_leave_out(kernel):
    decayed, exempt = parameter_groups(kernel, 0.1)
    assert len(decayed["params"]) + len(exempt["params"]) == len(list(kernel.parameters()))
    assert all(parameter.ndim > 1 for _, parameter in decayed["params"])


@pytest.mark.parametrize("decay", [-0.1, float("inf"), float("nan")])
def test_a_decay_that_is_none(decay: float) -> None:
    with refused(ValueError, f"weight_decay must be >= 0 and finite; got {decay}"):
        parameter_groups(nn.Linear(2, 2), decay)
